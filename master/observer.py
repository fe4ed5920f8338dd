"""What happens in a master, on its way to the metrics, the log and the events that operators read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import structlog
import trio

from lambdamu.errors import LinkError
from lambdamu.messages import Code, Result
from lambdamu.tcp_server import Ending, PortObserver
from master.core.ejection import Verdict
from master.core.health import Said
from master.core.pool import State
from master.event_log import EventLog
from master.log import Throttle
from master.metrics import Metrics
from master.probing import ProbeObserver

_RESOURCES_LOG_S: Final = 10.0
CHANGES_AT_ONCE: Final = 6
_LEAST_SECRET: Final = 4
"""What is shorter may stand in any text by chance."""
CHANGE_LOG_S: Final = 10.0
"""A backend that comes and goes all the time is logged once in this time, with the count of what was left out."""
_TOLD_VERDICTS: Final = frozenset(Verdict) - {Verdict.NOT_SENT, Verdict.COUNTED, Verdict.ALREADY_OUT}
"""What clients say is logged where something comes of it, or would but for a rule."""

Logger = structlog.typing.FilteringBoundLogger


@attrs.frozen
class _Change:
    """What the log says of a backend."""

    state: State
    why: LinkError | None


class Observer(PortObserver, ProbeObserver):
    """Counts what happens, and logs what changes: not every change of a restless backend, but always its last one."""

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
        self._throttles: dict[str, Throttle] = {}
        self._unsaid: dict[str, _Change] = {}
        self._draining: set[str] = set()
        """Those that say so of themselves."""

    def answered(self, result: Result) -> None:
        self._metrics.asks[result] += 1

    def accused(self, name: str, verdict: Verdict) -> None:
        self._metrics.accusations[verdict] += 1
        if verdict in _TOLD_VERDICTS and self._accused.let_through(trio.current_time()) is not None:
            self._log.warning("backend_accused", backend=name, verdict=verdict.value)
            self._events.add(trio.current_time(), "backend_accused", verdict.value, name)

    def opened(self) -> None:
        self._metrics.open += 1

    def ended(self, how: Ending) -> None:
        self._metrics.open -= 1
        self._metrics.endings[how] += 1

    def refused(self) -> None:
        self._metrics.refused += 1

    def replied(self, batches: int, took_s: float) -> None:
        self._metrics.answer_s.note(took_s, batches)

    def broke_protocol(self, code: str) -> None:
        self._metrics.broken[Code(code)] += 1

    def cannot_accept(self, error: OSError) -> None:
        self._metrics.exhausted += 1
        held = self._resources.let_through(trio.current_time())
        if held is not None:
            self._log.error("cannot_accept", error=error.strerror, left_out=held)

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        self._metrics.probed(name, failure, took_s)

    def said(self, name: str, said: Said) -> None:
        if said.drain != (name in self._draining):
            self._draining ^= {name}
            self._log.info("backend_drains" if said.drain else "backend_drains_no_more", backend=name)

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        now, why = trio.current_time(), self._masked(why)
        if why is None:
            self.whys.pop(name, None)
            self._events.add(now, "backend_up", state.value, name)
        else:
            self.whys[name] = str(why)
            self._events.add(now, "backend_down", str(why), name)
        self._unsaid[name] = _Change(state, why)
        self._say(name, now)

    def _masked(self, why: LinkError | None) -> LinkError | None:
        if why is None or len(self.secret) < _LEAST_SECRET or self.secret not in str(why):
            return why
        return LinkError(why.why, str(why).replace(self.secret, "***"))

    def forget(self, names: Iterable[str]) -> None:
        """Keep nothing of backends that are gone."""
        for name in names:
            self._throttles.pop(name, None)
            self._unsaid.pop(name, None)
            self._draining.discard(name)
            self.whys.pop(name, None)

    def say_rest(self, now: float) -> None:
        """Log the last change of those for which there was no room in the log before."""
        for name in list(self._unsaid):
            self._say(name, now)

    def _say(self, name: str, now: float) -> None:
        throttle = self._throttles.setdefault(name, Throttle(CHANGE_LOG_S, CHANGES_AT_ONCE))
        held = throttle.let_through(now)
        if held is None:
            return
        change = self._unsaid.pop(name)
        if change.why is None:
            self._log.info("backend_up", backend=name, state=change.state.value, left_out=held)
        else:
            self._log.warning(
                "backend_down",
                backend=name,
                state=change.state.value,
                why=change.why.why,
                text=str(change.why),
                left_out=held,
            )
