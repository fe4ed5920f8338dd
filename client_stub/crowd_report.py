"""A crowd from its beginning to its report: the line while it waits, the table or the JSON at its end."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Iterator
from typing import Final

import trio

from client_stub.crowd_run import CrowdRun
from client_stub.crowd_tally import CrowdTally
from client_stub.interrupt import until_signal
from client_stub.load import file_slots
from client_stub.options import ClientOptions
from client_stub.report import milliseconds, put_report
from client_stub.show import Status, complain, span
from client_stub.tally import FAILED, quantiles
from lambdamu.caller import Caller

_REFRESH_S: Final = 0.2
_LINE_S: Final = 5.0
"""Where lines stay they come so seldom."""


async def run_crowd(options: ClientOptions, caller: Caller, rng: random.Random) -> int:
    """Run a crowd, report what came of it, also when a signal ends it, and return the exit code."""
    connections = options.connections or 1
    slots = file_slots(_allow_files(options.clients + connections))
    run = CrowdRun(options, caller, rng, None if slots is None else max(1, slots - connections), complain)

    async def work() -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_show, run.crowd.tally)
            await run.run()
            nursery.cancel_scope.cancel()
        return True

    through = await until_signal(work)
    tally = run.crowd.tally
    put_report(tally.errors, tally.to_json, tally.backends, _lines(tally), json=options.json)
    if not through:
        left = f"; {tally.ended['left']} have left the queue" if tally.ended["left"] else ""
        complain(f"stopped by a signal{left}")
        return FAILED
    return tally.exit_code()


def _allow_files(count: int) -> int:
    """Raise the limit of open files to what the crowd needs, as far as that is allowed; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


async def _show(tally: CrowdTally) -> None:
    with Status() as status:
        while True:
            await trio.sleep(_REFRESH_S if sys.stderr.isatty() else _LINE_S)
            status.say(tally.line())


def _lines(tally: CrowdTally) -> Iterator[str]:
    yield tally.line()
    if tally.wait_s:
        order = "all in order" if not tally.overtaken else f"{tally.overtaken} were overtaken"
        yield f"waited {_spans(quantiles(tally.wait_s))}; {order}"
    if tally.promises:
        yield f"let in as soon as they were told: {tally.kept} of {tally.promises}"
    answered = tally.answer_s.quantiles()
    if answered["max"] is not None:
        yield f"answered in {milliseconds(answered)}"


def _spans(times: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {span(time_s)}" for name, time_s in times.items() if time_s is not None)
