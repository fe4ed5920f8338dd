"""The rush: thousands come within seconds to three small backends, wait in order, and a backend dies in the middle.

All are real processes: three backends that demand turns, a master with a queue, and one process of clients that wait as
they are told, over few connections, and each go to their backend when it is their turn. Who loses his backend comes
back first. At the end everybody has been in, in the order in which they came.

How long a client stays, and how many fit, follow from the seconds that are given.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.keys import Signer
from master.demo_stage import BACKEND, DemoError, Say, Stage, free_address, show
from master.operator_client import CallError, get

_CLIENTS: Final = 3000
_BACKENDS: Final = 3
_CONNECTIONS: Final = 20
_JOIN_SHARE: Final = 0.25
"""All come within this part of the time, and within 15 s."""
_STAY_SHARE: Final = 0.04
_SERVED_SHARE: Final = 0.55
"""With all backends alive everybody would be through after this part."""
_DIES_SHARE: Final = 0.35
_TARGET: Final = 0.9
_PATIENCE: Final = 3.0
"""After so many times the seconds nobody waits for it any more."""
_LINE_S: Final = 2.0
_ARRIVAL_S: Final = 2.5
"""What a place is taken for beside the stay: from the call until the login, and until the master hears of the end."""
_MAIL: Final = "the-demonstration"

_CONFIG: Final = """\
[master]
listen = "{master}"
connect_s = 0.5
[limits]
exempt = ["127.0.0.1"]
[probe]
interval_s = 0.25
timeout_s = 0.25
stale_after_s = 1.0
user_mail = "{mail}"
[choice]
slow_start_s = 0.0
[http]
listen = "{http}"
[queue]
target_load = {target}
keys_file = "turns.keys"
"""
_BACKEND: Final = BACKEND + "capacity = {capacity}\n"

_MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "refused": ": logins at the killed backend, before the master knew of its end",
        "closed": ": connections that ended before there was an answer, as those of the killed backend do",
        "connect_timeout": ": connections that were not taken in time",
        "timeout": ": questions that were not answered in time",
    }
)
"""What a word of the errors stands for here."""


@attrs.frozen
class Rush:
    """How the crowd comes and goes."""

    seconds: float

    @property
    def stay_s(self) -> float:
        return max(0.5, _STAY_SHARE * self.seconds)

    @property
    def join_s(self) -> float:
        return min(15.0, _JOIN_SHARE * self.seconds)

    @property
    def capacity(self) -> int:
        """Return how many users fit on one backend."""
        places = _CLIENTS * (self.stay_s + _ARRIVAL_S) / (_SERVED_SHARE * self.seconds)
        return max(10, round(places / (_TARGET * _BACKENDS)))


async def run_rush(seconds: float) -> int:
    """Run for about `seconds`, print what happens, return 1 when not everybody was let in, in order."""
    return await show(partial(_play, Rush(seconds)), verdict)


async def _play(rush: Rush, stage: Stage, say: Say) -> dict[str, Any]:
    """Set the stage, let the crowd come, kill a backend, and return what the clients say of it."""
    key = Signer.generate()
    for name, line in (("turns.keys", key.line()), ("turns.pub", key.verifier().line())):
        path = stage.folder / name
        path.touch(mode=0o600)
        path.write_text(line + "\n")
    backends = [(f"b{number + 1}", free_address()) for number in range(_BACKENDS)]
    processes = [await _start_backend(stage, name, address, rush) for name, address in backends]
    master, http = free_address(), free_address()
    pool = [
        _BACKEND.format(name=name, host=address.host, port=address.port, capacity=rush.capacity)
        for name, address in backends
    ]
    config = _CONFIG.format(master=master, http=http, mail=_MAIL, target=_TARGET)
    await stage.start_master(config + "".join(pool), master)
    await _until_open(http)
    say(
        f"{_CLIENTS} clients come to {master} within {rush.join_s:g} s, and stay for {rush.stay_s:g} s each; "
        f"{_BACKENDS} backends take {rush.capacity} users each, {_TARGET:.0%} of which are used"
    )
    figures: dict[str, Any] = {}
    with trio.move_on_after(_PATIENCE * rush.seconds) as patience:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, http, say)
            nursery.start_soon(_kill, rush, backends[0][0], processes[0], say)
            rate = _CLIENTS / rush.join_s
            crowd = ("--clients", str(_CLIENTS), "--connections", str(_CONNECTIONS), "--rate", f"{rate:g}")
            figures = await stage.run_clients(master, *crowd, "--stay", f"{rush.stay_s:g}", "--turn")
            nursery.cancel_scope.cancel()
    if patience.cancelled_caught:
        raise DemoError(f"not all were through after {_PATIENCE * rush.seconds:g} s")
    return figures


async def _start_backend(stage: Stage, name: str, address: Address, rush: Rush) -> trio.Process:
    keys = str(stage.folder / "turns.pub")
    options = ("--capacity", str(rush.capacity), "--require-turns", keys, "--probe-mail", _MAIL)
    return await stage.start_server(name, address, *options)


async def _kill(rush: Rush, name: str, process: trio.Process, say: Say) -> None:
    await trio.sleep(_DIES_SHARE * rush.seconds)
    process.send_signal(signal.SIGKILL)
    say(f"{name} is killed (SIGKILL): its users come back, before those who have not been in yet")


async def _watch(http: Address, say: Say) -> None:
    """Say now and then how the queue stands."""
    while True:
        await trio.sleep(_LINE_S)
        try:
            say(describe(await _look(http)))
        except CallError as exc:
            say(str(exc))


def describe(queue: dict[str, Any]) -> str:
    """Return a line on how the queue stands, by what the master's API says of it."""
    load: dict[str, Any] = queue["load"]
    first: dict[str, Any] = next(iter(queue["queues"]), {})
    eta, drain = first.get("eta_s"), first.get("drain_per_s")
    parts = [
        f"{queue['waiting']:5} wait ({queue['reason']})" if queue["waiting"] else "nobody waits",
        f"{queue['called']} called",
        f"{load['users']} users of {load['places']} on {load['serving']} backends",
        f"{queue['counts']['claimed']} let in",
    ]
    if drain is not None:
        parts.append(f"{drain:.0f} a second")
    if eta is not None:
        parts.append(f"who joins now waits {eta:.0f} s")
    return ", ".join(parts)


