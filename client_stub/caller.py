"""How a client without a screen asks masters: each in turn, in a few rounds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure
from lambdamu.retry import Backoff

ROUNDS: Final = 3
"""So often every master is tried before a client gives up."""
BACKOFF: Final = Backoff(first_s=0.2, most_s=2.0)
"""A client waits so long between two rounds."""


async def ask_any(
    ask: Callable[[Address], Awaitable[Answer | Failure]],
    masters: Sequence[Address],
    rng: random.Random,
    *,
    first: Address | None = None,
) -> tuple[Address, Answer] | Failure:
    """Ask masters, `first` before the others and those in an order of chance, until one answers.

    Return it with its answer, or why none did.
    """
    failures: dict[Address, Failure] = {}
    left = list(dict.fromkeys(masters))
    for tries in range(ROUNDS):
        if tries:
            await trio.sleep(BACKOFF.wait_s(tries - 1, rng))
        for master in sorted(rng.sample(left, len(left)), key=lambda master: master != first):
            answer = await ask(master)
            if isinstance(answer, Answer):
                return master, answer
            failures[master] = answer
        left = [master for master in left if not failures[master].final]
        if not left:
            break
    return Failure("; ".join(failure.text for failure in failures.values()) or "there is no master to ask")
