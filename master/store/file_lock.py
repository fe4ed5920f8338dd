"""Keeps a file for one process as long as that lives, whatever becomes of the file and of the disk meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress

try:
    import fcntl
except ImportError:  # there are none on this system: whoever keeps files apart is the one who configures them
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """A lock of the kernel on a file beside the one that is kept, which is taken away again at the end.

    The kernel lets go of it when the process ends, however it ends. Where no such file can be made, or the disk knows
    no locks, there is none, and that is no failure: what is wrong with the disk is told by who writes to it.
    """

    def __init__(self, file: str) -> None:
        self._place = f"{file}.lock"
        self._fd: int | None = None

    def take(self) -> bool:
        """Return False where another process has it."""
        while self._fd is None and fcntl is not None:
            try:
                fd = os.open(self._place, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                break
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(fd):
                    self._fd = fd
            except BlockingIOError:
                return False
            except OSError:
                break
            finally:
                if self._fd is None:
                    os.close(fd)
        return True

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.unlink(self._place)
            os.close(fd)

    def _is_there(self, fd: int) -> bool:
        """Return whether it is the file that others find too: who had it may have taken it away just now."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(fd), os.stat(self._place))
        return False
