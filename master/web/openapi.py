"""What the API promises, as a document of OpenAPI 3.1. A test holds it against the routes and what they answer.

It is one long document."""

from __future__ import annotations

from typing import Any, Final

from master.config import ARRAYS, TABLES
from master.config_json import schema_of
from master.web.cache_views import MOST_KEYS, MOST_ROWS
from master.web.openapi_cache import CACHE_SCHEMAS
from master.web.openapi_parts import COUNT, COUNTS, FLAG, NUMBER, TEXT, Schema, array, or_null, record, ref
from master.web.openapi_queue import QUEUE_SCHEMAS
from master.web.queue_views import MOST_QUEUES

_STATES: Final = ["ready", "no_weight", "unprobed", "down", "lost", "stale", "ejected", "full"]


_POOL: Final[dict[str, Schema]] = {
    "verdict": TEXT,
    "takers": COUNT,
    "count": COUNT,
    "ready": FLAG,
    "unready": TEXT,
    "at": NUMBER,
    "asks": COUNTS,
    "connections": COUNT,
    "session_s": or_null(NUMBER),
    "panic": FLAG,
    "reload": or_null(ref("LastReload")),
    "alone": {"type": "boolean", "description": "The node has the cache alone, and no pool."},
    "cache_node": or_null(record(address=TEXT, connected=FLAG, trouble=TEXT)),
    "asks_per_s": {"type": "object", "additionalProperties": NUMBER},
    "queue": or_null(ref("QueueSummary")),
    "cache": or_null(ref("CacheSummary")),
}
_WRITTEN: Final[Schema] = {
    "type": "object",
    "description": "By table and key: what stands in the file where the process works with another value.",
    "additionalProperties": {"type": "object"},
}
_SCHEMAS: Final[dict[str, Schema]] = {
    "Error": record(error=TEXT),
    "Admin": record(state={"enum": ["ready", "drain", "maint"]}, who=TEXT, reason=TEXT, until=or_null(NUMBER)),
    "Backend": record(
        name=TEXT,
        zone=TEXT,
        priority=COUNT,
        weight=NUMBER,
        address=or_null(TEXT),
        state={"type": "string", "description": "One of " + ", ".join(_STATES) + "; more may come."},
        why=TEXT,
        works=FLAG,
        takes_clients=FLAG,
        users=COUNT,
        capacity=or_null(COUNT),
        load=or_null(NUMBER),
        report_age_s=or_null(NUMBER),
        reservations=COUNT,
        assignments=COUNT,
        assignments_per_s=or_null(NUMBER),
        probes=COUNT,
        probe_failures=COUNT,
        failures=COUNTS,
        ejections=COUNT,
        probe_mean_s=or_null(NUMBER),
        probe_p50_s=or_null(NUMBER),
        probe_p99_s=or_null(NUMBER),
        admin=or_null(ref("Admin")),
    ),
    "Backends": record(**_POOL, backends=array(ref("Backend"))),
    "Explanation": record(
        at=NUMBER,
        alone={"type": "boolean"},
        zone=TEXT,
        chosen=or_null(TEXT),
        reason=TEXT,
        backends=array(
            record(
                name=TEXT,
                state=TEXT,
                report_age_s=or_null(NUMBER),
                reported=or_null(NUMBER),
                own=or_null(NUMBER),
                weight=NUMBER,
                load=or_null(NUMBER),
                opens_in=or_null(NUMBER),
                reason=TEXT,
            )
        ),
    ),
    "Answers": record(
        at=NUMBER,
        answers=array(
            record(
                at=NUMBER,
                client=or_null(TEXT),
                network=TEXT,
                zone=TEXT,
                result=TEXT,
                reason=TEXT,
                backend=or_null(TEXT),
                loads=array(record(name=TEXT, load=or_null(NUMBER))),
            )
        ),
        place=or_null(ref("QueuePlace")),
    ),
    "Log": record(at=NUMBER, events=array(ref("Event"))),
    "Event": record(number=COUNT, at=NUMBER, kind=TEXT, backend=TEXT, text=TEXT),
    "Config": record(
        **{name: schema_of(name) for name in TABLES if name not in ARRAYS},
        alone={"type": "boolean"},
        as_written=_WRITTEN,
        hidden=array(TEXT),
        backend=array(schema_of("backend")),
    ),
    "Wish": {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"},
            "until_s": {
                "anyOf": [{"type": "number", "minimum": 1, "maximum": 2592000}, {"type": "null"}],
                "description": "For so many seconds from now; left out, until somebody changes it.",
            },
        },
        "required": ["reason"],
        "additionalProperties": False,
    },
    "Changed": record(name=TEXT, state={"enum": ["ready", "drain", "maint"]}, who=TEXT),
    "LastReload": record(ok=FLAG, at=NUMBER, who=TEXT, faults=array(TEXT) | {"maxItems": 20}),
    "Reloaded": record(changes=array(TEXT), who=TEXT),
    **QUEUE_SCHEMAS,
    **CACHE_SCHEMAS,
}
_REFUSALS: Final = {
    "400": "The request is wrong.",
    "401": "A token is needed.",
    "403": "This caller may not.",
    "404": "There is no such thing.",
    "409": "The change cannot be made; nothing has changed.",
    "413": "The body is too large or too slow.",
    "415": "The body must be JSON.",
    "501": "This master cannot do it.",
    "503": "Not now.",
}


