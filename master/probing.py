"""What all monitors of a master have in common, and who hears what they find."""

from __future__ import annotations

import random

import attrs

from lambdamu.datapack import WireLimits
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import LinkFault
from lambdamu.poller import Poller
from master.config import ProbePolicy
from master.core.health import Said
from master.core.pool import Pool, State
from master.probe import Questions


class ProbeObserver:
    """Hears what the probes find; this one does nothing with it."""

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        """A probe ended, well or with `failure`; `took_s`: from the question to the report, if there is one."""

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        """A backend went over from working to not working or back, or does not work for another reason than before.

        Full and not full both work.
        """

    def said(self, name: str, said: Said) -> None:
        """A backend says something else of itself than before."""


@attrs.frozen
class Probing:
    """What all monitors of a master have in common."""

    policy: ProbePolicy
    questions: Questions
    limits: WireLimits
    pool: Pool
    poller: Poller
    rng: random.Random
    observer: ProbeObserver


def as_link_error(exc: LinkError | RemoteProtocolError) -> LinkError:
    if isinstance(exc, LinkError):
        return exc
    return LinkError(LinkFault.NOT_THE_PROTOCOL, str(exc))
