"""One client with a session: what it shows, and how it goes on when its backend dies."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.client import ClientOptions, run_client
from client_stub.session import Screen, read_screen
from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import Command, Message
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock
from master.cache.port import CachePort
from master.cache.warm_types import Warm
from tests.conftest import go_to
from tests.master.cache.wire import BATCH_BYTES, FakeWarm, PortLimits, make_service

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(3 * SOCKET_SETTLE_S)


@pytest.fixture
async def cache(nursery: trio.Nursery) -> Address:
    """A cache whose warm data are there."""
    warm = FakeWarm()
    warm.at_once = Warm(b"data")
    port = CachePort(make_service(warm), PortLimits(batch_bytes=BATCH_BYTES), 1000)
    [address] = await nursery.start(port.serve, open_listeners(Address("127.0.0.1", 0)))
    return Address(address.host, address.port)


def options(master: Any, **other: Any) -> ClientOptions:
    return ClientOptions(
        (master.address,), **{"waits": True, "session": True, "device": "a phone", "hold": 3.0, **other}
    )


async def lines(capsys: Capture, count: int) -> tuple[list[str], str]:
    """Wait until so many lines were printed; return them, and what was complained of."""
    out = err = ""
    with trio.fail_after(100.0):
        while out.count("\n") < count:
            await trio.sleep(0.1)
            shown = capsys.readouterr()
            out, err = out + shown.out, err + shown.err
    return out.splitlines(), err


async def test_it_goes_on_at_another_backend_and_says_so(
    clock: trio.testing.MockClock, master: Any, backend: Any, cache: Address, capsys: Capture
) -> None:
    async with (
        backend(cache=cache) as other,
        backend(cache=cache) as first,
        master(*go_to(first.address, other.address)) as asked,
        trio.open_nursery() as nursery,
    ):
        codes: list[int] = []

        async def run() -> None:
            codes.append(await run_client(options(asked, hold=60.0)))

        nursery.start_soon(run)
        [new], hint = await lines(capsys, 1)
        first.stop.set()
        [resumed], complaint = await lines(capsys, 1)
    assert codes == [0]
    assert new.startswith(f"logged in at {first.address}, new session: Task-1; first screen in ")
    assert new.endswith("5 of 5 data types, screen 1 of this session")
    assert resumed.startswith(f"session resumed at {other.address}, no new login: Task-1; first screen in ")
    assert hint == "lambdamu client: --resume goes on with this session: --json shows its id\n"
    assert resumed.endswith("5 of 5 data types, screen 2 of this session")
    assert asked.asks[1].data["Failed"] == [{"IP": first.address.host, "Port": first.address.port, "Why": "closed"}]
    assert asked.asks[1].data["Device"] == "a phone"
    assert complaint == f"lambdamu client: backend {first.address} has closed the connection; asking again\n"


async def test_as_json_each_login_is_one_object_and_the_session_serves_the_next_start(
    clock: trio.testing.MockClock, master: Any, backend: Any, cache: Address, capsys: Capture
) -> None:
    async with backend(cache=cache) as stub, master(*go_to(stub.address)) as asked:
        assert await run_client(options(asked, json=True)) == 0
        first = json.loads(capsys.readouterr().out)
        assert await run_client(options(asked, json=True, resume=first["session"])) == 0
        second = json.loads(capsys.readouterr().out)
        assert await run_client(options(asked, json=True, resume="of another life", device=None)) == 0
        third = json.loads(capsys.readouterr().out)
    assert [each["how"] for each in (first, second, third)] == ["new", "resumed", "gone"]
    assert first["session"] == second["session"] != third["session"]
    assert [each["screen"] and each["screen"]["count"] for each in (first, second, third)] == [1, 2, None]
    assert {(each["result"], each["ip"], each["port"]) for each in (first, second)} == {("OK", *first_of(stub))}


def first_of(stub: Any) -> tuple[str, int]:
    return stub.address.host, stub.address.port


async def test_without_sessions_at_the_backend_it_is_logged_in_and_says_so(
    clock: trio.testing.MockClock, master: Any, backend: Any, capsys: Capture
) -> None:
    async with backend() as stub, master(*go_to(stub.address)) as asked:
        assert await run_client(options(asked)) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"logged in at {stub.address}, which keeps no sessions: Task-1; no first screen: ")


async def test_a_backend_that_ends_each_connection_is_not_called_without_a_pause(
    clock: trio.testing.MockClock, master: Any, capsys: Capture
) -> None:
    entered = [Message("Auth", "Value", "TaskObject", "Task"), Message("Auth", "Value", "Session", "s1")]
    calls = 0

    async def let_in_and_end(stream: trio.SocketStream) -> None:
        nonlocal calls
        calls += 1
        await stream.receive_some()
        await stream.send_all(encode(entered))
        await stream.aclose()

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    there = Address("127.0.0.1", listener.socket.getsockname()[1])
    async with master(*go_to(there)) as asked, trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, let_in_and_end, [listener])
        assert await run_client(options(asked, hold=30.0, device=None)) == 0
        nursery.cancel_scope.cancel()
    assert 3 <= calls < 40


async def test_no_backend_exits_as_ever(clock: trio.testing.MockClock, master: Any, capsys: Capture) -> None:
    async with master({"Result": "NoServer", "Data": {"RetryAfter": 20.0}}) as asked:
        assert await run_client(options(asked, json=True)) == 3
    assert json.loads(capsys.readouterr().out) == {"result": "NoServer", "ip": None, "port": None, "task": None}


async def test_a_cache_that_is_away_is_no_reason_to_log_in(
    clock: trio.testing.MockClock, master: Any, backend: Any, nobody: Address, capsys: Capture
) -> None:
    async with backend(cache=nobody) as stub, master(*go_to(stub.address)) as asked:
        assert await run_client(options(asked, resume="s1")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "NoStore: sessions cannot be had now; keep yours, and try again" in shown.err


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "a phone"},
        {"resume": "s1"},
        {"session": True, "waits": False},
        {"session": True, "clients": 2},
        {"session": True, "ask_only": True},
        {"session": True, "resume": ""},
        {"session": True, "device": "x" * 129},
    ],
)
def test_options_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"--session|'resume'|'device'"):
        ClientOptions((), **{"waits": True, **wrong})


def screen(data: Any, command: str = Command.VALUE, name: str = "First") -> list[Message]:
    return [Message("Screen", command, name, data)]


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (
            screen({"Count": 3, "Types": [{"Type": 1, "Value": "x"}, {"Type": 2, "Code": "Upstream"}]}),
            "first screen in 250 ms: 1 of 2 data types (missing: the upstream failed), screen 3 of this session",
        ),
        (
            screen({"Types": [{"Code": "NotFound"}, {"Value": "x"}, {"Code": "NotFound"}, {"Code": "BadData"}]}),
            "first screen in 250 ms: 1 of 4 data types (missing: no such type, BadData), screen 0 of this session",
        ),
        (
            screen({"Types": [{"Code": code} for code in ("NoStore", 7, "a", "b", "c")]}),
            (
                "first screen in 250 ms: 0 of 5 data types (missing: the cache could not give them in time, "
                "it is not said why, a, and more), screen 0 of this session"
            ),
        ),
        (screen({}), "first screen in 250 ms: 0 of 0 data types, screen 0 of this session"),
        (screen(7), "first screen in 250 ms: 0 of 0 data types, screen 0 of this session"),
        (screen({"Code": "NoStore", "Text": "not now"}, Command.ERROR), "no first screen: not now"),
        (screen(None, Command.ERROR), "no first screen: the backend did not say why"),
        (screen({}, name="Second"), None),
    ],
)
def test_a_screen_is_read_whatever_comes(batch: list[Message], says: str | None) -> None:
    found = read_screen(batch, 0.25)
    assert (None if found is None else str(found)) == says
    assert found is None or isinstance(found, Screen)
