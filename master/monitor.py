"""The monitor: the logical machine that watches one backend, and tells the pool what it finds.

By the tick of its timer it connects where it is not connected; on a connection that is made, `timer_send` sends Auth
and UserCount; both answers, and nothing less, become a report, stamped with the moment of the question. All else is a
failure that renews nothing. One probe at a time, over one connection at a time.

Each has a task of its own, and all of a probe but the look-up of a name is done in calls from the poller: a task that
waits twice a probe would cost more than the probe. It is long because each answer, and each way to fail, is a function.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

import trio

from lambdamu.client_tls import TlsPeer
from lambdamu.datapack import Decoder
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.link import Link
from lambdamu.machine import ChildMachine
from lambdamu.messages import Batch, LinkFault
from lambdamu.timer import Ticks
from master.config import Mode
from master.core.member import WORKING
from master.core.pool import State, Wish
from master.load_talk import LoadTalk
from master.probe import Probe, is_answer
from master.probing import Probing, as_link_error
from master.usual_answer import UsualAnswer


class _Step(Enum):
    """Where the monitor stands.

    RESTING, no connection       --tick--> CONNECTING --connected--> ASKING --answers--> HOLDING, or RESTING (reconnect)
    HOLDING, a connection, quiet --tick--> ASKING
    CONNECTING, ASKING           --deadline, or anything wrong--> RESTING
    HOLDING                      --the connection breaks--> CONNECTING at once, at most once an interval
    """

    RESTING = 0
    CONNECTING = 1
    ASKING = 2
    HOLDING = 3


_JITTER: Final = 0.01
"""Each tick is moved by up to this part of the period."""
_RENEW_FROM: Final = 0.75
_ROUNDING: Final = 1e-6
"""The quotient of an interval that is a multiple of the grid differs from a whole number in its last bits."""
_WORKING: Final = WORKING | {State.DRAIN}


class Monitor(ChildMachine):
    """Watches the backend `name`; `first_s` seconds after its start it probes for the first time.

    `load`: whether it also asks for the backend's own word of its load.
    """

    def __init__(self, name: str, link: Link, *, first_s: float, probing: Probing, load: bool = False) -> None:
        super().__init__(name)
        self._policy = probing.policy
        self._questions = probing.questions
        self._limits = probing.limits
        self._pool = probing.pool
        self._poller = probing.poller
        self._rng = probing.rng
        self._observer = probing.observer
        self._link = link
        self._link.user = self
        self._talk = LoadTalk(name, probing, wanted=load)
        self._first_s = first_s
        self._ticks = self._make_ticks(0.0)
        self._step = _Step.RESTING
        self._due_at = -float("inf")
        """When `_due` is meant; the poller calls it for moments that are outdated too."""
        self._reconnected_at = -float("inf")
        self._working: bool | None = None
        self._why = ""
        """Why it does not work, as it was told last."""
        # Of the connection that is there:
        self._decoder = Decoder(self._limits)
        self._renew_at = 0.0
        self._authenticated = False
        self._good = False
        """It has carried a good report."""
        self._out_of_step = False
        """An answer came that was not asked for, so the next one could no longer be told from an older one."""
        # Of the probe that is under way:
        self._asked_at = 0.0
        self._probe = Probe(needs_task=True)
        self._usual = {asked: UsualAnswer(needs_task=asked, limits=self._limits) for asked in (True, False)}

    async def run(self) -> None:
        self._ticks = self._make_ticks(trio.current_time() + self._first_s)
        try:
            self._wait_until(self._ticks.next)
            await self._link.run()
        finally:
            self.close()

    def close(self) -> None:
        self._due_at = float("inf")
        self._link.close()

    def heed_operator(self, now: float) -> None:
        """Hear that the operator wants something else: in maintenance it is let alone, at once."""
        if self._is_let_alone(now):
            self._talk.begin(now)
            self._disconnect()
            self._working, self._why = None, ""
            self._wait_until(self._ticks.next)

    def ask_load(self, now: float, *, wanted: bool) -> None:
        """Ask for the load from now on, or not."""
        self._talk.begin(now, wanted=wanted)

    def adopt_tls(self, now: float, tls: TlsPeer | None) -> None:
        """Connect by it from now on; a connection that is there serves to the next tick."""
        self._link.tls = tls
        self._out_of_step = True
        if self._step is _Step.CONNECTING:
            self._disconnect()
            self._begin_probe(now)

    def adopt(self, now: float, probing: Probing) -> None:
        """Probe in another way from the next tick on; with other questions, over a new connection."""
        if probing.questions != self._questions:
            self._out_of_step = True
        before, self._policy, self._questions = self._policy, probing.policy, probing.questions
        if before.interval_s != self._policy.interval_s:
            self._first_s = self._rng.random() * self._policy.interval_s
            self._ticks = self._make_ticks(now + self._first_s)
            if self._step in (_Step.RESTING, _Step.HOLDING):
                self._wait_until(self._ticks.next)

    def _make_ticks(self, first: float) -> Ticks:
        # The interval is the longest time between two questions, jitter included: so a report cannot go stale while
        # its successor is answered within the timeout.
        grid_s = self._poller.grid_s
        period_s = _on_grid(self._policy.interval_s, grid_s) / (1 + 2 * _JITTER)
        return Ticks(first, period_s, rng=self._rng, jitter=_JITTER, grid_s=grid_s)

    def _is_let_alone(self, now: float) -> bool:
        return self._pool[self.name].admin.at(now).wish is Wish.MAINT

    def _wait_until(self, moment: float) -> None:
        self._due_at = moment
        self._poller.at(moment, self._due)

    def _due(self, now: float) -> None:
        """Hear that a moment has come: the tick, or the deadline of the probe that is under way."""
        if now < self._due_at:
            return
        if self._step is _Step.CONNECTING:
            self._fail(now, self._link.why_not_connected())
        elif self._step is _Step.ASKING:
            self._fail(now, LinkError(LinkFault.TIMEOUT, f"no answer within {self._policy.timeout_s:g} s"))
        else:
            self._ticks.take(now)
            if self._is_let_alone(now):
                self.heed_operator(now)
                return
            self._talk.end(now)
            if self._out_of_step or now >= self._renew_at or self._policy.mode is Mode.RECONNECT:
                self._disconnect()
            self._begin_probe(now)

    def _begin_probe(self, now: float) -> None:
        """Ask once; all of it has the timeout."""
        deadline = now + self._policy.timeout_s
        self._wait_until(deadline)
        try:
            if self._link.address is None:
                self._step = _Step.CONNECTING
                if not self._link.open(now, deadline):
                    return
                self._new_connection(now)
            self.timer_send(now)
        except LinkError as exc:
            self.broken(now, exc)

    def _new_connection(self, now: float) -> None:
        self._decoder = Decoder(self._limits)
        # Links that were made together are not renewed together.
        self._renew_at = now + self._policy.renew_s * self._rng.uniform(_RENEW_FROM, 1.0)
        self._authenticated = self._good = self._out_of_step = False

    def timer_send(self, now: float) -> None:
        """Send the questions. Raise LinkError."""
        self._step = _Step.ASKING
        self._asked_at = now
        self._probe = Probe(needs_task=not self._authenticated)
        self._link.send(self._questions.count if self._authenticated else self._questions.all)

    # What the link tells

    def connected(self, now: float) -> None:
        self._new_connection(now)
        try:
            self.timer_send(now)
        except LinkError as exc:
            self.broken(now, exc)

    def received(self, now: float, data: bytes) -> None:
        usual = None
        if self._step is _Step.ASKING and self._probe.count is None and not self._decoder.pending:
            usual = self._usual[self._probe.needs_task]
            count = usual.count_in(data)
            if count is not None:
                self._succeed(now, count)
                return
        probe = self._probe
        self._decode(now, data)
        if usual is not None and probe is self._probe and probe.count is not None:
            usual.learn(data, probe.count)

    def _decode(self, now: float, data: bytes) -> None:
        try:
            for batch in self._decoder.feed(data):
                self._take(now, batch)
                if self._link.address is None:
                    return  # all that was wanted of this connection
        except (LinkError, RemoteProtocolError) as exc:
            self.broken(now, as_link_error(exc))

    def broken(self, now: float, why: LinkError) -> None:
        """Hear that the connection is of no more use: a failure of the probe under way, else news of the backend."""
        self._talk.end(now)
        if self._step is _Step.HOLDING and self._policy.mode is Mode.RECONNECT:
            self._disconnect()
        elif self._step is _Step.HOLDING or (self._good and why.why == LinkFault.CLOSED):
            # No answer of the backend that runs now: it may have been started anew under the kept connection.
            self._report_state(self._pool.record_lost(now, self.name), why)
            self._disconnect()
            self._reconnect(now)
        else:
            self._fail(now, why)

    def _take(self, now: float, batch: Batch) -> None:
        """Take in what the backend says: the answers, or news where nothing is owed."""
        batch = self._talk.listen(now, batch)
        if self._step is not _Step.ASKING:
            self._disconnect_early()
            self._out_of_step = self._out_of_step or any(map(is_answer, batch))
            return
        self._probe.take(batch)
        if self._probe.complete and self._probe.count is not None:
            self._succeed(now, self._probe.count)

    # What comes of a probe

    def _succeed(self, now: float, count: int) -> None:
        address = self._link.address
        assert address is not None  # noqa: S101 - it has just said something
        self._authenticated = self._good = True
        self._step = _Step.HOLDING
        state = self._pool.record_report(now, self._rng, self.name, count, self._asked_at, (address.host, address.port))
        self._report_state(state, None)
        self._observer.probed(self.name, None, now - self._asked_at)
        self._wait_until(self._ticks.next)
        question = self._talk.question()
        if question is not None:
            try:
                self._link.send(question)
            except LinkError as exc:
                self.broken(now, exc)
        self._disconnect_early()

    def _disconnect_early(self) -> None:
        if self._policy.mode is Mode.RECONNECT and self._step is _Step.HOLDING and not self._talk.owed:
            self._disconnect()

    def _fail(self, now: float, why: LinkError) -> None:
        self._observer.probed(self.name, why, 0.0)
        self._report_state(self._pool.record_failure(now, self.name), why)
        self._disconnect()
        self._wait_until(self._ticks.next)

    def _reconnect(self, now: float) -> None:
        """Probe at once, but no more often than the interval: what comes and goes without end is probed by the tick."""
        if now - self._reconnected_at >= self._policy.interval_s:
            self._reconnected_at = now
            self._begin_probe(now)
        else:
            self._wait_until(self._ticks.next)

    def _disconnect(self) -> None:
        self._link.close()
        self._step = _Step.RESTING
        self._good = self._out_of_step = False

    def _report_state(self, state: State, why: LinkError | None) -> None:
        if state is State.EJECTED:
            return  # its clients keep it out, not this; a failure is news when it takes it down
        working = state in _WORKING
        # A good answer that is not the last of `rise` is no news yet.
        told = "" if why is None else why.why
        if (working != self._working and (working or told)) or (not working and told and told != self._why):
            self._working, self._why = working, told
            self._observer.became(self.name, state, why)


def _on_grid(interval_s: float, grid_s: float) -> float:
    """Return the longest whole multiple of the grid in an interval: ticks on the grid are no further apart then."""
    return math.floor(interval_s / grid_s + _ROUNDING) * grid_s if grid_s else interval_s
