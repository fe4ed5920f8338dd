"""The Products object of a backend: the data of its clients, as late as it is told to be, and with faults to order.

{Products, Get, Accounts, {Client}}    {Products, Value, Accounts, text}, the text a map in JSON
{Products, Set, Delay, seconds}        no answer; from then on each comes so late
{Products, Set, Fault, word or nil}    no answer
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from itertools import count
from typing import Final

import trio

from lambdamu.address import quoted
from lambdamu.messages import Code, Command, Message, as_map, as_text, error
from lambdamu.objects import NOTHING, Later, LMObject, Peer, Reply

PRODUCTS: Final = "Products"
NAMES: Final = ("Accounts", "Cards", "Deposits", "Loans", "Packages")
_MOST_DELAY_S: Final = 3600.0


class ProductsFault(StrEnum):
    SILENT = "silent"
    """Nothing is answered."""
    ERROR = "error"
    """An Error is."""
    EMPTY = "empty"
    """The text is empty."""
    NUMBER = "number"
    """There is a number in place of the text."""


def parse_products_fault(text: str) -> ProductsFault:
    """Read a fault as it stands on a command line or on the wire. Raise ValueError with one line."""
    try:
        return ProductsFault(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is no fault of Products; there are {', '.join(ProductsFault)}") from None


class Products(LMObject):
    """`asks` counts the questions by name. Late answers are given by tasks of `nursery`; without one none is late."""

    def __init__(
        self, delay_s: float = 0.0, fault: ProductsFault | None = None, nursery: trio.Nursery | None = None
    ) -> None:
        super().__init__(
            PRODUCTS,
            gettable=dict.fromkeys(NAMES, self._get),
            settable={"Delay": self._set_delay, "Fault": self._set_fault},
        )
        self.delay_s = delay_s
        self.fault = fault
        self.asks = dict.fromkeys(NAMES, 0)
        self._nursery = nursery
        self._serial = count(1)

    def _get(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        client = as_text((as_map(message.data) or {}).get("Client"))
        if not client:
            return [error(message, Code.BAD_DATA, "Data must name the Client")]
        self.asks[message.name] += 1
        answers = self._answers(message, client)
        if self.fault is ProductsFault.SILENT:
            return Later()
        if not self.delay_s or self._nursery is None:
            return answers
        scope = trio.CancelScope()
        later = Later(cancelled=scope.cancel)
        self._nursery.start_soon(_answer, later, answers, self.delay_s, scope)
        return later

    def _answers(self, message: Message, client: str) -> Sequence[Message]:
        match self.fault:
            case ProductsFault.ERROR:
                return [error(message, Code.FULL, "no data now, as it was told")]
            case ProductsFault.EMPTY:
                return [Message(PRODUCTS, Command.VALUE, message.name, "")]
            case ProductsFault.NUMBER:
                return [Message(PRODUCTS, Command.VALUE, message.name, 7)]
        text = json.dumps({"client": client, "of": message.name, "serial": next(self._serial)})
        return [Message(PRODUCTS, Command.VALUE, message.name, text)]

    def _set_delay(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002
        delay_s = message.data
        if type(delay_s) not in (int, float) or not 0 <= delay_s <= _MOST_DELAY_S:  # what is no number fails both
            return [error(message, Code.BAD_DATA, f"Delay must be a number of seconds, at most {_MOST_DELAY_S:g}")]
        self.delay_s = float(delay_s)
        return NOTHING

    def _set_fault(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002
        word = as_text(message.data)
        if message.data is not None and word is None:
            return [error(message, Code.BAD_DATA, "Fault must be a word, or nil")]
        try:
            self.fault = None if word is None else parse_products_fault(word)
        except ValueError as exc:
            return [error(message, Code.BAD_DATA, str(exc))]
        return NOTHING


async def _answer(later: Later, answers: Sequence[Message], delay_s: float, scope: trio.CancelScope) -> None:
    with scope:
        await trio.sleep(delay_s)
        later.answer(answers)
