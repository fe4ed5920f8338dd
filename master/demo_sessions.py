"""Sessions that survive, and data that are there before they are asked for.

Real processes: backends that keep their sessions in the cache, a node with a pool and that cache, and an upstream that
takes its time. The devices are clients of the library, in this process. Each starts its app twice. The first start is
cold: nobody knows yet who uses the device. At the second the question where to go has the data fetched, while the app
connects and shows its logo. Then a backend is killed, and its clients go on at others, in their sessions.

A session is lost where a client has to log in again, or what was kept in it is not there any more.
"""

from __future__ import annotations

import signal
from statistics import median_low
from typing import Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.answers import Answer
from lambdamu.caller import Caller
from master.demo_phones import LOGO_S, SCREEN_S, WITHIN_S, Act, Phone
from master.demo_stage import BACKEND, START_S, DemoError, Say, Stage, free_address, show

_DEVICES: Final = 30
_BACKENDS: Final = 3
_UPSTREAM_S: Final = 0.2
_TYPES: Final = ("Accounts", "Cards", "Deposits", "Loans", "Packages")
_TTL_SHARE: Final = 0.25
_SPREAD_SHARE: Final = 0.15
"""The devices start within this part of the time."""

_CONFIG: Final = """\
[master]
listen = "{master}"
[limits]
exempt = ["127.0.0.1"]
[probe]
interval_s = 0.25
timeout_s = 0.25
stale_after_s = 1.0
[choice]
slow_start_s = 0.0
[cache]
listen = "{cache}"
file = "{file}"
upstream = ["{upstream}"]
app_start_device_s = 1.0
app_start_client_s = 1.0
app_starts_per_network_per_s = 1000.0
app_start_fetches_per_s = 1000.0
"""
_WARM: Final = """\
[[cache.warm]]
type = {number}
object = "Products"
name = "{name}"
ttl_s = {ttl_s}
"""


@attrs.define(eq=False)
class Outcome:
    cold: Act = attrs.field(factory=Act)
    warm: Act = attrs.field(factory=Act)
    moved: Act = attrs.field(factory=Act)
    hit: int = 0
    """Clients of the backend that was killed."""
    lost: list[str] = attrs.field(factory=list)


async def run_sessions(seconds: float) -> int:
    """Run for about `seconds`, print what happens, return 1 when a session was lost."""
    return await show(lambda stage, say: _Play(stage, seconds, say).run(), verdict)


