"""What a fake backend has seen."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs
import trio.lowlevel


@attrs.frozen
class Stats:
    """The counters of a fake backend. A connection that is over is one of aborted, ended_well and ended_here."""

    opened: int = 0
    """Connections so far."""
    open_now: int = 0
    open_most: int = 0
    """The most connections that were open at one time."""
    aborted: int = 0
    """Ended by the peer before the protocol's end: reset, or closed with nothing answered or an answer still owed."""
    ended_well: int = 0
    """Closed by the peer after it had each answer."""
    ended_here: int = 0
    """Ended by this side: the script said so, the peer did not speak the protocol, or the backend was stopped."""
    answered: int = 0
    """UserCount questions answered whole, with no answer owed beside them."""
    concurrent_most: int = 0
    """The most UserCount questions that waited for their answers at one time."""
    asked_at: tuple[float, ...] = ()
    """When each UserCount question came, in seconds of the backend's clock."""
    last_question: bytes = b""
    """The bytes since the last reply: of the last question, both batches of it where they came together."""
    user_name: str | None = None
    user_mail: str | None = None
    """Whom the last Auth named."""

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self) | {"last_question": self.last_question.hex()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Stats:
        question = bytes.fromhex(fields["last_question"])
        return cls(**fields | {"last_question": question, "asked_at": tuple(fields["asked_at"])})


class End(Enum):
    """How a connection ended."""

    ABORTED = "aborted"
    WELL = "ended_well"
    HERE = "ended_here"


class Tally:
    """The counting behind `Stats`; `changed` wakes whoever waits for a count."""

    def __init__(self) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self._opened = 0
        self._open_most = 0
        self._ends = dict.fromkeys(End, 0)
        self._answered = 0
        self._asking = 0
        self._asking_most = 0
        self._asked_at: list[float] = []
        self.last_question = b""
        self.user_name: str | None = None
        self.user_mail: str | None = None

    def opened(self) -> None:
        self._opened += 1
        self._open_most = max(self._open_most, self._open_now)
        self.changed.unpark_all()

    def asked(self, now: float) -> None:
        """Count one UserCount question."""
        self._asked_at.append(now)
        self._asking += 1
        self._asking_most = max(self._asking_most, self._asking)
        self.changed.unpark_all()

    def no_longer_asking(self, questions: int) -> None:
        """Forget UserCount questions that were answered, or whose connection is over."""
        self._asking -= questions

    def answered(self, questions: int) -> None:
        self._answered += questions
        self.changed.unpark_all()

    def over(self, end: End) -> None:
        self._ends[end] += 1
        self.changed.unpark_all()

    @property
    def _open_now(self) -> int:
        return self._opened - sum(self._ends.values())

    def stats(self) -> Stats:
        return Stats(
            opened=self._opened,
            open_now=self._open_now,
            open_most=self._open_most,
            aborted=self._ends[End.ABORTED],
            ended_well=self._ends[End.WELL],
            ended_here=self._ends[End.HERE],
            answered=self._answered,
            concurrent_most=self._asking_most,
            asked_at=tuple(self._asked_at),
            last_question=self.last_question,
            user_name=self.user_name,
            user_mail=self.user_mail,
        )
