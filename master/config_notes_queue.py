"""What the virtual queue of a configuration means, in words, and what in it looks like a mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from lambdamu.address import quoted
from master.config import ChoiceConfig, Config, figure
from master.config_queue import Control, QueueConfig
from master.config_words import count, names, takes
from master.core.choice import Panic
from master.queue.lines import DEFAULT
from master.queue.policy import Mode, TemplatePolicy

_MODES: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        Mode.AUTO: "people wait while there is no room",
        Mode.QUEUE_ALL: "everybody takes a place first",
        Mode.PASS: "all are let through, and who would have waited is counted",
        Mode.HOLD: "nobody enters, and everybody keeps the place",
        Mode.CLOSED: "nobody enters, and newcomers get no place",
    }
)
_CONTROLS: Final[Mapping[Control, str]] = MappingProxyType(
    {
        Control.ON: "steered by the load",
        Control.SHADOW: "what the load asks for is shown and binds nobody",
        Control.OFF: "not steered by the load",
    }
)
_MOST_SHOWN: Final = 10
"""Templates; a file may have hundreds."""


def describe_queue(queue: QueueConfig | None) -> Iterator[str]:
    if queue is None:
        return
    yield f"queue: mode {queue.mode.value}, {_MODES[queue.mode]}"
    spare = ", with room for the loss of the largest backend" * queue.n_minus_1
    yield (
        f"queue: up to {figure(100 * queue.target_load)} % of the capacity{spare}, {_rate(queue.per_minute)}"
        f"{'' if queue.per_minute is None else f', {queue.burst} at once'}, {count(queue.max_calls, 'open call')}"
    )
    yield f"queue: {_CONTROLS[queue.control]}"
    yield (
        f"queue: {count(queue.max_tickets, 'place')} in {count(queue.max_queues, 'queue')}, "
        f"{queue.max_tickets_per_network} for one network; {count(queue.max_held, 'plain client')} held"
    )
    yield f"turns: hold for {figure(queue.turn_s)} s" if queue.keys_file else "turns: none"
    for template in queue.templates[:_MOST_SHOWN]:
        yield f"queues {quoted(template.pattern)}: {', '.join(_describe_template(template))}"
    if len(queue.templates) > _MOST_SHOWN:
        yield f"queues: {count(len(queue.templates) - _MOST_SHOWN, 'more template')}"


def _describe_template(template: TemplatePolicy) -> Iterator[str]:
    yield f"share {figure(template.share)}"
    yield _rate(template.per_minute)
    yield f"at most {template.max_waiting} wait"
    yield f"lanes {' '.join(lane.name.lower() for lane in sorted(template.lanes))}"


def _rate(per_minute: float | None) -> str:
    return "no limit a minute" if per_minute is None else f"{figure(per_minute)} a minute"


def warn_of_queue(config: Config, queue: QueueConfig) -> Iterator[str]:
    endless = [backend.name for backend in config.backends if takes(backend) and backend.capacity is None]
    if endless:
        yield f"without capacity of {names(endless)} there is always room: no free place is waited for in [queue]"
    if not config.state.file:
        yield "[queue] without [state] file: a restart forgets all places but those of clients that show their Ticket"
    if not queue.keys_file:
        yield "[queue] has no keys_file: no client gets a Turn"
    yield from _warn_of_other_masters(config.choice)
    if queue.per_minute == 0:
        yield "[queue] per_minute is 0: nobody is let in"
    if not any(fnmatchcase(DEFAULT, template.pattern) for template in queue.templates):
        yield f"no [[queue.template]] fits {quoted(DEFAULT)}: clients that name no Queue are denied"
    for number, template in enumerate(queue.templates):
        entry = f"[[queue.template]] {quoted(template.pattern)}"
        if template.per_minute == 0:
            yield f"{entry} per_minute is 0: nobody is let in from its queues"
        before = next((each.pattern for each in queue.templates[:number] if _fits_all_of(each, template)), None)
        if before is not None:
            yield f"{entry} stands behind {quoted(before)}, which fits all that it fits: no queue is opened from it"


def _warn_of_other_masters(choice: ChoiceConfig) -> Iterator[str]:
    if choice.masters > 1:
        yield "each of several masters has a [queue] of its own: its order and per_minute hold at that one alone"
    if choice.panic is Panic.LAST_KNOWN:
        yield "while no probe is answered [queue] lets nobody in, whatever [choice] panic says"


def _fits_all_of(one: TemplatePolicy, other: TemplatePolicy) -> bool:
    """Return whether one fits whatever the other fits, as far as that is plain to see."""
    plain = not {*"*?["} & {*other.pattern}
    return one.pattern == "*" or (plain and fnmatchcase(other.pattern, one.pattern))