def _answer(description: str, kind: str, schema: Schema) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _operation(name: str, summary: str, good: Schema, *refusals: str, **more: Any) -> Schema:
    bad = {code: _answer(_REFUSALS[code], "application/json", ref("Error")) for code in refusals}
    return {"operationId": name, "summary": summary, "responses": {"200": good, **bad}, **more}


def _json(description: str, schema: str) -> Schema:
    return _answer(description, "application/json", ref(schema))


def _query(name: str, text: str) -> Schema:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", "maxLength": 128}}


def _text(description: str) -> Schema:
    return _answer(description, "text/plain", TEXT)


_NAME: Final[Schema] = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_QUEUE: Final = _NAME | {"name": "queue"}
_BODY: Final[Schema] = {"required": True, "content": {"application/json": {"schema": ref("Wish")}}}
_READING: Final = ("401", "403", "413")
_CHANGING: Final = ("400", "401", "403", "404", "409", "413", "415", "501")
_OPEN: Final[list[Schema]] = [{}]


def _set(word: str, summary: str) -> Schema:
    good = _json("It is so.", "Changed")
    return {"post": _operation(word, summary, good, *_CHANGING, requestBody=_BODY, parameters=[_NAME])}


def _order(name: str, summary: str, **more: Any) -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": ref("QueueWish")}}}
    good = _json("It is so.", "QueueChanged")
    return _operation(name, summary, good, *_CHANGING, requestBody=body, **more)


def _look_up(what: str, summary: str, schema: str, *more: Schema) -> Schema:
    """Return the operation that looks up one session, device or client of the cache."""
    parameters = [_NAME | {"name": what}, *more]
    good, bad = _json("What is known of it.", schema), ("400", *_READING, "404", "501")
    return _operation(
        f"cache_{what}", f"{summary} Needs a token that may write, and is noted.", good, *bad, parameters=parameters
    )


_VALUES: Final = {
    "name": "values",
    "in": "query",
    "description": "1: values are shown, and the ids of sessions in whole.",
    "schema": {"enum": ["", "0", "1", "false", "true"]},
}
_CLIENT: Final = "The id of a client, the first 8 or more digits of its hash, its address or its network."
_READY: Final = {
    **_operation("readyz", "Whether clients should be sent to this master.", _text("They should."), security=_OPEN),
}
_READY["responses"]["503"] = _text("They should not, and why.")

