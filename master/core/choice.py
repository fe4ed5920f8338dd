"""What the operator decides of the choice."""

from __future__ import annotations

from enum import StrEnum

import attrs


class Policy(StrEnum):
    """Which of the candidates is chosen."""

    LEAST_LOAD = "least_load"
    TWO_CHOICES = "two_choices"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


class Panic(StrEnum):
    """What is done when too few backends work."""

    REFUSE = "refuse"
    LAST_KNOWN = "last_known"


@attrs.frozen
class ChoicePolicy:
    """How a backend is chosen.

    `join_cap`: a backend is given at most so many times its fair share of the clients, as long as others can take them;
    infinite for no cap. `slack`: by how many expected asks its permits may lie back. `slow_start_s`: for so long after
    it came, a backend's share rises from a tenth to the whole. `zone_slack`: a client stays in its zone while the load
    there is at most this part higher than elsewhere. `session_slack`: it is sent back to the backend of its session
    while the load there is at most this part higher than the mean of the candidates; 0: it never is, for that.
    `panic_threshold`: fewer working backends than this part of the pool are too few; what is done then is `panic`.
    `first_round_s`: at most so long after its start the pool waits for the first probe of each backend before it names
    any.
    """

    policy: Policy = Policy.LEAST_LOAD
    join_cap: float = 3.0
    slack: float = 1.0
    slow_start_s: float = 60.0
    zone_slack: float = 0.2
    session_slack: float = 0.25
    panic_threshold: float = 0.0
    panic: Panic = Panic.REFUSE
    first_round_s: float = 3.0
