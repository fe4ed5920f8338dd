"""What operators are shown, as values for JSON. What takes long for a large pool is made in parts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from master.answer_log import Answer, Who, hash_of
from master.core.answers import Ask, Explanation, Reason, Spare, State
from master.core.explain import Scene, explain
from master.core.member import Member
from master.core.pool import Pool
from master.event_log import Event
from master.web.controls import LastReload
from master.web.desk import Desk, wall

if TYPE_CHECKING:
    from master.warm_call import WarmCaller

PART: Final = 50
"""So many backends are told of in one go, in about a millisecond."""
MOST_FAULTS: Final = 20
"""So many lines are told of a reload that was refused; the log and `lambdamu check` have all of them."""
Item = TypeVar("Item")
Json = dict[str, Any]


def parts(items: Iterable[Item], size: int = PART) -> Iterator[list[Item]]:
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


async def rows_of(items: Iterable[Item], row: Callable[[Item], Json]) -> bytes:
    """Return a JSON array of rows, made in parts."""
    texts = []
    for part in parts(items):
        texts.append(dumps([row(item) for item in part])[1:-1])
        await trio.lowlevel.checkpoint()
    return b"[" + b",".join(texts) + b"]"


def dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def finite(number: float | None) -> float | None:
    """Return a number that JSON can hold, short."""
    return None if number is None or not math.isfinite(number) else round(number, 6)


def backend_row(desk: Desk, member: Member, now: float, per_s: Mapping[str, float]) -> Json:
    name, state, metrics = member.backend.name, member.state(now), desk.metrics
    probes, wish = metrics.probes.get(name, 0), desk.wish(name)
    return {
        "name": name,
        "zone": member.backend.zone,
        "priority": member.backend.priority,
        "weight": member.backend.weight,
        "address": "{}:{}".format(*member.probed) if member.probed is not None else None,
        "state": state.value,
        "why": desk.whys.get(name, "") if state is not State.READY else "",
        "works": member.works(now),
        "takes_clients": desk.pool.takes_clients(now, member),
        "users": member.users(now),
        "capacity": member.backend.capacity,
        "load": finite(member.load(now)) if member.backend.weight and member.report is not None else None,
        "report_age_s": finite(member.report.age(now)) if member.report is not None else None,
        "reservations": member.reservations.count(now),
        "assignments": member.reservations.total,
        "assignments_per_s": finite(per_s.get(name, 0.0)),
        "probes": probes,
        "probe_failures": metrics.failures.get(name, 0),
        "failures": {why.value: count for why, count in metrics.faults.get(name, {}).items()},
        "ejections": metrics.ejections.get(name, 0),
        "probe_mean_s": finite(metrics.probe_s.get(name, 0.0) / probes) if probes else None,
        "probe_p50_s": metrics.probe_times.quantile(name, 0.5),
        "probe_p99_s": metrics.probe_times.quantile(name, 0.99),
        "admin": None
        if wish is None
        else {"state": wish.state.value, "who": wish.who, "reason": wish.reason, "until": finite(wish.until)},
    }


def pool_row(desk: Desk, now: float) -> Json:
    """Return what is said of the pool as a whole."""
    unready = desk.unready()
    takers = desk.pool.takers(now)
    return {
        "verdict": verdict(desk.pool, takers, desk.metrics.spare(now)),
        "takers": takers,
        "count": len(desk.pool),
        "ready": unready is None,
        "unready": unready or "",
        "at": finite(wall(now)),
        "asks": {result.value: count for result, count in desk.metrics.asks.items()},
        "connections": desk.metrics.open,
        "session_s": finite(desk.pool.clock.mean_s),
        "panic": desk.pool.roll.closed is Reason.PANIC,
        "reload": _reload_row(desk.last_reload()),
        "alone": desk.alone,
        "cache_node": _cache_node_row(desk.cache_node),
    }


def _cache_node_row(caller: WarmCaller | None) -> Json | None:
    if caller is None:
        return None
    return {"address": str(caller.config.address), "connected": caller.connected, "trouble": caller.fault or ""}


def _reload_row(last: LastReload | None) -> Json | None:
    if last is None:
        return None
    return {"ok": not last.faults, "at": finite(last.at), "who": last.who, "faults": list(last.faults[:MOST_FAULTS])}


def verdict(pool: Pool, takers: int, spare: Spare) -> str:
    """Return how the pool stands, in one line."""
    if not len(pool):
        return "there are no backends"
    if pool.roll.closed is Reason.FIRST_ROUND:
        return "nobody is sent anywhere yet: not every backend has been probed"
    if not takers:
        panic = pool.roll.closed is Reason.PANIC and pool.roll.working
        few = "too few backends work" if panic else "no backend takes clients"
        return few + ": all failed together, look at this master's network" * pool.roll.suspected
    one = f"{takers} of {len(pool)} backends {'takes' if takers == 1 else 'take'} clients"
    if len(pool) == 1:
        one = "the only backend takes clients"
    if spare.fits:
        return f"{one}; the users fit if the biggest falls"
    return f"{one}; the users do not fit if the biggest, {spare.biggest}, falls"


def answer_row(answer: Answer) -> Json:
    return {
        "at": finite(wall(answer.at)),
        "client": answer.client,
        "network": answer.network,
        "zone": answer.zone,
        "result": str(answer.result),
        "reason": str(answer.reason),
        "backend": answer.backend,
        "loads": [{"name": name, "load": finite(load)} for name, load in answer.loads],
    }


def event_row(event: Event) -> Json:
    return {
        "number": event.number,
        "at": finite(wall(event.at)),
        "kind": event.kind,
        "backend": event.backend,
        "text": event.text,
    }


def explanation_row(one: Explanation) -> Json:
    return {
        "name": one.name,
        "state": one.state.value,
        "report_age_s": finite(one.age_s),
        "reported": finite(one.reported),
        "own": finite(one.own),
        "weight": one.weight,
        "load": finite(one.load),
        "opens_in": finite(one.opens_in),
        "reason": one.reason.value,
    }


async def explanation(desk: Desk, zone: str, client: str, device: str) -> bytes:
    """Return what a client in `zone` would be answered now; `client` is its id, or its hash as the answers show it.

    `device`: the one that it says, whose session may send it back to a backend.
    """
    now = trio.current_time()
    known = hash_of(client) if client else None
    home = desk.devices.home(now, device) if desk.devices is not None else ""
    scene = desk.pool.set_scene(now, Ask(zone=zone, client=known, prefer=home))
    chosen, reason = _choice(desk.pool, scene, Who.of(client).hashes if client else ())
    head = dumps({"at": finite(wall(now)), "alone": desk.alone, "zone": zone, "chosen": chosen, "reason": reason.value})

    def row(member: Member) -> Json:
        one = explain([member], scene)[0]
        if reason is Reason.AGAIN:
            reasons = {chosen: Reason.AGAIN}
            return explanation_row(one) | {"reason": reasons.get(one.name, _passed(one, scene)).value}
        return explanation_row(one)

    return head[:-1] + b',"backends":' + await rows_of(list(desk.pool), row) + b"}"


def _passed(one: Explanation, scene: Scene) -> Reason:
    """Return why one is not chosen where the client is sent again to where it was sent."""
    first = scene.found is not None and scene.found[0].backend.name == one.name
    return Reason.BEHIND if first else one.reason


def _choice(pool: Pool, scene: Scene, hashes: Iterable[str]) -> tuple[str | None, Reason]:
    if scene.closed is not None:
        return None, scene.closed
    for known in hashes:
        name = pool.ejections.sent_to(scene.now, known)
        if name is not None and pool[name].state(scene.now) in (State.READY, State.FULL):
            return name, Reason.AGAIN
    if scene.found is None:
        return None, Reason.NO_CANDIDATE
    member, why = scene.found
    return member.backend.name, Reason.LAST_KNOWN if scene.last_known else why
