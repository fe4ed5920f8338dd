"""What happens in a master, on its way to the metrics, the log and the events that operators read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from lambdamu.errors import LinkError
from lambdamu.messages import Code, Reason, Result
from lambdamu.tcp_server import Ending, PortObserver
from master.core.admin import Admin
from master.core.ejection import Verdict
from master.core.health import Said
from master.core.member import Member
from master.core.pool import State
from master.event_log import EventLog
from master.log import Throttle
from master.metrics import Metrics, Refusal
from master.probing import ProbeObserver

if TYPE_CHECKING:
    from master.cache.house import CacheHouse

_RESOURCES_LOG_S: Final = 10.0
CHANGES_AT_ONCE: Final = 6
_LEAST_SECRET: Final = 4
"""What is shorter may stand in any text by chance."""
CHANGE_LOG_S: Final = 10.0
"""A backend that comes and goes all the time is told of once in this time, with the count of what was left out."""
_TOLD_VERDICTS: Final = frozenset({Verdict.TOGETHER, Verdict.LIMIT, Verdict.NEEDED, Verdict.TRIAL_FAILED})
"""What clients say is told where something comes of it, or would but for a rule; an ejection is told as such."""

Logger = structlog.typing.FilteringBoundLogger


_NOT_FRESH: Final = frozenset({State.UNPROBED, State.DOWN, State.LOST, State.STALE})


class _Topic(Enum):
    """What may change of a backend; of each the last change is told, however restless it is."""

    WORKS = 0
    DRAINS = 1
    EJECTED = 2


_Key = tuple[str, _Topic]


@attrs.frozen
class _Change:
    """What the events say of a backend, and, with more details, the log."""

    at: float
    kind: str
    text: str
    details: Mapping[str, object] = attrs.Factory(dict)
    bad: bool = False
    left_out: int = 0
    """How many changes before it were not told."""


class Observer(PortObserver, ProbeObserver):
    """Counts what happens, and tells what changes: not every change of a restless backend, but always its last one."""

    def __init__(self, metrics: Metrics, log: Logger, events: EventLog | None = None) -> None:
        self._metrics = metrics
        self._log = log
        self._events = events if events is not None else EventLog()
        self.secret = ""
        """What the master shows backends to be let in. One may repeat it in what it says is wrong."""
        self.whys: dict[str, str] = {}
        """Why backends do not work, by name, in the words of the last failed probe."""
        self._resources = Throttle(_RESOURCES_LOG_S)
        self._accused = Throttle(CHANGE_LOG_S, CHANGES_AT_ONCE)
        self._throttles: dict[_Key, Throttle] = {}
        self._unsaid: dict[_Key, _Change] = {}
        self.stale: set[str] = set()
        """Those of which it was told that their report is too old, and nothing since."""
        self._draining: set[str] = set()
        """Those that say so of themselves."""
        self._out: set[str] = set()
        """Those of which it was told that they are ejected."""

    def answered(self, result: Result) -> None:
        self._metrics.asks[result] += 1

    def denied(self, reason: Reason) -> None:
        self._metrics.denied[reason] += 1

    def accused(self, name: str, verdict: Verdict) -> None:
        self._metrics.accusations[verdict] += 1
        self._metrics.ejections[name] += verdict is Verdict.EJECTED
        if verdict is Verdict.EJECTED:
            self._eject(trio.current_time(), name, out=True)
        elif verdict in _TOLD_VERDICTS and self._accused.let_through(trio.current_time()) is not None:
            self._log.warning("backend_accused", backend=name, verdict=verdict.value)
            self._events.add(trio.current_time(), "backend_accused", verdict.value, name)

    def opened(self) -> None:
        self._metrics.open += 1

    def ended(self, how: Ending) -> None:
        self._metrics.open -= 1
        self._metrics.endings[how] += 1

    def refused(self) -> None:
        self._metrics.refused[Refusal.LIMIT] += 1

    def replied(self, batches: int, took_s: float) -> None:
        self._metrics.answer_s.note(took_s, batches)

    def broke_protocol(self, code: str) -> None:
        self._metrics.broken[Code(code)] += 1

    def cannot_accept(self, error: OSError) -> None:
        self._metrics.refused[Refusal.RESOURCES] += 1
        held = self._resources.let_through(trio.current_time())
        if held is not None:
            self._log.error("cannot_accept", error=error.strerror, left_out=held)

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        self._metrics.probed(name, failure, took_s)

    def said(self, name: str, said: Said) -> None:
        if said.drain != (name in self._draining):
            self._draining ^= {name}
            kind = "backend_drains" if said.drain else "backend_drains_no_more"
            self._tell(name, _Topic.DRAINS, _Change(trio.current_time(), kind, "by its own word"))

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        now, why = trio.current_time(), self._masked(why)
        if why is None:
            self.whys.pop(name, None)
            self._up(now, name, state)
            return
        self.whys[name] = str(why)
        details = {"state": state.value, "why": why.why, "text": str(why)}
        if state is not State.STALE:
            self.stale.discard(name)
            self._tell(name, _Topic.WORKS, _Change(now, "backend_down", str(why), details, bad=True))
        elif name not in self.stale:
            self.stale.add(name)
            self._tell(name, _Topic.WORKS, _Change(now, "backend_stale", str(why), details, bad=True))

    def look(self, now: float, member: Member) -> None:
        """Hear that time alone may have changed whether the report of a backend is fresh enough."""
        name, state = member.backend.name, member.found(now)
        if state is State.STALE and name not in self.stale and member.report is not None:
            self.stale.add(name)
            age_s = round(member.report.age(now), 3)
            change = _Change(now, "backend_stale", f"no report for {age_s:.1f} s", {"report_age_s": age_s}, bad=True)
            self._tell(name, _Topic.WORKS, change)
        elif name in self.stale and state not in _NOT_FRESH:
            self._up(now, name, state)

    def hear_who_is_out(self, now: float, out: Collection[str]) -> None:
        """Hear who is ejected: nobody else tells when one is back."""
        for name in sorted(self._out.symmetric_difference(out)):
            self._eject(now, name, out=name in out)

    def ended_by_itself(self, name: str, admin: Admin) -> None:
        """Hear that what an operator wanted of a backend was over when its time was."""
        wish = admin.wish.value
        self._log.info("admin_ended", backend=name, admin=wish, who=admin.who, why=admin.why)
        self._events.add(admin.until, "admin_ended", f"{wish} by {admin.who}, its time is over: {admin.why}", name)

    def _masked(self, why: LinkError | None) -> LinkError | None:
        if why is None or len(self.secret) < _LEAST_SECRET or self.secret not in str(why):
            return why
        return LinkError(why.why, str(why).replace(self.secret, "***"))

    def forget(self, names: Iterable[str]) -> None:
        """Keep nothing of backends that are gone."""
        for name in names:
            for topic in _Topic:
                self._throttles.pop((name, topic), None)
                self._unsaid.pop((name, topic), None)
            for known in (self._draining, self._out, self.stale):
                known.discard(name)
            self.whys.pop(name, None)

    def say_rest(self, now: float) -> None:
        """Tell the last change of those for which there was no room before."""
        for key in list(self._unsaid):
            self._say(key, now)

    def _up(self, now: float, name: str, state: State) -> None:
        kind = "backend_fresh" if name in self.stale else "backend_up"
        self.stale.discard(name)
        self._tell(name, _Topic.WORKS, _Change(now, kind, state.value, {"state": state.value}))

    def _eject(self, now: float, name: str, *, out: bool) -> None:
        if out:
            self._out.add(name)
            change = _Change(now, "backend_ejected", "clients cannot use it, whatever its probes find", bad=True)
        else:
            self._out.discard(name)
            change = _Change(now, "backend_back", "it is ejected no more")
        self._tell(name, _Topic.EJECTED, change)

    def _tell(self, name: str, topic: _Topic, change: _Change) -> None:
        before = self._unsaid.get((name, topic))
        left_out = 0 if before is None else before.left_out + 1
        self._unsaid[name, topic] = attrs.evolve(change, left_out=left_out)
        self._say((name, topic), change.at)

    def _say(self, key: _Key, now: float) -> None:
        if self._throttles.setdefault(key, Throttle(CHANGE_LOG_S, CHANGES_AT_ONCE)).let_through(now) is None:
            return
        change, name = self._unsaid.pop(key), key[0]
        tell = self._log.warning if change.bad else self._log.info
        tell(change.kind, backend=name, **change.details, left_out=change.left_out)
        left_out = f" ({change.left_out} changes before it were left out)" if change.left_out else ""
        self._events.add(change.at, change.kind, change.text + left_out, name)


class CacheObserver(PortObserver):
    """Hears what happens at the port of the cache: what clients of the master do is counted apart from it."""

    def __init__(self, node: PortObserver, house: CacheHouse) -> None:
        self._node = node
        self._house = house

    def refused(self) -> None:
        self._house.turned_away += 1

    def cannot_accept(self, error: OSError) -> None:
        self._node.cannot_accept(error)
