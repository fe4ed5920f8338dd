"""What a client that wants a connection does next. Pure: what happened goes in, the next step comes out.

    plan = Plan(now, identity, masters, peers, rng)
    match plan.next(now):
        Ask     -> plan.answered(now, step, answer)      or plan.ask_failed(now, step, failure)
        Go      -> plan.logged_in(now, step)             or plan.login_failed(now, step, failure)
        Pause   -> come back after for_s
        GiveUp  -> raise its error

Whoever takes an Ask or a Go gives its permit back, as ignored where the step was cancelled.

Masters are asked one after the other until one answers: first the one that answered last, if that was a short time ago,
for it alone knows where it sent this client; the others in an order of chance. Where it sends to is tried first, then
its alternates. When no master or no place is left, or a master says that there is nowhere to go, a pause follows, and
then the next round. Who failed often is passed over, which costs nothing. Every ask but the first, and every place but
the first of an answer, is a retry and is paid for from the budget. It ends with a connection, with a word that no
further ask can change, when the budget is spent, or when the next step would come after the deadline.

While a queue holds the client it asks when it was told, neither earlier nor, by chance or by a pause that has grown,
later: the master spreads the polls of all who wait by that. Such a poll is no retry, and the deadline moves on with
each: it bounds what comes after the last one. The wait as a whole is bounded by `wait_s` alone.

It is some lines longer than a page because all steps of one plan change the same state.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final

import attrs

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, explain
from lambdamu.breaker import Breaker, Permit, Refused, Why
from lambdamu.errors import ConnectError, DeniedError, NoServerError, UnreachableError
from lambdamu.identity import FailedPlace, Identity
from lambdamu.messages import LinkFault, Result
from lambdamu.peers import Peers

_LEAST_PAUSE_S: Final = 0.001
"""Chance may say 0; with nobody to call, that would be a loop without end."""
_LEAST_POLL_S: Final = 0.1
"""Polls of a queue cost no retries, so whatever a master says they are not more frequent."""
_LONGEST_POLL_S: Final = 3600.0
"""And whatever it says, nobody sleeps for good: all who wait ask once an hour."""
_TURNED_S: Final = 1.0
"""Whoever goes to the background and comes back says so at once, but not twice within this time."""
_TOLD: Final = 8
"""So many failures an error tells of, the newest of each peer."""


@attrs.frozen
class Ask:
    """Ask this master, with this `Data`; `failed`: what it tells of."""

    master: Address
    data: dict[str, Any]
    failed: tuple[FailedPlace, ...]
    permit: Permit


@attrs.frozen
class Go:
    """Log in to this backend. `name`: what the master calls it; `turn`: the right to connect, to be shown there."""

    backend: Address
    name: str | None
    turn: str | None = attrs.field(repr=False)
    permit: Permit


@attrs.frozen
class Pause:
    for_s: float


@attrs.frozen
class GiveUp:
    error: ConnectError


Step = Ask | Go | Pause | GiveUp


class Plan:
    """One attempt to get a connection, until `peers.policy.within_s` seconds from `now`, or from its last poll."""

    def __init__(
        self, now: float, identity: Identity, masters: Sequence[Address], peers: Peers, rng: random.Random
    ) -> None:
        self._identity = identity
        self._peers = peers
        self._rng = rng
        self.deadline = now + peers.policy.within_s
        """When it is over. Later after each `answered` while it waits in a queue."""
        self._masters = list(dict.fromkeys(masters))
        self._usable = self._masters.copy()
        self._round: list[Address] = []
        """Masters still to be asked before the next pause."""
        self._asked = False
        """Whether anybody was, in this round."""
        self._places: deque[tuple[Address, str | None]] = deque()
        """Where the last answer sends to, and until when that holds."""
        self._places_until = 0.0
        self._turn: str | None = None
        """What is to be shown at the first place; it holds nowhere else."""
        self._resumes = now
        self._asked_at = now
        self._said_away = False
        """What a master has heard last of the application's being in the background."""
        self.in_line = False
        """Whether a queue holds the client, as far as it was told."""
        self._wait_until: float | None = None
        """Until when it waits at most; None: it has not begun to."""
        self._pauses = 0
        self._asks_cost = False
        """Every ask but the first of a plan is paid for."""
        self._goes_cost = False
        """And so is every place but the first of an answer."""
        self._failures: OrderedDict[Address, str] = OrderedDict()
        self._refusal: tuple[Address, Answer] | None = None
        self._error: ConnectError | None = None if masters else UnreachableError("there is no master to ask")
        peers.budget.deposit(now)

    def next(self, now: float) -> Step:
        while self._error is None:
            due = self._due()
            if now < due:
                return Pause(due - now)
            step = self._go(now) if self._places else self._ask(now)
            if step is not None:
                return step
        return GiveUp(self._error)

    def answered(self, now: float, step: Ask, answer: Answer) -> None:
        step.permit.succeeded(now)
        self._identity.heard(now, step.master, step.failed, answer)
        self._said_away = "Away" in step.data
        self.in_line = self._identity.ticket is not None and (self.in_line or answer.place is not None)
        if answer.endpoint is not None:
            self.in_line = False
            self._refusal = None
            self._goes_cost = False
            self._turn = answer.turn
            self._places.extend(answer.places)
            self._places_until = self.deadline if answer.ttl_s is None else now + answer.ttl_s
            return
        self._refusal = step.master, answer
        if answer.result is Result.DENIED and answer.retry_after_s is None:
            self._error = _refused(DeniedError, step.master, answer)
        elif answer.place is not None:
            self._wait(now, answer.place.retry_after_s)
        elif answer.retry_after_s is not None and answer.result is not Result.NO_SERVER:
            self._pause(now, max(_LEAST_PAUSE_S, answer.retry_after_s), answer.retry_after_s)
        else:
            self._fall_back(now, answer.retry_after_s or 0.0)

    def ask_failed(self, now: float, step: Ask, failure: Failure) -> None:
        _give_back(step.permit, now, failure)
        self._note(step.master, failure)
        if self._refusal is not None and self._refusal[1].place is not None:
            self._refusal = None  # what keeps it from waiting on is worth telling, not that it has waited
        if failure.final:
            self._usable.remove(step.master)
        if not self._usable:
            self._give_up("")
        elif not self._round:
            self._fall_back(now)

    def logged_in(self, now: float, step: Go) -> None:
        step.permit.succeeded(now)

    def login_failed(self, now: float, step: Go, failure: Failure) -> None:
        _give_back(step.permit, now, failure)
        self._note(step.backend, failure)
        if failure.why != LinkFault.NO_DESCRIPTOR:  # that is no news of the backend
            self._identity.failed.append(FailedPlace(step.backend.host, step.backend.port, failure.why, now))
        if not self._places:
            self._fall_back(now)

    def timed_out(self) -> ConnectError:
        """Return the error for a deadline that passed during a step."""
        self._give_up(f"there was no connection within {self._peers.policy.within_s:g} s")
        return self._error or UnreachableError("")

    def _due(self) -> float:
        """Return until when it pauses.

        A queue is told at once that the application goes to the background, while that is still possible, and that it
        has come back: the clock of a device that slept may have stood still, so what is left of a pause says nothing.
        """
        turned = self.in_line and self._identity.away != self._said_away
        return min(self._resumes, self._asked_at + _TURNED_S) if turned else self._resumes

    def _ask(self, now: float) -> Step | None:
        self._identity.forget(now)
        if not self._round:
            self._round, self._asked = self._order(), False
        master = self._round.pop()
        permit = self._permit(now, self._peers.masters.of(master), paid=self._asks_cost)
        if permit is not None:
            self._asked = self._asks_cost = True
            self._asked_at = now
            return Ask(master, self._identity.data(), tuple(self._identity.failed), permit)
        if not self._round:
            self._fall_back(now, 0.0 if self._asked else self._opens_in_s(now))
        return None

    def _order(self) -> list[Address]:
        """Return the masters of a round, the first to be asked at the end."""
        order = self._rng.sample(self._usable, len(self._usable))
        return sorted(order, key=lambda master: master == self._identity.master)

    def _go(self, now: float) -> Step | None:
        backend, name = self._places.popleft()
        turn, self._turn = self._turn, None
        if now > self._places_until and self._goes_cost:  # the best is tried anyhow: it was named a moment ago
            self._places.clear()
            self._fall_back(now)
            return None
        permit = self._permit(now, self._peers.backends.of(backend), paid=self._goes_cost)
        if permit is not None:
            self._goes_cost = True
            return Go(backend, name, turn, permit)
        if not self._places:
            self._fall_back(now)
        return None

    def _permit(self, now: float, breaker: Breaker, *, paid: bool) -> Permit | None:
        """Return a permit, from the budget where it is to be paid for; None when there is none to be had."""
        permit = breaker.acquire(now, self._rng)
        if isinstance(permit, Refused):
            return None
        if paid and not self._peers.budget.withdraw(now):
            permit.ignored(now)
            self._give_up("there were too many retries")
            return None
        return permit

    def _opens_in_s(self, now: float) -> float:
        """Return when the first master may be asked again. How long the trial of another takes nobody knows."""
        refusals = [self._peers.masters.of(master).refusal(now) for master in self._usable]
        return min(each.retry_after_s if each is not None and each.why is Why.OPEN else 0.0 for each in refusals)

    def _fall_back(self, now: float, at_least_s: float = 0.0) -> None:
        """Pause before the next round."""
        wait_s = max(at_least_s, _LEAST_PAUSE_S, self._peers.policy.backoff.wait_s(self._pauses, self._rng))
        self._pauses += 1
        self._pause(now, wait_s, at_least_s or None)

    def _wait(self, now: float, retry_after_s: float) -> None:
        """Wait in a queue until the next poll."""
        if self._wait_until is None:
            self._wait_until = now + self._peers.policy.wait_s
        for_s = min(max(retry_after_s, _LEAST_POLL_S), _LONGEST_POLL_S)
        self.deadline = min(now + for_s, self._wait_until) + self._peers.policy.within_s
        self._usable = self._masters.copy()  # whoever did not speak the wire may be another by now
        self._pauses, self._asks_cost = 0, False
        self._pause(now, for_s, retry_after_s, self._wait_until)

    def _pause(self, now: float, for_s: float, told_s: float | None, until: float = math.inf) -> None:
        self._round.clear()
        self._resumes = now + for_s
        if self._resumes >= min(self.deadline, until):
            self._give_up("", told_s)

    def _note(self, peer: Address, failure: Failure) -> None:
        self._failures.pop(peer, None)
        self._failures[peer] = failure.text
        if len(self._failures) > _TOLD:
            self._failures.popitem(last=False)

    def _give_up(self, why: str, retry_after_s: float | None = None) -> None:
        if self._error is not None:
            return
        if self._refusal is not None:
            self._error = _refused(NoServerError, *self._refusal)
            return
        told = [why, *self._failures.values()]
        text = "; ".join(each for each in told if each) or "nobody may be called again yet"
        self._error = UnreachableError(text, retry_after_s)


def _refused(kind: type[NoServerError], master: Address, answer: Answer) -> NoServerError:
    return kind(f"master {master}: {explain(answer)}", answer.result, answer.reason, answer.retry_after_s)


def _give_back(permit: Permit, now: float, failure: Failure) -> None:
    """Count a failure by whose it is; one that may be our own counts as none."""
    if failure.fault is None:
        permit.ignored(now)
    else:
        permit.failed(now, failure.fault)
