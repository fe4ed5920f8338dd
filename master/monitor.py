"""The monitor: the logical machine that watches one backend, and tells the pool what it finds.

By the tick of `timer` it connects where it is not connected; on a connection that is made, `timer_send` sends Auth and
UserCount; both answers, and nothing less, become a report, stamped with the moment of the question. All else is a
failure that renews nothing. One probe at a time, over one connection at a time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.machine import ChildMachine
from lambdamu.messages import LinkFault
from lambdamu.tcp_client import TCPClient
from lambdamu.timer import Timer
from master.config import Mode, ProbePolicy
from master.core.pool import Pool, State
from master.probe import Probe, Questions, is_answer

Connect = Callable[[], Awaitable[TCPClient]]
"""Make a connection, within the deadline that is set around the call, or raise LinkError."""


class ProbeObserver:
    """Hears what the probes find; this one does nothing with it."""

    def probed(self, name: str, failure: LinkError | None) -> None:
        """A probe ended, well or with `failure`."""

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        """A backend went over from working to not working or back, or does not work for another reason than before.

        Full and not full both work.
        """


@attrs.define(eq=False)
class _Link:
    """A kept connection."""

    client: TCPClient
    renew_at: float
    authenticated: bool = False
    good: bool = False
    """It has carried a good report."""
    out_of_step: bool = False
    """An answer came that was not asked for, so the next one could no longer be told from an older one."""


_JITTER: Final = 0.01
"""Each tick is moved by up to this part of the period."""
_RENEW_FROM: Final = 0.75
_WORKING: Final = frozenset({State.READY, State.FULL, State.NO_WEIGHT})


class Monitor(ChildMachine):
    """Watches the backend `name`; `first_s` seconds after its start it probes for the first time."""

    def __init__(
        self,
        name: str,
        *,
        policy: ProbePolicy,
        questions: Questions,
        pool: Pool,
        connect: Connect,
        first_s: float,
        rng: random.Random,
        observer: ProbeObserver,
    ) -> None:
        super().__init__(name)
        self._policy = policy
        self._questions = questions
        self._pool = pool
        self._connect = connect
        self._first_s = first_s
        self._rng = rng
        self._observer = observer
        self._link: _Link | None = None
        self._working: bool | None = None
        self._why = ""
        """Why it does not work, as it was told last."""
        self._reconnected_at = -float("inf")

    async def run(self) -> None:
        # The interval is the longest time between two questions, jitter included: so a report cannot go stale while
        # its successor is answered within the timeout.
        period_s = self._policy.interval_s / (1 + 2 * _JITTER)
        timer = Timer(period_s, rng=self._rng, first_s=self._first_s, jitter=_JITTER)
        try:
            while True:
                await self._hold_until(timer.next_tick)
                await timer.wait()
                await self._renew()
                await self._probe()
        finally:
            await self._disconnect()

    async def _hold_until(self, tick: float) -> None:
        """Watch the kept connection until `tick`; where it breaks, probe once more at once."""
        while self._link is not None and trio.current_time() < tick:
            with trio.CancelScope(deadline=tick):
                await self._watch(self._link)
            if self._link is None:
                await self._reconnect()

    async def _watch(self, link: _Link) -> None:
        """Read until the connection breaks. Nothing is owed: news may come, but no answers."""
        try:
            while True:
                batch = await link.client.next_batch()
                link.out_of_step = link.out_of_step or any(map(is_answer, batch))
        except (LinkError, RemoteProtocolError) as exc:
            await self._lose(exc)

    async def _lose(self, why: LinkError | RemoteProtocolError) -> None:
        self._report_state(self._pool.record_lost(trio.current_time(), self.name), _as_link_error(why))
        await self._disconnect()

    async def _reconnect(self) -> None:
        """Probe at once, but no more often than the interval: what comes and goes without end is probed by the tick."""
        now = trio.current_time()
        if now - self._reconnected_at >= self._policy.interval_s:
            self._reconnected_at = now
            await self._probe()

    async def _renew(self) -> None:
        link = self._link
        if link is not None and (link.out_of_step or trio.current_time() >= link.renew_at):
            await self._disconnect()

    async def _probe(self) -> None:
        """Ask once, whole within the timeout, and tell the pool."""
        kept = self._link is not None and self._link.good
        failure = await self._ask_within_timeout()
        if failure is not None and kept and failure.why == LinkFault.CLOSED:
            # Not an answer of the backend that runs now: it may have been started anew under the kept connection.
            await self._lose(failure)
            await self._reconnect()
            return
        self._observer.probed(self.name, failure)
        if failure is not None:
            self._report_state(self._pool.record_failure(trio.current_time(), self.name), failure)
        if failure is not None or self._policy.mode is Mode.RECONNECT:
            await self._disconnect()

    async def _ask_within_timeout(self) -> LinkError | None:
        with trio.move_on_after(self._policy.timeout_s):
            try:
                if self._link is None:
                    self._link = await self._new_link()
                await self.timer_send(self._link)
            except (LinkError, RemoteProtocolError) as exc:
                return _as_link_error(exc)
            return None
        if self._link is None:
            return LinkError(LinkFault.CONNECT_TIMEOUT, f"not connected within {self._policy.timeout_s:g} s")
        return LinkError(LinkFault.TIMEOUT, f"no answer within {self._policy.timeout_s:g} s")

    async def _new_link(self) -> _Link:
        client = await self._connect()
        # Links that were made together are not renewed together.
        return _Link(client, trio.current_time() + self._policy.renew_s * self._rng.uniform(_RENEW_FROM, 1.0))

    async def timer_send(self, link: _Link) -> None:
        """Send the questions and take in the answers; a good one goes to the pool. Raise when it is not good."""
        asked_at = trio.current_time()
        probe = Probe(needs_task=not link.authenticated)
        questions = self._questions.count if link.authenticated else self._questions.auth + self._questions.count
        await link.client.send_now(questions)
        while not probe.complete:
            probe.take(await link.client.next_batch())
        link.authenticated = link.good = True
        assert probe.count is not None  # noqa: S101 - what `complete` means
        address = link.client.address
        state = self._pool.record_report(
            trio.current_time(), self._rng, self.name, probe.count, asked_at, (address.host, address.port)
        )
        self._report_state(state, None)

    def _report_state(self, state: State, why: LinkError | None) -> None:
        working = state in _WORKING
        # A good answer that is not the last of `rise` is no news yet.
        told = "" if why is None else why.why
        if (working != self._working and (working or told)) or (not working and told and told != self._why):
            self._working, self._why = working, told
            self._observer.became(self.name, state, why)

    async def _disconnect(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.client.aclose()


def _as_link_error(exc: LinkError | RemoteProtocolError) -> LinkError:
    if isinstance(exc, LinkError):
        return exc
    return LinkError(LinkFault.NOT_THE_PROTOCOL, str(exc))