class _Play:
    def __init__(self, stage: Stage, seconds: float, say: Say) -> None:
        self._stage = stage
        self._seconds = seconds
        self._say = say
        self._ttl_s = _TTL_SHARE * seconds
        self._processes: dict[Address, tuple[str, trio.Process]] = {}
        self._phones: list[Phone] = []
        self._outcome = Outcome()

    async def run(self) -> Outcome:
        master = await self._set_up()
        began = trio.current_time()
        outcome = self._outcome
        self._phones = [Phone(number, master, len(_TYPES)) for number in range(_DEVICES)]
        self._say(
            f"{_DEVICES} devices, {_BACKENDS} backends, and an upstream that takes {_UPSTREAM_S * 1000:g} ms, whose "
            f"data are good for {self._ttl_s:g} s at most. An app shows its logo for {LOGO_S:g} s and connects "
            "meanwhile; then it asks for its first screen"
        )
        async with trio.open_nursery() as nursery:
            await self._start_apps(nursery, outcome.cold)
            nursery.cancel_scope.cancel()
        self._say(f"first start: first screen in {_times(outcome.cold.screen_s)}")
        await trio.sleep(self._ttl_s)  # what was fetched for the first start is of no use any more
        async with trio.open_nursery() as nursery:
            await self._start_apps(nursery, outcome.warm)
            self._say(
                "second start, the data of the first are out of date: first screen in "
                f"{_times(outcome.warm.screen_s)}; {outcome.warm.resumed} sessions resumed, {outcome.warm.back} at the "
                "backend of before"
            )
            await self._kill()
            await trio.sleep_until(began + self._seconds)
            nursery.cancel_scope.cancel()
        outcome.lost += [f"{phone.device}: {phone.lost}" for phone in self._phones if phone.lost]
        return outcome

    async def _set_up(self) -> Address:
        """Start all processes; return the address of the master."""
        upstream, master, cache = free_address(), free_address(), free_address()
        backends = [(f"b{number + 1}", free_address()) for number in range(_BACKENDS)]
        config = _CONFIG.format(master=master, cache=cache, upstream=upstream, file=self._stage.folder / "cache.db")
        for number, name in enumerate(_TYPES, 1):
            config += _WARM.format(number=number, name=name, ttl_s=self._ttl_s)
        for name, address in backends:
            config += BACKEND.format(name=name, host=address.host, port=address.port)

        async def start(name: str, address: Address) -> None:
            options = ("--cache", str(cache), "--screen-types", ",".join(map(str, range(1, len(_TYPES) + 1))))
            self._processes[address] = name, await self._stage.start_server(name, address, *options)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stage.start_server, "upstream", upstream, "--products", str(_UPSTREAM_S))
            nursery.start_soon(self._stage.start_master, config, master)
            for name, address in backends:
                nursery.start_soon(start, name, address)
        await _until_all_up(master)
        return master

    async def _start_apps(self, nursery: trio.Nursery, act: Act) -> None:
        """Start the apps, one after the other; return when each shows its first screen, or cannot."""
        for phone in self._phones:
            phone.settled = trio.Event()
            nursery.start_soon(phone.run_app, act, self._outcome.moved)
            await trio.sleep(_SPREAD_SHARE * self._seconds / _DEVICES)
        for phone in self._phones:
            await phone.settled.wait()

    async def _kill(self) -> None:
        """Kill the backend with the most clients, and wait until these have gone on elsewhere."""
        at = [phone.backend for phone in self._phones]
        victim = max(self._processes, key=at.count)
        name, process = self._processes[victim]
        hit = [phone for phone in self._phones if phone.backend == victim]
        for phone in hit:
            phone.settled = trio.Event()
        process.send_signal(signal.SIGKILL)
        self._say(f"{name} is killed (SIGKILL), and with it the connections of {len(hit)} clients")
        with trio.move_on_after(WITHIN_S + SCREEN_S):
            for phone in hit:
                await phone.settled.wait()
        for phone in hit:
            if not phone.settled.is_set():
                phone.lost = "it found no other backend"
        self._outcome.hit, moved = len(hit), self._outcome.moved
        self._say(
            f"{moved.resumed} of them went on at others without a login, their first screen was there after "
            f"{_times(moved.ready_s)}"
        )


async def _until_all_up(master: Address) -> None:
    """Wait until the master sends clients to each of the backends."""
    caller = Caller("the demonstration", "demonstration@localhost", 1.0)
    with trio.move_on_after(START_S):
        while True:
            answer = await caller.ask(master, {"Want": ["Alternates"]})
            if isinstance(answer, Answer) and len(answer.places) == _BACKENDS:
                return
            await trio.sleep(0.05)
    raise DemoError("the master did not find all backends")


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "no time at all, as there was none"
    return f"{median_low(seconds) * 1000:.0f} ms (p50), {max(seconds) * 1000:.0f} ms (slowest)"


def verdict(outcome: Outcome) -> tuple[int, list[str]]:
    """Return the exit code and what there is to say at the end."""
    lines = []
    cold_s, warm_s = outcome.cold.screen_s, outcome.warm.screen_s
    if cold_s and warm_s:
        cold, warm = median_low(cold_s), median_low(warm_s)
        lines.append(
            f"first screen, p50: cold {cold * 1000:.1f} ms, warm {warm * 1000:.1f} ms, {cold / warm:.0f} times as fast"
        )
    resumed = outcome.warm.resumed + outcome.moved.resumed
    lines.append(
        f"{resumed} sessions resumed without a login, {outcome.moved.resumed} of them at another backend since theirs "
        f"was killed; {len(outcome.lost)} lost"
    )
    if outcome.warm.resumed:
        lines.append(
            f"sent back to the backend of before at the second start: {outcome.warm.back / outcome.warm.resumed:.0%}"
        )
    lines += [f"lost: {each}" for each in outcome.lost]
    incomplete = outcome.cold.incomplete + outcome.warm.incomplete + outcome.moved.incomplete
    if incomplete:
        lines.append(f"screens that lacked data: {incomplete}")
    failed = bool(outcome.lost) or outcome.moved.resumed < outcome.hit
    lines.append("this is not as it should be" if failed else "all is well")
    return int(failed), lines
