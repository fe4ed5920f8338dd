"""What the service manager is told, and that nothing of it can hold up or stop a master."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from master.notify import ServiceManager

PID = 77


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def capture() -> LogCapture:
    return LogCapture()


def manager(capture: LogCapture, variables: dict[str, str]) -> ServiceManager:
    log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(None, processors=[capture])
    return ServiceManager.take(variables, PID, log)


def heard(listener: socket.socket) -> list[list[str]]:
    got = []
    try:
        while True:
            got.append(listener.recv(4096).decode().split("\n"))
    except BlockingIOError:
        return got


def variables_of(listener: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.getsockname(), **more}


def test_the_variables_are_not_for_children(listener: socket.socket, capture: LogCapture) -> None:
    variables = variables_of(listener, WATCHDOG_USEC="1", WATCHDOG_PID=str(PID), HOME="/")
    manager(capture, variables).close()
    assert variables == {"HOME": "/"}


def test_an_abstract_socket_is_told_too(capture: LogCapture, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{tmp_path}/notify")
        sock.setblocking(False)
        told = manager(capture, {"NOTIFY_SOCKET": f"@{tmp_path}/notify"})
        told.ready("serves")
        assert heard(sock) == [["READY=1", "STATUS=serves"]]
        told.close()


def test_who_stops_is_not_ready_any_more(listener: socket.socket, capture: LogCapture) -> None:
    told = manager(capture, variables_of(listener))
    told.reloading()
    told.stopping(within_s=7.5)
    told.ready("reloaded")
    told.reloading()
    reloading, *rest = heard(listener)
    assert reloading[0] == "RELOADING=1"
    assert rest == [["STOPPING=1", "EXTEND_TIMEOUT_USEC=7500000"]]
    told.close()


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000"}])
async def test_without_a_service_manager_nothing_is_done(capture: LogCapture, variables: dict[str, str]) -> None:
    told = manager(capture, variables)
    told.ready("serves")
    told.reloading()
    told.stopping(1)
    await told.watch()
    told.close()
    assert capture.entries == []


@pytest.mark.parametrize("pid", [{}, {"WATCHDOG_PID": ""}, {"WATCHDOG_PID": str(PID)}])
async def test_the_watchdog_is_told_twice_in_its_time(
    listener: socket.socket, capture: LogCapture, autojump_clock: trio.testing.MockClock, pid: dict[str, str]
) -> None:
    told = manager(capture, variables_of(listener, WATCHDOG_USEC="2000000", **pid))
    with trio.move_on_after(4.5):
        await told.watch()
    assert heard(listener) == [["WATCHDOG=1"]] * 5
    told.close()


@pytest.mark.parametrize(
    "watchdog",
    [
        {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(PID + 1)},
        {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "me"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "²"},
        {},
    ],
)
async def test_a_watchdog_of_somebody_else_or_none_is_not_told(
    listener: socket.socket, capture: LogCapture, watchdog: dict[str, str]
) -> None:
    told = manager(capture, variables_of(listener, **watchdog))
    await told.watch()
    assert heard(listener) == []
    told.close()


def test_a_full_socket_loses_messages_and_is_told_of_once(listener: socket.socket, capture: LogCapture) -> None:
    told = manager(capture, variables_of(listener))
    for _ in range(1000):  # more than any queue of datagrams holds
        told.ready("serves")
    assert [entry["event"] for entry in capture.entries] == ["cannot_notify"]
    assert len(heard(listener)) < 1000
    told.ready("serves")
    assert heard(listener) == [["READY=1", "STATUS=serves"]]
    told.close()


@pytest.mark.parametrize(
    "address", ["/nowhere/notify", "/" + "x" * 200, "@" + "x" * 200, "/\udcff", "vsock:2:1", "notify"]
)
def test_an_address_where_nobody_is_costs_a_line_of_the_log(capture: LogCapture, address: str) -> None:
    told = manager(capture, {"NOTIFY_SOCKET": address})
    told.ready("serves")
    told.ready("serves")
    told.close()
    assert [entry["event"] for entry in capture.entries] == ["cannot_notify"]
