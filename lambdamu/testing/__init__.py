"""What a test of a directory, a backend or a client needs: virtual time, streams without sockets, backends that fail.

An hour in a moment:

    def test_a_silent_backend_goes_stale() -> None:
        assert run_virtual(age_after, 3600.0) == 3600.0

A backend in the same process, by `async with`, and one in a process of its own, with the same script and the same
counters:

    async with FakeBackend(Script(users=7)) as backend:
        backend.script(drop="count")
        ...
        assert backend.stats().aborted == 1

    with FakeBackendProcess(Script(users=7)) as backend:
        backend.stop_signal()
        ...
        backend.cont_signal()

It needs no test framework. A fixture of yours that returns `virtual_clock()`, or `virtual_clock(SOCKET_SETTLE_S)` where
fake backends are used, puts a pytest-trio test in virtual time.
"""

from __future__ import annotations

from lambdamu.testing.clock import SOCKET_SETTLE_S, run_virtual, virtual_clock
from lambdamu.testing.fake import FakeBackend, FakeFleet
from lambdamu.testing.process import FakeBackendProcess
from lambdamu.testing.script import ABSENT, Drop, Reset, Script
from lambdamu.testing.stats import Stats
from lambdamu.testing.streams import MemoryStream, at_random, every_byte, memory_pair, whole

__all__ = [
    "ABSENT",
    "SOCKET_SETTLE_S",
    "Drop",
    "FakeBackend",
    "FakeBackendProcess",
    "FakeFleet",
    "MemoryStream",
    "Reset",
    "Script",
    "Stats",
    "at_random",
    "every_byte",
    "memory_pair",
    "run_virtual",
    "virtual_clock",
    "whole",
]
