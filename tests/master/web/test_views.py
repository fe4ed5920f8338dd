"""What is shown is what is so: the page, the metrics and the choice agree, whatever has happened to the pool."""

from __future__ import annotations

import copy
import random
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault
from master.answer_log import AnswerLog
from master.config import Config, HttpPolicy
from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic
from master.core.ejection import Verdict
from master.core.health import HealthPolicy, Said
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool
from master.event_log import EventLog
from master.metrics import Metrics
from master.pool_metrics import collect_pool
from master.web.controls import LastReload
from master.web.desk import Desk
from master.web.views import backend_row

NAMES = [f"b{i}" for i in range(4)]
STEPS = st.tuples(
    st.sampled_from(["report", "fail", "lose", "drain", "ready", "maint", "say", "bar", "ask", "remove", "add"]),
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.4, 2.0, 3.5]),
)
BACKENDS = st.builds(
    Backend,
    st.just(""),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from([None, 0, 3]),
    st.sampled_from(["", "a"]),
    priority=st.sampled_from([0, 1]),
)
CHOICES = st.builds(
    ChoicePolicy,
    panic=st.sampled_from(Panic),
    panic_threshold=st.sampled_from([0.0, 0.6]),
    first_round_s=st.sampled_from([0.0, 3.0]),
)


def named(name: str, backend: Backend) -> Backend:
    return Backend(name, backend.weight, backend.capacity, backend.zone, priority=backend.priority)


def step(pool: Pool, now: float, word: str, name: str, backends: dict[str, Backend]) -> None:
    rng = random.Random(7)
    if word in ("remove", "add"):
        wanted = {member.backend.name for member in pool} ^ {name}
        pool.change(now, [backends[each] for each in NAMES if each in wanted])
    elif word == "ask":
        pool.assign(now, rng, Ask())
    elif name not in {member.backend.name for member in pool}:
        return
    elif word == "report":
        pool.record_report(now, rng, name, 2, now, ("10.0.0.1", 1))
    elif word == "fail":
        pool.record_failure(now, name)
    elif word == "lose":
        pool.record_lost(now, name)
    elif word == "say":
        pool.record_said(now, name, Said(drain=not pool[name].said.drain, capacity=2))
    elif word == "bar":
        pool.bar(now, name, now + 1.0)
    else:
        pool.set_admin(now, name, Admin(Wish(word), "ann", "why not", now + 3.0))


def can_be_chosen(pool: Pool, now: float, name: str) -> bool:
    """Whether an ask would get `name` where nobody else is a candidate."""
    alone = copy.deepcopy(pool)
    for member in alone:
        if member.backend.name != name:
            alone._candidates.leave(member)
    answer = alone.assign(now, random.Random(1), Ask())
    return isinstance(answer, Assignment) and answer.place.name == name


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25), st.lists(BACKENDS, min_size=4, max_size=4), CHOICES)
def test_what_is_shown_is_what_is_counted_is_what_can_be_chosen(
    steps: list[tuple[str, str, float]], kinds: list[Backend], choice: ChoicePolicy
) -> None:
    backends = {name: named(name, kind) for name, kind in zip(NAMES, kinds, strict=True)}
    pool = Pool(backends.values(), HealthPolicy(fall=2, stale_after_s=3.0), LoadPolicy(), choice)
    metrics, now = Metrics(NAMES, 5), 100.0
    desk = Desk(HttpPolicy(), pool, metrics, AnswerLog(), EventLog(), {}, Config)
    for word, name, seconds in steps:
        step(pool, now, word, name, backends)
        now += seconds
        shown = {m.backend.name: backend_row(desk, m, now, {})["takes_clients"] for m in pool}
        samples = [sample for family in collect_pool(pool, now, pool.spare(now)) for sample in family.samples]
        ready = {each.labels["backend"]: each.value == 1 for each in samples if each.name == "lambdamu_backend_ready"}
        assert shown == ready == {each: can_be_chosen(pool, now, each) for each in shown}
        single = {each.name: each.value for each in samples if not each.labels}
        assert single["lambdamu_candidates"] == sum(shown.values()) == pool.takers(now)
        assert not (single["lambdamu_panic"] and any(shown.values()))


async def pool_row_of(here: Any) -> dict[str, Any]:
    row: dict[str, Any] = (await here.http.get("/api/v1/backends")).json()
    return row


async def test_failures_ejections_and_quantiles_are_told_of_each_backend(site: Any) -> None:
    async with site("b1", "b2") as here:
        for why in (LinkFault.REFUSED, LinkFault.TIMEOUT, LinkFault.REFUSED):
            here.node.observer.probed("b1", LinkError(why, "so it is"), 0.0)
        for took_s in (0.25, 0.5, 0.125):
            here.node.observer.probed("b1", None, took_s)
        here.node.observer.accused("b1", Verdict.EJECTED)
        here.node.observer.accused("b1", Verdict.COUNTED)
        first, second = (await pool_row_of(here))["backends"]
        assert (first["failures"], first["ejections"]) == ({"refused": 2, "timeout": 1}, 1)
        assert (first["probe_p50_s"], first["probe_p99_s"]) == (0.25, 0.5)
        assert (second["failures"], second["ejections"], second["probe_p50_s"]) == ({}, 0, None)


async def test_the_last_reload_is_told_with_its_first_faults(site: Any, make_controls: Any) -> None:
    controls = make_controls()
    async with site("b1", controls=controls) as here:
        assert (await pool_row_of(here))["reload"] is None
        controls.reloaded = LastReload(1e9, "SIGHUP", [f"fault {i}" for i in range(25)])
        told = (await pool_row_of(here))["reload"]
        assert (told["ok"], told["at"], told["who"]) == (False, 1e9, "SIGHUP")
        assert told["faults"] == [f"fault {i}" for i in range(20)]
        controls.reloaded = LastReload(1e9 + 1, "ann")
        assert (await pool_row_of(here))["reload"] == {"ok": True, "at": 1e9 + 1, "who": "ann", "faults": []}


async def test_panic_is_told_and_is_not_the_same_as_nobody_there(site: Any) -> None:
    async with site("b1", "b2", "b3", panic_threshold=0.5, ready_needs_backend=True) as here:
        here.report("b1")
        got = await pool_row_of(here)
        assert (got["panic"], got["takers"], got["verdict"]) == (True, 0, "too few backends work")
        assert not [row for row in got["backends"] if row["takes_clients"]]
        assert (await here.http.get("/readyz")).status_code == 503
        here.report("b2")
        assert ((await pool_row_of(here))["panic"], (await here.http.get("/readyz")).status_code) == (False, 200)
        here.node.pool.record_lost(trio.current_time(), "b1")
        here.node.pool.record_lost(trio.current_time(), "b2")
        assert (await pool_row_of(here))["verdict"].startswith("no backend takes clients: all failed together")
