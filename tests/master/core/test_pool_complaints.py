"""What clients say of backends, and what the pool makes of it: the same place again, out, on trial, back."""

from __future__ import annotations

import math
import random

import pytest

from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.ejection import EjectionPolicy, Verdict
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, Reason, State

EJECTION = EjectionPolicy(open_s=30.0)
SHORTEST_S, LONGEST_S = 24.0, 30.0
"""How long the first time out is, its jitter included."""


class Scene:
    """A pool of backends that all answer their probes, with few users."""

    def __init__(self, backends: int, panic_threshold: float = 0.0, **backend: object) -> None:
        self.rng = random.Random(3)
        self.now = 0.0
        self.names = [f"b{i}" for i in range(backends)]
        self.pool = Pool(
            [Backend(name, **backend) for name in self.names],  # type: ignore[arg-type]
            HealthPolicy(stale_after_s=1e9),
            LoadPolicy(session_s=600.0),
            ChoicePolicy(slow_start_s=0.0, join_cap=1e6, first_round_s=0.0, panic_threshold=panic_threshold),
            EJECTION,
        )
        self.report()

    def report(self, count: int = 5) -> None:
        for i, name in enumerate(self.names):
            self.pool.record_report(self.now, self.rng, name, count, self.now, self.place(i))

    def place(self, i: int) -> tuple[str, int]:
        return f"10.0.0.{i}", 9000

    def ask(self, client: str | None = None) -> str | None:
        answer = self.pool.assign(self.now, self.rng, Ask(client=client))
        return answer.place.name if isinstance(answer, Assignment) else None

    def complain(self, client: str, host: str, name: str) -> list[tuple[str, Verdict]]:
        return self.pool.hear(self.now, self.rng, client, host, [self.place(self.names.index(name))])

    def accuse(self, name: str, networks: int = 3) -> list[Verdict]:
        """Have clients of so many networks be sent to `name` and complain."""
        said: list[Verdict] = []
        for network in range(networks):
            client = self.sent_to(name)
            said += [verdict for _, verdict in self.complain(client, f"192.0.{network}.7", name)]
        return said

    def sent_to(self, name: str) -> str:
        for _ in range(1000):
            client = f"{self.rng.getrandbits(64):x}"
            if self.ask(client) == name:
                return client
        raise AssertionError(f"nobody is sent to {name}")

    def asked(self, count: int = 100) -> set[str | None]:
        return {self.ask() for _ in range(count)}

    def state(self, name: str) -> State:
        return self.pool[name].state(self.now)


def test_a_client_that_asks_again_is_sent_to_the_same_backend_and_takes_no_second_place() -> None:
    scene = Scene(10)
    name = scene.ask("ann")
    assert name is not None
    reserved = sum(member.reservations.count(0.0) for member in scene.pool)
    scene.now = 10.0
    for _ in range(20):
        assert scene.ask("ann") == name
    assert sum(member.reservations.count(10.0) for member in scene.pool) == reserved == 1
    assert scene.pool.answers[Reason.AGAIN] == 20


def test_after_a_while_the_choice_is_made_anew() -> None:
    scene = Scene(10)
    first = scene.ask("ann")
    scene.now = 15.1
    assert len({scene.ask(f"c{i}") for i in range(9)} | {scene.ask("ann")}) > 1
    assert scene.pool.answers[Reason.AGAIN] == 0
    assert first is not None


@pytest.mark.parametrize("gone", ["lost", "failed", "stale"])
def test_a_client_is_not_sent_again_to_a_backend_that_does_not_work(gone: str) -> None:
    scene = Scene(2)
    name = scene.ask("ann")
    assert name is not None
    if gone == "lost":
        scene.pool.record_lost(0.0, name)
    elif gone == "failed":
        for _ in range(2):
            scene.pool.record_failure(0.0, name)
    else:
        scene.pool.bar(0.0, name, math.inf)
    assert scene.ask("ann") not in (name, None)


def test_who_has_the_last_place_of_a_full_backend_keeps_it() -> None:
    scene = Scene(1, capacity=6)
    assert scene.ask("ann") == "b0"
    assert scene.state("b0") is State.FULL
    assert scene.ask("ann") == "b0"
    assert scene.ask("bob") is None


def test_a_client_that_could_not_use_a_backend_is_sent_elsewhere() -> None:
    scene = Scene(2)
    name = scene.ask("ann")
    assert name is not None
    assert scene.complain("ann", "192.0.2.9", name) == [(name, Verdict.COUNTED)]
    assert {scene.ask("ann") for _ in range(1)} == {({*scene.names} - {name}).pop()}


