"""What the queue answers, by HTTP and JSON: at once, also where a client of the other port would be held."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdamu.messages import Result
from master.gateway_document import DOCUMENT
from tests.master.wait_page.scripted import make_room, ok, wait


@pytest.mark.parametrize(
    ("given", "status", "after"),
    [
        (wait(41), 200, "4"),
        (wait(0, ETA=None, ETA90=None, RetryAfter=1.0), 200, "1"),
        ((Result.CLOSED, {"Reason": "Full", "RetryAfter": 60.0, "Text": "come at noon"}), 503, "60"),
        ((Result.CLOSED, {"Reason": "Closed", "RetryAfter": None, "Text": ""}), 503, None),
        ((Result.DENIED, {"Reason": "Used", "RetryAfter": None}), 403, None),
        ((Result.DENIED, {"Reason": "NoQueue", "RetryAfter": None}), 403, None),
        (ok(), 200, None),
    ],
)
def test_an_answer_of_the_queue_is_told_at_once_and_as_the_document_says(
    given: tuple[Result, dict[str, Any]], status: int, after: str | None
) -> None:
    result, data = given
    room = make_room(given)  # whose door takes no ask that it may hold
    for answer in (room.ask("/v1/server"), room.ask("/v1/server", "POST", json.dumps({"Ticket": "t"}).encode())):
        assert (answer.status, answer.json) == (status, {"Result": result, "Data": data})
        assert answer.headers.get("retry-after") == after
    document = json.loads(DOCUMENT)
    known = document["components"]["schemas"]["Answer"]["properties"]["Data"]["properties"]
    assert data.keys() <= known.keys()
    assert data.get("Reason", "Left") in known["Reason"]["enum"]
    assert "Retry-After" in document["paths"]["/v1/server"]["get"]["responses"][str(status)]["headers"]
    assert room.door.asked == [None, {"Ticket": "t"}]