async def _look(http: Address) -> dict[str, Any]:
    return await trio.to_thread.run_sync(get, f"http://{http}", "/api/v1/queue", abandon_on_cancel=True)


async def _until_open(http: Address) -> None:
    """Wait until the master has found all backends."""
    with trio.move_on_after(20.0):
        while True:
            try:
                if (await _look(http))["load"]["serving"] == _BACKENDS:
                    return
            except CallError:  # it is not there yet
                pass
            await trio.sleep(0.1)
    raise DemoError("the master did not find all backends")


def verdict(figures: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code and what there is to say at the end, by the figures of the clients."""
    waits = figures["wait_s"]
    lines = [f"{figures['let_in']} of {figures['clients']} were let in, {figures['overtaken']} of them out of order"]
    if waits["max"] is not None:
        lines.append(
            f"they waited {waits['p50']:.1f} s (p50), {waits['p99']:.1f} s (p99), {waits['max']:.1f} s (longest)"
        )
    if figures["promises"]:
        kept = figures["promises_kept"] / figures["promises"]
        lines.append(f"of what they were told, {kept:.0%} came true: in by then, or earlier")
    if figures["lost"]:
        lines.append(f"{figures['lost']} lost their backend and came back")
    if figures["errors"]:
        lines.append("what went wrong on the way, and was tried again:")
        lines += [f"  {count} x {word}{_MEANINGS.get(word, '')}" for word, count in figures["errors"].items()]
    right = figures["let_in"] == figures["clients"] and figures["in_order"]
    lines.append("all is well" if right else "this is not as it should be")
    return int(not right), lines
