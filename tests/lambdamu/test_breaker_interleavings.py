"""The circuit breaker under every order of start, success, failure, cancel, timeout and the passing of time."""

from __future__ import annotations

import random
from typing import Any

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lambdamu.breaker import Breaker, BreakerPolicy, Fault, Permit, Refused, State, Why

STEPS_S = (0.0, 0.05, 0.5, 1.0, 2.0, 4.0, 8.0)


@attrs.define(eq=False)
class Out:
    """A permit that was taken: under which state and generation, and whether it was given back."""

    permit: Permit
    until: float
    trial: bool
    generation: int
    back: bool = False


class Interleavings(RuleBasedStateMachine):
    """Keeps its own simple books beside the breaker: of who is out, and of when the state was seen to change."""

    @initialize(
        seed=st.integers(0, 2**32),
        workers=st.integers(1, 6),
        trials=st.integers(1, 3),
        jitter=st.sampled_from([0.0, 0.9]),
    )
    def begin(self, seed: int, workers: int, trials: int, jitter: float) -> None:
        self.policy = BreakerPolicy(
            consecutive=3, open_s=1.0, max_open_s=6.0, decay_s=5.0, lease_s=3.0, slow_s=2.0, window_s=5.0, buckets=5,
            workers=workers, full_share=1.0, trials=trials, jitter=jitter,
        )  # fmt: skip
        self.breaker = Breaker(self.policy)
        self.rng = random.Random(seed)
        self.now = 100.0
        self.taken: list[Out] = []
        self.seen = State.CLOSED
        self.generation = 0
        self.open_until = 0.0

    def out(self) -> list[Out]:
        return [each for each in self.taken if not each.back and self.now < each.until]

    def facts(self) -> tuple[Any, ...]:
        """All that a call which counts nowhere must leave as it is."""
        refusal = self.breaker.refusal(self.now)
        kept = None if refusal is not None and refusal.why is Why.FULL else refusal
        return self.breaker.state(self.now), attrs.astuple(self.breaker.counts(self.now)), kept

    def look(self) -> None:
        """See what state it is in; a new one is a new generation."""
        state = self.breaker.state(self.now)
        if state is not self.seen:
            self.generation += 1
        self.seen = state

    @rule(dt=st.sampled_from(STEPS_S))
    def time_passes(self, dt: float) -> None:
        self.now += dt
        self.look()

    @rule()
    def a_call_starts(self) -> None:
        before = self.facts()
        got = self.breaker.acquire(self.now, self.rng)
        if isinstance(got, Refused):
            assert self.facts() == before
            assert got.retry_after_s > 0
            return
        assert self.seen is not State.OPEN
        trial = self.seen is State.HALF_OPEN
        assert not trial or not self.trials_out()
        self.taken.append(Out(got, self.now + self.policy.lease_s, trial, self.generation))

    def trials_out(self) -> list[Out]:
        return [each for each in self.out() if each.trial and each.generation == self.generation]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "logic", "ignored"]))
    def a_call_ends(self, data: st.DataObject, how: str) -> None:
        """Also one that has ended before, whose lease is over, or that began in another state."""
        each = data.draw(st.sampled_from(self.taken))
        counts = each in self.out() and each.generation == self.generation and how != "ignored"
        before = self.facts()
        was_out = each in self.out()
        each.back = True
        match how:
            case "succeeded":
                each.permit.succeeded(self.now)
            case "failed":
                each.permit.failed(self.now)
            case "logic":
                each.permit.failed(self.now, Fault.LOGIC)
            case "ignored":
                each.permit.ignored(self.now)
        if not counts and not (was_out and each.trial):
            assert self.facts() == before
        if not counts:
            assert self.breaker.state(self.now) is before[0]
        self.look()
        if self.seen is State.OPEN and before[0] is not State.OPEN:
            self.just_opened()

    @rule()
    def it_is_tripped_from_elsewhere(self) -> None:
        was_open = self.seen is State.OPEN
        self.breaker.trip(self.now, self.rng)
        self.look()
        assert self.seen is State.OPEN
        if not was_open:
            self.just_opened()

    def just_opened(self) -> None:
        refusal = self.breaker.refusal(self.now)
        assert refusal is not None
        assert refusal.why is Why.OPEN
        shortest = self.policy.open_s * (1 - self.policy.jitter)
        assert shortest - 1e-9 <= refusal.retry_after_s <= self.policy.max_open_s + 1e-9
        self.open_until = self.now + refusal.retry_after_s

    @invariant()
    def those_in_flight_are_those_who_are_out(self) -> None:
        assert self.breaker.in_flight(self.now) == len(self.out())
        assert len(self.out()) <= self.policy.full_at + 1

    @invariant()
    def there_is_one_trial_at_most(self) -> None:
        assert len(self.trials_out()) <= 1

    @invariant()
    def it_is_open_until_the_time_it_said_and_no_longer(self) -> None:
        assert self.breaker.state(self.now) is self.seen
        if self.seen is State.OPEN:
            assert self.now < self.open_until
        if self.seen is State.HALF_OPEN:
            assert self.now >= self.open_until - 1e-9

    @invariant()
    def with_the_wait_over_and_no_trial_out_a_call_is_let_through(self) -> None:
        if self.seen is State.HALF_OPEN:
            refusal = self.breaker.refusal(self.now)
            assert (refusal is None) == (not self.trials_out())

    @invariant()
    def closed_it_refuses_only_when_it_is_full(self) -> None:
        if self.seen is State.CLOSED:
            refusal = self.breaker.refusal(self.now)
            assert (refusal is None) == (len(self.out()) < self.policy.full_at)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
