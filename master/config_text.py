"""Reads the text of the configuration file, whatever lies at its path."""

from __future__ import annotations

import os
import stat
from typing import Final

MAX_FILE_BYTES: Final = 4 * 2**20
"""A pool of ten thousand backends takes about half of it."""


def read_text(path: str) -> str:
    """Return what stands in the file. Raise OSError where it cannot be read, ValueError where it is no text file."""
    return _decode(_read(path))


def _read(path: str) -> bytes:
    if "\0" in path:
        raise ValueError("is no file name")
    # Without O_NONBLOCK, a FIFO that nobody writes to would hold the program for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("is a directory" if stat.S_ISDIR(mode) else "is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
    return data


def _decode(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
        raise ValueError("is not UTF-8 but UTF-16, or no text at all: save it as UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ValueError(f"is not UTF-8: line {line} holds the byte {data[exc.start]:02x}: save it as UTF-8") from None
