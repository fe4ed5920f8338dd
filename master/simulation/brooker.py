"""`brooker`: ten servers whose counts are refreshed every so many steps, as Brooker tried it (2012).

One client a step, every eight steps the oldest of each server leaves. With counts that are old enough, the best of two
does worse than chance.
"""

from __future__ import annotations

from collections import deque

import attrs

from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.simulation.masters import NEVER_S, Masters, Progress, Setting, make_backends, no_progress

_SERVERS = 10
_SERVICE_STEPS = 8
_WARM_UP = 0.1


@attrs.frozen
class BrookerSetting:
    """`refresh`: steps between two refreshes of the counts. `length`: steps in all."""

    refresh: int = 60
    length: int = 200_000


def run_brooker(brooker: BrookerSetting, setting: Setting, progress: Progress = no_progress) -> dict[str, float]:
    """Return the mean steps that a client waits and is served: {"mean_time"}. A step is a second."""
    health, loads = HealthPolicy(stale_after_s=NEVER_S), LoadPolicy(connect_s=0.0, reservation_s=NEVER_S)
    masters = Masters(make_backends(_SERVERS), setting, health, loads)
    lines: list[deque[int]] = [deque() for _ in range(_SERVERS)]
    total = clients = 0
    for step in range(brooker.length):
        if step % _SERVICE_STEPS == 0:
            came = [line.popleft() for line in lines if line]
            if step > _WARM_UP * brooker.length:
                total, clients = total + sum(step - at for at in came), clients + len(came)
        if step % brooker.refresh == 0:
            for number, line in enumerate(lines):
                masters.report_to_all(float(step), number, len(line))
        chosen = masters.ask(float(step))
        assert chosen is not None  # noqa: S101 - all servers always work
        lines[chosen].append(step)
        if step % 10_000 == 0:
            progress(step / brooker.length)
    return {"mean_time": total / clients}
