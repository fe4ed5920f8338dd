"""What the API tells of the virtual queue, as schemas."""

from __future__ import annotations

from typing import Final

from master.config import BOUNDS
from master.config_queue import Control, QueueConfig
from master.queue.control import Steered
from master.queue.limits import Limit
from master.queue.policy import Mode
from master.queue.ticket import Lane, Stage
from master.web.openapi_parts import COUNT, FLAG, NUMBER, TEXT, Schema, array, or_null, record, ref
from master.web.queue_views import MOST_QUEUES, NO_LIMIT

_BOUNDS: Final = BOUNDS[QueueConfig]
_MODE: Final[Schema] = {"enum": list(Mode)}
_LANES: Final = record(**{lane.name.lower(): COUNT for lane in Lane})
_COUNT_OR_LESS: Final[Schema] = {"type": "integer"}
_WAITING: Final[dict[str, Schema]] = {
    "mode": _MODE,
    "waiting": COUNT,
    "called": COUNT,
    "limit": {"enum": list(Limit), "description": "Why nobody more is called now."},
    "reason": {"type": "string", "description": "The same in the word that those who wait are told."},
}


def _number(key: str) -> Schema:
    bounds = _BOUNDS[key]
    return {"type": "number", "minimum": 0 if bounds.zero else bounds.least, "maximum": bounds.most}


_RATE: Final[Schema] = {"anyOf": [_number("per_minute"), {"const": NO_LIMIT}, {"type": "null"}]}
_WISHES: Final[dict[str, Schema]] = {
    "mode": or_null(_MODE),
    "text": or_null({"type": "string", "description": f"At most {_BOUNDS['text'].most:g} bytes."}),
    "per_minute": _RATE | {"description": "The only one that can be wanted of one queue."},
    "target_load": or_null(_number("target_load")),
}
QUEUE_SCHEMAS: Final[dict[str, Schema]] = {
    "QueueSummary": record(**_WAITING),
    "Queue": record(
        at=NUMBER,
        **_WAITING,
        text=TEXT,
        claimed=COUNT,
        held=COUNT,
        count=COUNT,
        limits=record(
            free_places=or_null(_COUNT_OR_LESS),
            per_minute=or_null(NUMBER),
            max_calls=COUNT,
            max_tickets=COUNT,
            max_queues=COUNT,
            max_held=COUNT,
        ),
        load=record(
            target_load=NUMBER,
            users=COUNT,
            places=or_null(COUNT),
            capacity=COUNT,
            serving=COUNT,
            wanted=COUNT,
            cpu=or_null(NUMBER),
        ),
        loop=record(
            control={"enum": list(Control)},
            by={"enum": list(Steered)},
            planned_per_s=or_null(NUMBER),
            per_s=or_null(NUMBER),
            goal=or_null(NUMBER),
            steady_per_s=or_null(NUMBER),
            part=or_null(NUMBER),
        ),
        promises=record(kept=COUNT, broken=COUNT, share=or_null(NUMBER)),
        gone=record(left=COUNT, lapsed=COUNT, missed=COUNT, returned=COUNT, share=or_null(NUMBER)),
        counts=record(joined=COUNT, claimed=COUNT, refused=COUNT, would_wait=COUNT, turned_away=COUNT),
        turns=record(signed=COUNT, left=COUNT),
        store=or_null(record(failing=FLAG, unwritten=COUNT, written_s_ago=or_null(NUMBER))),
        orders=array(ref("QueueOrder")),
        queues=array(ref("QueueLine")) | {"maxItems": MOST_QUEUES, "description": "Those in which the most wait."},
    ),
    "QueueLine": record(
        queue=TEXT,
        waiting=COUNT,
        lanes=_LANES,
        template=TEXT,
        per_minute=or_null(NUMBER),
        drain_per_s=or_null(NUMBER),
        planned_per_s=or_null(NUMBER),
        show_rate=or_null(NUMBER),
        at_once={"type": "boolean", "description": "Who joins now does not wait."},
        eta_s=or_null(NUMBER),
        eta90_s=or_null(NUMBER),
    ),
    "QueueOrder": record(queue=TEXT, who=TEXT, reason=TEXT, at=NUMBER, **_WISHES),
    "QueueWish": {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"},
            **_WISHES,
            "reset": {"type": "boolean", "description": "As configured again, and nothing else."},
        },
        "required": ["reason"],
        "additionalProperties": False,
    },
    "QueueChanged": record(queue=TEXT, wanted=TEXT, who=TEXT),
    "QueuePlace": record(
        queue=TEXT,
        lane={"enum": [lane.name.lower() for lane in Lane]},
        stage={"enum": list(Stage)},
        ahead=or_null(COUNT),
        joined_at=NUMBER,
        ends_in_s=or_null(NUMBER),
        away=FLAG,
        held=FLAG,
    ),
}