DOCUMENT: Final[Schema] = {
    "openapi": "3.1.0",
    "info": {"title": "The operators' side of a lambdamu master", "version": "1"},
    "security": [{"bearer": []}, {"basic": []}],
    "paths": {
        "/livez": {"get": _operation("livez", "Whether the process answers.", _text("It does."), security=_OPEN)},
        "/readyz": {"get": _READY},
        "/metrics": {
            "get": _operation(
                "metrics",
                "The metrics, in the format of Prometheus or, when it is accepted, OpenMetrics.",
                {
                    "description": "The metrics.",
                    "content": {kind: {"schema": TEXT} for kind in ("text/plain", "application/openmetrics-text")},
                },
                *_READING,
            )
        },
        "/api/v1/openapi.json": {
            "get": _operation(
                "openapi", "This document.", _answer("It.", "application/json", {"type": "object"}), *_READING
            )
        },
        "/api/v1/backends": {
            "get": _operation(
                "backends", "The pool and each of its backends.", _json("How they stand.", "Backends"), *_READING
            )
        },
        "/api/v1/explain": {
            "get": _operation(
                "explain",
                "What a client would be answered now, and why.",
                _json("The choice, and how each backend stands in it.", "Explanation"),
                "400",
                *_READING,
                parameters=[
                    _query("zone", "The zone of the client."),
                    _query("client", _CLIENT),
                    _query("device", "The device that the client says, for its session."),
                ],
            )
        },
        "/api/v1/answers": {
            "get": _operation(
                "answers",
                "What clients were answered, newest first, at most 200.",
                _json("The answers that are kept.", "Answers"),
                "400",
                *_READING,
                parameters=[_query("client", _CLIENT + " Left out: everybody's.")],
            )
        },
        "/api/v1/log": {
            "get": _operation(
                "log", "What happened last, newest first, at most 50.", _json("The events.", "Log"), *_READING
            )
        },
        "/api/v1/config": {
            "get": _operation(
                "config",
                "The configuration that is at work, by the tables of its file; secrets are null.",
                _json("All of it.", "Config"),
                *_READING,
            )
        },
        "/api/v1/events": {
            "get": _operation(
                "events",
                "Server-sent events: begin, pool, queue, cache, backends and log until complete, then what changes.",
                _answer("A stream without end.", "text/event-stream", TEXT),
                "503",
                *_READING,
            )
        },
        "/api/v1/backends/{name}/ready": _set("ready", "Let clients in again."),
        "/api/v1/backends/{name}/drain": _set("drain", "Let no new clients in; it is still probed."),
        "/api/v1/backends/{name}/maint": _set("maint", "Let no new clients in, and do not probe it."),
        "/api/v1/queue": {
            "get": _operation(
                "queue",
                f"The virtual queue as a whole, and the {MOST_QUEUES} queues in which the most people wait.",
                _json("How it stands.", "Queue"),
                *_READING,
                "404",
            ),
            "post": _order("order_queue", "Change the queue as a whole until somebody changes it again."),
        },
        "/api/v1/queue/{queue}": {
            "get": _operation(
                "queue_of",
                "One queue.",
                _json("How it stands.", "QueueLine"),
                *_READING,
                "404",
                parameters=[_QUEUE],
            ),
            "post": _order("order_queue_of", "Change the rate of one queue.", parameters=[_QUEUE]),
        },
        "/api/v1/cache": {
            "get": _operation(
                "cache",
                f"The cache as a whole, and the {MOST_KEYS} names that are asked for most.",
                _json("How it stands.", "Cache"),
                *_READING,
                "404",
            )
        },
        "/api/v1/cache/session/{session}": {
            "get": _look_up(
                "session", f"A session, and {MOST_ROWS} of the data kept with it.", "CacheSession", _VALUES
            ),
            "delete": _operation(
                "cache_end_session",
                "End a session, and all that is kept with it: its client has to log in again.",
                _json("It has ended.", "CacheSessionEnded"),
                *(code for code in _CHANGING if code != "409"),
                requestBody={"required": True, "content": {"application/json": {"schema": ref("CacheReason")}}},
                parameters=[_NAME | {"name": "session"}],
            ),
        },
        "/api/v1/cache/device/{device}": {"get": _look_up("device", "Who uses a device.", "CacheDevice")},
        "/api/v1/cache/client/{client}": {
            "get": _look_up("client", "The sessions, devices and warm data of a client.", "CacheClient", _VALUES)
        },
        "/api/v1/reload": {
            "post": _operation(
                "reload",
                "Read the configuration and the tokens again.",
                _json("What has changed.", "Reloaded"),
                *(code for code in _CHANGING if code not in {"400", "404"}),
            )
        },
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic", "description": "Any name, the token as the password."},
        },
    },
}
