"""The Products of a backend: data of a client, late or wrong to order."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from lambdamu.messages import Command, Message
from master.cli import cli
from server_stub.products import NAMES, PRODUCTS, ProductsFault, parse_products_fault

OpenBackend = Callable[..., AbstractAsyncContextManager[Any]]


def get(name: str = "Accounts", data: Any = None) -> Message:
    return Message(PRODUCTS, Command.GET, name, {"Client": "ann"} if data is None else data)


async def test_each_name_is_answered_with_the_client_and_a_serial_number(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as made, made.client() as client:
        for serial, name in enumerate(NAMES, 1):
            await client.say(get(name))
            [answer] = await client.hear()
            assert (answer["Object"], answer["Command"], answer["Name"]) == (PRODUCTS, "Value", name)
            assert json.loads(answer["Data"]) == {"client": "ann", "of": name, "serial": serial}


async def test_a_delay_can_be_set_and_taken_back(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as made, made.client() as client:
        await client.say(Message(PRODUCTS, Command.SET, "Delay", 1000))
        await client.say(get())
        with trio.move_on_after(0.05) as scope:
            await client.hear()
        assert scope.cancelled_caught
        async with made.client() as other:
            await other.say(Message(PRODUCTS, Command.SET, "Delay", 0))
            await other.say(get())
            assert (await other.hear())[0]["Command"] == "Value"


async def test_a_fault_can_be_set_and_taken_back(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as made, made.client() as client:
        await client.say(Message(PRODUCTS, Command.SET, "Fault", "error"))
        await client.say(get())
        assert (await client.hear())[0]["Command"] == "Error"
        await client.say(Message(PRODUCTS, Command.SET, "Fault"))
        await client.say(get())
        assert (await client.hear())[0]["Command"] == "Value"


@pytest.mark.parametrize(
    "bad",
    [
        get(data={}),
        get(data={"Client": ""}),
        get(data=7),
        *[Message(PRODUCTS, Command.SET, "Delay", data) for data in (-1, float("nan"), 1e9, True, "1", None)],
        *[Message(PRODUCTS, Command.SET, "Fault", data) for data in ("worse", 5, ["error"])],
    ],
)
async def test_what_means_nothing_is_told_and_changes_nothing(backend: OpenBackend, bad: Message) -> None:
    async with backend(products_s=0.0) as made, made.client() as client:
        await client.say(bad)
        answer = (await client.hear())[0]
        assert answer["Command"] == "Error"
        assert answer["Data"]["Code"] == "BadData"
        await client.say(get())
        assert json.loads((await client.hear())[0]["Data"])["serial"] == 1


def test_a_fault_is_one_of_its_words() -> None:
    assert [parse_products_fault(str(fault)) for fault in ProductsFault] == list(ProductsFault)
    with pytest.raises(ValueError, match='"worse" is no fault of Products; there are silent, error, empty, number'):
        parse_products_fault("worse")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--products", "nan"], "--products"),
        (["--products", "-1"], "--products"),
        (["--products", "0", "--products-fault", "worse"], "is no fault of Products"),
        (["--products-fault", "error"], "goes with --products"),
    ],
)
def test_a_bad_option_is_told_in_one_line(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["server", "--listen", "127.0.0.1:0", *arguments])
    assert result.exit_code == 2
    assert says in result.output
