"""The waiting room of a master: the queue, its desk, its estimates and its control loop, and what makes them go on.

pool -> survey -> room, control loop -> queue -> desk -> clients
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.networks import Networks
from lambdamu.timer import Timer
from master.config_queue import Control as Steering
from master.config_queue import QueueConfig
from master.core.pool import Pool
from master.queue.control import Control, ControlPolicy, Plan, Steered
from master.queue.estimates import Estimates, Outlook
from master.queue.numbers import Numbers
from master.queue.policy import Mode, QueuePolicy
from master.queue.polls import PollPolicy
from master.queue.queues import Queues
from master.queue.ticket_text import SECRET_BYTES, TicketText, ticket_secrets
from master.told import AnswerPolicy
from master.waiting.desk import Desk
from master.waiting.orders import WHOLE, Order, obey
from master.waiting.survey import Survey
from master.waiting.turns import TurnKeys, Turns

if TYPE_CHECKING:
    from lambdamu.keys import Keys
    from master.core.member import Member
    from master.kept import Kept

_SETTLE_S: Final = 0.1
_LOOK_S: Final = 1.0
_SILENT_S: Final = 5.0
"""A backend that does not tell its CPU by then tells none."""
_PART: Final = 500
"""So many backends are looked at in one go: a millisecond."""
_SETTLE_PER_BACKEND_S: Final = 5e-5
"""All of them are looked at less often where they are many: that is to take one part in twenty of the time."""


class WaitingRoom:
    """Give it numbers and a secret by a keeper (`master.waiting.keeper`) before anybody asks.

    `keys`: what stands in `keys_file`. `wall` gives Unix seconds, read once for the order of places.
    """

    def __init__(
        self,
        config: QueueConfig,
        pool: Pool,
        rng: random.Random,
        *,
        networks: Networks,
        times: AnswerPolicy,
        keys: Keys | None,
        clock: Callable[[], float] = trio.current_time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        now = clock()
        self.config = config
        self.orders: dict[str, Order] = {}
        self.estimates = Estimates(rng, PollPolicy(config.max_polls_per_s))
        self.queues = Queues(now, config, self.estimates, Numbers(), wall() - now)
        self.turns = Turns(TurnKeys.of(keys), config.turn_s, wall)
        self.control = Control(_control_policy(config))
        self.survey = Survey(config.target_load)
        """The last one."""
        self.plan = Plan(None, None, Steered.NO_NEWS)
        self.asks_cpu: frozenset[str] = frozenset()
        """The names of the backends that are asked for their CPU."""
        self._silent_until = math.inf
        self.outlooks: Mapping[str, Outlook] = {}
        """How each queue stood at the last look, and what it was to get."""
        self.kept: Kept | None = None
        """Who keeps it; None where it ends with the process."""
        self.busy = 0.0
        """Which part of the last second the process has worked."""
        self.on_changed: Callable[[], object] = lambda: None
        """Is called when an operator has changed something that is to last."""
        self._kept_secrets: Sequence[bytes] = (random.SystemRandom().randbytes(SECRET_BYTES),)
        self._keys = keys
        self._pool = pool
        self._rng = rng
        self._clock = clock
        self.desk = Desk(
            self.queues,
            pool,
            rng,
            turns=self.turns,
            texts=TicketText(self._kept_secrets),
            networks=networks,
            times=times,
            clock=clock,
        )
        self.desk.max_held = config.max_held
        if keys is not None:
            self._write_tickets_anew()

    @property
    def policy(self) -> QueuePolicy:
        """What is at work: as configured, and as operators want it."""
        return self.queues.policy

    # What operators do.

    def adopt(self, now: float, config: QueueConfig) -> None:
        """Go over to another configuration."""
        self.config = config
        self.turns.turn_s = config.turn_s
        self.desk.max_held = config.max_held
        self.estimates.calendar.policy = PollPolicy(config.max_polls_per_s)
        self._apply(now)

    def adopt_keys(self, keys: Keys | None) -> None:
        """Sign with the first private key from now on; tickets and turns by the others are still taken."""
        self._keys = keys
        self.turns.keys = TurnKeys.of(keys)
        self._write_tickets_anew()

    def adopt_secrets(self, secrets: Sequence[bytes]) -> None:
        """Take the secrets of the store for tickets; the first signs them where there is no key."""
        self._kept_secrets = secrets
        self._write_tickets_anew()

    def order(self, now: float, queue: str, order: Order | None) -> None:
        """Do what an operator wants of one queue, or of the whole by `WHOLE`; None: as configured again."""
        if order is None:
            self.orders.pop(queue, None)
        else:
            self.orders[queue] = order.over(self.orders.get(queue))
        self._apply(now)
        self.on_changed()

    def restore_orders(self, now: float, orders: Mapping[str, Order]) -> None:
        """Take in what operators wanted before a restart."""
        self.orders = {**orders, **self.orders}
        self._apply(now)

    def _apply(self, now: float) -> None:
        self.queues.set(now, obey(self.config, self.orders))
        self.control.policy = self.control.gauge.policy = _control_policy(self.config, self.policy.target_load)
        whole = self.orders.get(WHOLE)
        # Who sets a rate by hand knows better than the loop.
        by_hand = whole is not None and whole.per_minute is not None and self.policy.per_minute is not None
        self.control.override((self.policy.per_minute or 0.0) / 60 if by_hand else None)
        self._estimate(now)  # or people would be told for a second what is no longer true

    def _write_tickets_anew(self) -> None:
        secrets = list(ticket_secrets(self._keys.signers)) if self._keys is not None else []
        self.desk.texts = TicketText([*secrets, *self._kept_secrets])

    # What makes it go on.

    async def run(self) -> None:
        """Call people as there is room for them, and look at all queues every second, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._settle)
            nursery.start_soon(self._look)

    async def _settle(self) -> None:
        due = self._clock()
        while True:
            taken = self.queues.tally.claimed
            survey = Survey(self.policy.target_load, self.asks_cpu)
            for number, part in enumerate(_parts(list(self._pool))):
                if number:
                    await trio.lowlevel.checkpoint()
                now = self._clock()
                for member in part:
                    survey.add(member, now)
            self.settle(self._clock(), survey, self.queues.tally.claimed - taken)
            due = max(due + max(_SETTLE_S, survey.wanted * _SETTLE_PER_BACKEND_S), self._clock())
            await trio.sleep_until(due)

    def settle(self, now: float, survey: Survey, taken: int = 0) -> None:
        """Call the next by a survey; `taken`: who was let in while it was made."""
        self.survey = survey
        self._rule(now)
        open_ = self._pool.roll.closed is None
        per_minute = None if self.plan.per_s is None else 60 * self.plan.per_s
        room = survey.room(open_=open_, n_minus_1=self.policy.n_minus_1, taken=taken, per_minute=per_minute)
        self.desk.settle(now, room)

    def _rule(self, now: float) -> None:
        """Ask the loop for its rate. Where no backend tells its CPU the count of users is the limit: it is exact.

        Where one is asked for it and has just come up, it is waited for: an empty house with a crowd at its door may be
        smaller than it is taken for.
        """
        plan, told = self.control.plan(now), self.control.gauge.confirmed is not None
        if not self.survey.silent:
            self._silent_until = math.inf
        elif self._silent_until == math.inf:
            self._silent_until = now + _SILENT_S
        awaited = self.survey.silent > 0 and now < self._silent_until
        steers = self.config.control is Steering.ON and self.survey.places is not None
        steers = steers and (self.survey.cpu is not None or awaited)
        if plan.by is Steered.MANUAL or (steers and told):
            self.plan = plan
        else:
            self.plan = attrs.evolve(plan, per_s=0.0 if steers else None)

    async def _look(self) -> None:
        timer, worked, at = Timer(_LOOK_S, rng=self._rng), time.process_time(), self._clock()
        while True:
            await timer.wait()
            now, works = self._clock(), time.process_time()
            if now > at:
                self.busy = min(1.0, (works - worked) / (now - at))
            worked, at = works, now
            self.look(now)

    def look(self, now: float) -> None:
        """Have the loop learn, and the estimates too."""
        stay_s = self._pool.clock.mean_s
        news = self.survey.news(stay_s, now - self.control.policy.cpu_lag_s)
        if news is not None and self.config.control is not Steering.OFF:
            self.control.learn(news, waiting=self.queues.book.waiting > 0)
        self._estimate(now)

    def _estimate(self, now: float) -> None:
        self._rule(now)
        self.outlooks = self._outlooks()
        self.estimates.look(now, self.outlooks, self.busy)

    def _let_in_by_leavers(self) -> float | None:
        """Return how many are let in while all who are there leave; None where there are free places for all."""
        goal, free, waiting = self.plan.goal, self.queues.limits.spare, self.queues.book.waiting
        if goal is None or free is None or not waiting or free >= waiting:
            return None
        return goal * waiting / (waiting - max(free, 0))

    def _outlooks(self) -> dict[str, Outlook]:
        """Return how each queue stands, and what it is to get of what is planned."""
        lines = list(self.queues.lines)
        open_ = self.survey.serving and self._pool.roll.closed is None
        if self.policy.mode in (Mode.HOLD, Mode.CLOSED) or not open_:  # nobody knows when it will be otherwise
            return {line.queue: Outlook(len(line), 0.0) for line in lines}
        shares = sum(line.template.share for line in lines if len(line))
        steady_per_s = None
        if (let_in := self._let_in_by_leavers()) is not None:
            stay_s = self._pool.clock.seen_s
            if stay_s is None:
                return {line.queue: Outlook(len(line), known=False) for line in lines}
            steady_per_s = let_in / stay_s
        rates = [rate for rate in (steady_per_s, _per_s(self.policy.per_minute), self.plan.per_s) if rate is not None]
        return {
            line.queue: Outlook(
                len(line),
                _least(
                    min(rates) * line.template.share / shares if rates and len(line) else None,
                    _per_s(line.template.per_minute),
                ),
            )
            for line in lines
        }


def _per_s(per_minute: float | None) -> float | None:
    return None if per_minute is None else per_minute / 60


def _least(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate is not None), default=None)


def _parts(members: list[Member]) -> Iterable[list[Member]]:
    for at in range(0, len(members), _PART):
        yield members[at : at + _PART]


def _control_policy(config: QueueConfig, target_load: float | None = None) -> ControlPolicy:
    target = config.target_load if target_load is None else target_load
    return ControlPolicy(target_load=target, shadow=config.control is not Steering.ON)
