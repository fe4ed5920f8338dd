"""What the garbage collector is spared."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

import trio

_CROWD_LOOK_S: Final = 1.0
_CROWD: Final = 10_000
"""So many tickets more, and the collector is spared them."""


async def spare_the_collector(after_s: float, tickets: Callable[[], int]) -> None:
    """Take what is there after the first round out of the garbage collector's sight: it lasts as long as the process.

    With ten thousand backends a look of the collector at all of them holds everybody up for 60 ms and more. The same
    goes for a crowd that waits; tickets are in no cycles, so none of them needs the collector to be let go.
    """
    await trio.sleep(after_s)
    gc.freeze()
    spared = tickets()
    while True:
        await trio.sleep(_CROWD_LOOK_S)
        if tickets() > 2 * spared + _CROWD:
            gc.freeze()
            spared = tickets()
