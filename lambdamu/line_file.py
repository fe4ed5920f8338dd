"""Small files of lines that an operator writes: keys, tokens, names. `#` begins a line that is passed over.

Such files hold secrets: no error repeats what stands in a line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

import attrs

from lambdamu.errors import LambdaMuError

MOST_BYTES: Final = 65536


class LineFileError(LambdaMuError):
    """A file of lines cannot be used; str() is one line that names it, and the line where there is one."""


@attrs.frozen
class LineFile:
    """What stood in a file. `too_open`: whether others than its owner and its group may read it, or others write it."""

    path: str
    text: str = attrs.field(repr=False)
    too_open: bool = False

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield each line that says something, without the space around it, and its number from 1."""
        for number, line in enumerate(self.text.split("\n"), 1):
            bare = line.strip()
            if bare and not bare.startswith("#"):
                yield number, bare

    def fault(self, number: int, text: str) -> LineFileError:
        return LineFileError(f"{self.path}: line {number}: {text}")


def read_line_file(path: str, most_bytes: int = MOST_BYTES) -> LineFile:
    """Read a file whole. Raise LineFileError when it cannot be read, is no regular file, too large or not UTF-8."""
    try:
        # Without O_NONBLOCK, a FIFO that nobody writes to would hold the program for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise LineFileError(f"{path} is no regular file")
            data = file.read(most_bytes + 1)
    except OSError as exc:
        raise LineFileError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise LineFileError("a path with a null character names no file") from exc
    if len(data) > most_bytes:
        raise LineFileError(f"{path} is larger than {most_bytes} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise LineFileError(f"{path} is not UTF-8") from exc
    return LineFile(path, text.removeprefix("\ufeff"), too_open=bool(mode & (stat.S_IROTH | stat.S_IWOTH)))
