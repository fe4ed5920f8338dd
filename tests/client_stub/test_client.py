"""One client, from its options to what it prints and how it exits."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.client import ClientOptions, run_client
from lambdamu.address import Address
from lambdamu.testing import FakeBackend

Capture = pytest.CaptureFixture[str]


async def test_it_prints_where_it_went_and_its_task(master: Any, backend: Any, capsys: Capture) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked:
        code = await run_client(ClientOptions((asked.address,)))
    shown = capsys.readouterr()
    assert (code, shown.out, shown.err) == (0, f"{stub.address} Task-1\n", "")


async def test_as_json_it_prints_one_object(master: Any, backend: Any, capsys: Capture) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked:
        code = await run_client(ClientOptions((asked.address,), json=True))
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    assert json.loads(shown.out) == {
        "result": "OK",
        "ip": stub.address.host,
        "port": stub.address.port,
        "task": "Task-1",
    }
    assert shown.out.count("\n") == 1


async def test_ask_only_goes_nowhere(master: Any, nobody: Address, capsys: Capture) -> None:
    async with master(to=(nobody,)) as asked:
        assert await run_client(ClientOptions((asked.address,), ask_only=True)) == 0
        assert await run_client(ClientOptions((asked.address,), ask_only=True, json=True)) == 0
    plain, as_json = capsys.readouterr().out.splitlines()
    assert plain == str(nobody)
    assert json.loads(as_json) == {"result": "OK", "ip": nobody.host, "port": nobody.port, "task": None}


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"Result": "NoServer", "Data": {"RetryAfter": 2.0}}, "it answered NoServer; ask again in 2.0 s"),
        ({"Result": "Wait", "Data": {"Reason": "Queue"}}, "it answered Wait, Queue"),
        (
            {"Result": "Closed", "Data": {"Reason": "Left", "Text": "good night"}},
            "it answered Closed, Left: good night",
        ),
        ({"Result": "Denied", "Data": {"Reason": "Used"}}, "it answered Denied, Used"),
    ],
)
async def test_an_answer_without_a_backend_exits_3(
    master: Any, capsys: Capture, says: dict[str, Any], why: str
) -> None:
    async with master(says) as asked:
        code = await run_client(ClientOptions((asked.address,), json=True))
    shown = capsys.readouterr()
    assert code == 3
    assert json.loads(shown.out) == {"result": says["Result"], "ip": None, "port": None, "task": None}
    assert shown.err == f"lambdamu client: master {asked.address}: {why}\n"


async def test_its_pass_is_sent_and_shown_nowhere(master: Any, nobody: Address, capsys: Capture) -> None:
    async with master(to=(nobody,)) as asked:
        options = ClientOptions((asked.address,), ask_only=True, pass_text="a-pass-of-mine")
        assert await run_client(options) == 0
    assert asked.asks[-1].data == {"Pass": "a-pass-of-mine"}
    assert "a-pass-of-mine" not in repr(options) + capsys.readouterr().out


@pytest.mark.parametrize("as_load", [False, True])
async def test_a_turn_is_asked_for_on_order_and_handed_on(master: Any, as_load: bool) -> None:
    async with FakeBackend() as backend, master({**OK, "Data": at(backend) | {"Turn": "a-turn"}}) as asked:
        options = ClientOptions((asked.address,), turn=True, pass_text="p", clients=2 if as_load else 1)
        assert await run_client(options) == 0
        assert b"\xa4Turn\xa4Data\xa6a-turn" in backend.stats().last_question
        assert await run_client(ClientOptions((asked.address,))) == 0
    assert asked.asks[0].data == {"Pass": "p", "Want": ["Turn"]}
    assert asked.asks[-1].data is None


OK = {"Result": "OK"}


def at(backend: FakeBackend) -> dict[str, Any]:
    return {"IP": backend.address[0], "Port": backend.address[1]}


@pytest.mark.parametrize("text", ["", "x" * 513, "ä", "a\n"])
def test_a_pass_that_cannot_be_sent_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a pass has 1 to 512 characters"):
        ClientOptions((), pass_text=text)


async def test_without_json_there_is_nothing_to_print_of_no_backend(master: Any, capsys: Capture) -> None:
    async with master({"Result": "NoServer"}) as asked:
        assert await run_client(ClientOptions((asked.address,))) == 3
    assert capsys.readouterr().out == ""


async def test_no_master_at_all_fails_and_names_each(
    nobody: Address, capsys: Capture, autojump_clock: trio.testing.MockClock
) -> None:
    another = Address("127.0.0.1", 1)
    code = await run_client(ClientOptions((nobody, another), json=True))
    shown = capsys.readouterr()
    assert code == 1
    assert json.loads(shown.out) == {"result": "Failed", "ip": None, "port": None, "task": None}
    assert shown.err.count("\n") == 1
    assert all(f"master {master}: Connection refused" in shown.err for master in (nobody, another))


async def test_a_master_that_fails_is_skipped(master: Any, backend: Any, nobody: Address, capsys: Capture) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked:
        for _ in range(8):
            assert await run_client(ClientOptions((nobody, asked.address))) == 0
    assert capsys.readouterr().err == ""


async def test_an_answer_not_to_the_protocol_fails(master: Any, capsys: Capture) -> None:
    async with master({"Result": "Perhaps"}) as asked:
        code = await run_client(ClientOptions((asked.address,), json=True))
        assert len(asked.asks) == 1
    shown = capsys.readouterr()
    assert (code, json.loads(shown.out)["result"]) == (1, "Failed")
    assert shown.err == (
        f"lambdamu client: master {asked.address}: not to the protocol: it answered the unknown result 'Perhaps'\n"
    )


async def test_a_backend_that_is_not_there_fails_and_is_named(master: Any, nobody: Address, capsys: Capture) -> None:
    async with master(to=(nobody,)) as asked:
        code = await run_client(ClientOptions((asked.address,), json=True))
    shown = capsys.readouterr()
    assert code == 1
    assert json.loads(shown.out) == {"result": "Failed", "ip": nobody.host, "port": nobody.port, "task": None}
    assert shown.err == f"lambdamu client: backend {nobody}: Connection refused\n"


async def test_what_ends_a_stay_adds_nothing_to_what_was_shown(master: Any, backend: Any, capsys: Capture) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked, trio.open_nursery() as nursery:
        codes: list[int] = []

        async def stay() -> None:
            codes.append(await run_client(ClientOptions((asked.address,), json=True, hold=float("inf"))))

        nursery.start_soon(stay)
        shown = ""
        while not shown:
            await trio.lowlevel.checkpoint()
            shown = capsys.readouterr().out
        stub.stop.set()
    assert (codes, json.loads(shown)["task"]) == ([1], "Task-1")
    last = capsys.readouterr()
    assert (last.out, last.err) == ("", f"lambdamu client: backend {stub.address}: has closed the connection\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_one_object_all_the_same(
    master: Any, capsys: Capture, number: signal.Signals
) -> None:
    async with master(None) as silent, trio.open_nursery() as nursery:
        codes: list[int] = []

        async def wait() -> None:
            codes.append(await run_client(ClientOptions((silent.address,), json=True)))

        nursery.start_soon(wait)
        await silent.asked.wait()
        signal.raise_signal(number)
    shown = capsys.readouterr()
    assert codes == [1]
    assert json.loads(shown.out)["result"] == "Failed"
    assert shown.err == "lambdamu client: stopped by a signal\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"hold": -1.0},
        {"hold": float("nan")},
        {"timeout_s": 0.0},
        {"user_name": ""},
        {"user_mail": "\udcff"},
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ClientOptions((), **wrong)
