"""Whether a file has become another one, and nobody is still writing it. Pure but for `stamp_of`."""

from __future__ import annotations

import os

Stamp = tuple[int, int, int, int]
"""Device, inode, size, time of change: of what the path leads to, so a symlink that is swapped is a change too."""


def stamp_of(path: str | None) -> Stamp | None:
    """Return what tells a file from another one; None where there is none."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class FileWatch:
    """Tells once of each change, when two looks in a row have found the same: half of a file does not stay as it is."""

    def __init__(self) -> None:
        self._seen: Stamp | None = None
        self._taken: Stamp | None = None

    def take(self, stamp: Stamp | None) -> None:
        """Hear that the file is read as it is now."""
        self._taken = stamp

    def look(self, stamp: Stamp | None) -> bool:
        """Return whether the file is to be read. One that is gone is waited for."""
        settled = stamp is not None and stamp == self._seen and stamp != self._taken
        self._seen = stamp
        if settled:
            self._taken = stamp
        return settled