def test_three_networks_take_a_backend_out() -> None:
    scene = Scene(4)
    assert scene.accuse("b1") == [Verdict.COUNTED, Verdict.COUNTED, Verdict.EJECTED]
    assert scene.state("b1") is State.EJECTED
    assert scene.asked() == {"b0", "b2", "b3"}
    (reason,) = [one.reason for one in scene.pool.explain(scene.now, Ask()) if one.name == "b1"]
    assert reason is Reason.EJECTED
    scene.report()
    assert scene.asked() == {"b0", "b2", "b3"}


def test_two_networks_do_not_and_neither_do_many_addresses_of_one() -> None:
    scene = Scene(4)
    scene.accuse("b1", networks=2)
    for i in range(20):
        scene.complain(scene.sent_to("b1"), f"192.0.1.{i}", "b1")
    assert scene.state("b1") is State.READY


def test_only_who_was_sent_there_is_heard() -> None:
    scene = Scene(4)
    for i in range(10):
        client = scene.sent_to("b2")
        assert scene.complain(client, f"192.0.{i}.7", "b1") == []
        assert scene.complain("stranger", f"192.0.{i}.7", "b1") == []
    assert scene.state("b1") is State.READY


def test_the_last_one_stays_whatever_is_said_and_so_does_one_whose_users_fit_nowhere() -> None:
    alone = Scene(1)
    assert Verdict.EJECTED not in alone.accuse("b0")
    assert alone.ask() == "b0"
    crowded = Scene(4, capacity=100)
    crowded.report(90)
    assert crowded.accuse("b1")[-1] is Verdict.NEEDED
    assert crowded.state("b1") is State.READY


def test_what_clients_say_never_leaves_too_few_that_work() -> None:
    scene = Scene(4, panic_threshold=0.9)
    assert scene.accuse("b1")[-1] is Verdict.NEEDED
    assert scene.ask() is not None
    scene = Scene(4, panic_threshold=0.75)
    assert scene.accuse("b1")[-1] is Verdict.EJECTED
    assert scene.ask() is not None


@pytest.mark.parametrize("on_trial", [False, True])
def test_who_is_out_comes_back_when_nobody_else_works(on_trial: bool) -> None:
    scene = Scene(4)
    scene.accuse("b1")
    if on_trial:
        scene.now = LONGEST_S + 1
    for name in ("b0", "b2", "b3"):
        scene.pool.record_lost(scene.now, name)
    assert [scene.ask() for _ in range(10)] == ["b1"] * 10
    assert not scene.pool.suspects_own_network(scene.now)
    scene.now += 31.0
    assert [scene.ask() for _ in range(10)] == ["b1"] * 10
    for i in (0, 2, 3):
        scene.pool.record_report(scene.now, scene.rng, f"b{i}", 5, scene.now, scene.place(i))
    assert scene.asked() > {"b0", "b2", "b3"}


def test_a_plain_ask_may_be_the_one_that_tries() -> None:
    scene = Scene(4)
    scene.accuse("b1")
    scene.now = LONGEST_S + 1
    picked = [scene.pool.pick(scene.now, scene.rng) for _ in range(100)]
    assert [member.backend.name for member in picked if member].count("b1") == 1


def test_after_its_time_one_client_tries_and_if_it_is_content_all_come_back() -> None:
    scene = Scene(4)
    scene.accuse("b1")
    scene.now = SHORTEST_S - 1
    assert "b1" not in scene.asked()
    scene.now = LONGEST_S + 1
    asked = [scene.ask() for _ in range(100)]
    assert asked.count("b1") == 1
    scene.now += 14.0
    assert "b1" not in scene.asked()
    scene.now += 2.0
    assert "b1" in scene.asked()
    assert scene.state("b1") is State.READY


def test_a_trial_that_fails_takes_it_out_for_longer() -> None:
    scene = Scene(4)
    scene.accuse("b1")
    scene.now = LONGEST_S + 1
    client = scene.sent_to("b1")
    assert scene.complain(client, "192.0.9.9", "b1") == [("b1", Verdict.TRIAL_FAILED)]
    scene.now += 2 * SHORTEST_S - 1
    assert "b1" not in scene.asked()
    scene.now += 2 * LONGEST_S
    assert "b1" in scene.asked()


def test_when_most_fail_together_nobody_is_out() -> None:
    scene = Scene(4)
    scene.accuse("b0")
    for name in ("b1", "b2"):
        scene.accuse(name)
    assert scene.asked() == set(scene.names)


def test_plain_asks_are_not_noted() -> None:
    scene = Scene(2)
    scene.asked()
    assert len(scene.pool.ejections) == 0
