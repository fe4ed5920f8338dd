"""A file system of one MiB, which is full or read-only when a test wants it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "ballast").open("wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError:
                return

    def empty(self) -> None:
        (self.path / "ballast").unlink()

    def remount(self, how: str) -> None:
        _run("mount", "-o", f"remount,{how}", str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Have one at `path` for a time; skip the test where that is not allowed."""
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", str(path))
