"""Some of the asks in the log, at debug: at most one in a tenth of a second, with how many were left out.

It stands where answers are noted, so at any other level an ask costs nothing more.
"""

from __future__ import annotations

from typing import Final

import structlog

from master.answer_log import Answer, AnswerLog
from master.log import Throttle

EVERY_S: Final = 0.1

Logger = structlog.typing.FilteringBoundLogger


class SampledAnswers(AnswerLog):
    """Logs some of what it notes: clients as hashes, addresses as networks, as it knows them."""

    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._log = log
        self._throttle = Throttle(EVERY_S)

    def note(self, answer: Answer) -> None:
        super().note(answer)
        self._tell(answer)

    def note_plain(self, answer: Answer) -> None:
        super().note_plain(answer)
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        held = self._throttle.let_through(answer.at)
        if held is None:
            return
        self._log.debug(
            "ask",
            client=answer.client,
            network=answer.network,
            zone=answer.zone,
            result=answer.result,
            reason=answer.reason,
            backend=answer.backend,
            loads=[f"{name} {load:.3g}" for name, load in answer.loads],
            left_out=held,
        )
