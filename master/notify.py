"""What the service manager is told: ready, reloading, stopping, alive, by the protocol of sd_notify(3).

Nothing of this may stop or delay a master: a socket that is gone or full loses the message, and the log says so once.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

import attrs
import structlog
import trio

Logger = structlog.typing.FilteringBoundLogger
_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_LEAST_PERIOD_S: Final = 0.01


@attrs.define(eq=False)
class ServiceManager:
    """The one that started this process and wants to hear of it. Without `address` there is none, and all is a no-op.

    `watchdog_s`: it ends a process that says nothing for so long; None: it does not.
    """

    address: bytes | None
    watchdog_s: float | None
    log: Logger
    _socket: socket.socket | None = None
    _stopping: bool = False
    _failed: bool = False

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int, log: Logger) -> ServiceManager:
        """Read the variables that it has set for process `pid`, and remove them: they are not for children."""
        given = {name: environment.pop(name, "") for name in (_SOCKET, _WATCHDOG, _WATCHDOG_PID)}
        address = _read_address(given[_SOCKET])
        if given[_SOCKET] and address is None:
            log.warning("cannot_notify", address=given[_SOCKET], error=f"{_SOCKET} is neither a path nor begins with @")
        manager = cls(address, _read_watchdog(given[_WATCHDOG], given[_WATCHDOG_PID], pid), log)
        if address is not None:
            # Kept open: when descriptors run out, the watchdog must still be told.
            manager._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        return manager

    def ready(self, status: str) -> None:
        """Say that the master serves, after a start or a reload; nothing of it once it is stopping."""
        if not self._stopping:
            self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        if not self._stopping:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def starting(self, within_s: float) -> None:
        """Say that the start may take so long from now on."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """Say that the process is about to end, in `within_s` seconds at most."""
        self._stopping = True
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    async def watch(self) -> None:
        """Say that the loop turns, twice in the time that the watchdog gives; return at once where there is none."""
        while self.address is not None and self.watchdog_s is not None:
            self._tell("WATCHDOG=1")
            await trio.sleep(max(self.watchdog_s / 2, _LEAST_PERIOD_S))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _tell(self, *lines: str) -> None:
        if self._socket is None or self.address is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self.address)
        except OSError as exc:
            if not self._failed:
                self.log.warning("cannot_notify", message=lines[0], error=exc.strerror or str(exc))
            self._failed = True
        else:
            self._failed = False


def _read_address(text: str) -> bytes | None:
    if text.startswith("@"):
        return b"\0" + os.fsencode(text[1:])
    return os.fsencode(text) if text.startswith("/") else None


def _read_watchdog(usec: str, wanted_pid: str, pid: int) -> float | None:
    """Return the seconds that a watchdog gives process `pid`; None where there is none, or it is another one's."""
    if not (usec.isascii() and usec.isdigit() and int(usec)) or wanted_pid not in ("", str(pid)):
        return None
    return int(usec) / 1e6
