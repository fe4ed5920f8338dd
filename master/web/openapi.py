"""What the API promises, as a document of OpenAPI 3.1. A test holds it against the routes and what they answer."""

from __future__ import annotations

from typing import Any, Final

from master.config import ARRAYS, TABLES
from master.config_json import schema_of

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "number"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_COUNTS: Final[Schema] = {"type": "object", "additionalProperties": _COUNT}
_FLAG: Final[Schema] = {"type": "boolean"}
_STATES: Final = ["ready", "no_weight", "unprobed", "down", "lost", "stale", "ejected", "full"]


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_POOL: Final[dict[str, Schema]] = {
    "verdict": _TEXT,
    "takers": _COUNT,
    "count": _COUNT,
    "ready": _FLAG,
    "unready": _TEXT,
    "at": _NUMBER,
    "asks": _COUNTS,
    "connections": _COUNT,
    "session_s": _or_null(_NUMBER),
    "panic": _FLAG,
    "reload": _or_null(_ref("LastReload")),
    "asks_per_s": {"type": "object", "additionalProperties": _NUMBER},
}
_WRITTEN: Final[Schema] = {
    "type": "object",
    "description": "By table and key: what stands in the file where the process works with another value.",
    "additionalProperties": {"type": "object"},
}
_SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object(error=_TEXT),
    "Admin": _object(state={"enum": ["ready", "drain", "maint"]}, who=_TEXT, reason=_TEXT, until=_or_null(_NUMBER)),
    "Backend": _object(
        name=_TEXT,
        zone=_TEXT,
        priority=_COUNT,
        weight=_NUMBER,
        address=_or_null(_TEXT),
        state={"type": "string", "description": "One of " + ", ".join(_STATES) + "; more may come."},
        why=_TEXT,
        works=_FLAG,
        takes_clients=_FLAG,
        users=_COUNT,
        capacity=_or_null(_COUNT),
        load=_or_null(_NUMBER),
        report_age_s=_or_null(_NUMBER),
        reservations=_COUNT,
        assignments=_COUNT,
        assignments_per_s=_or_null(_NUMBER),
        probes=_COUNT,
        probe_failures=_COUNT,
        failures=_COUNTS,
        ejections=_COUNT,
        probe_mean_s=_or_null(_NUMBER),
        probe_p50_s=_or_null(_NUMBER),
        probe_p99_s=_or_null(_NUMBER),
        admin=_or_null(_ref("Admin")),
    ),
    "Backends": _object(**_POOL, backends=_array(_ref("Backend"))),
    "Explanation": _object(
        at=_NUMBER,
        zone=_TEXT,
        chosen=_or_null(_TEXT),
        reason=_TEXT,
        backends=_array(
            _object(
                name=_TEXT,
                state=_TEXT,
                report_age_s=_or_null(_NUMBER),
                reported=_or_null(_NUMBER),
                own=_or_null(_NUMBER),
                weight=_NUMBER,
                load=_or_null(_NUMBER),
                opens_in=_or_null(_NUMBER),
                reason=_TEXT,
            )
        ),
    ),
    "Answers": _object(
        at=_NUMBER,
        answers=_array(
            _object(
                at=_NUMBER,
                client=_or_null(_TEXT),
                network=_TEXT,
                zone=_TEXT,
                result=_TEXT,
                reason=_TEXT,
                backend=_or_null(_TEXT),
                loads=_array(_object(name=_TEXT, load=_or_null(_NUMBER))),
            )
        ),
    ),
    "Log": _object(at=_NUMBER, events=_array(_ref("Event"))),
    "Event": _object(number=_COUNT, at=_NUMBER, kind=_TEXT, backend=_TEXT, text=_TEXT),
    "Config": _object(
        **{name: schema_of(name) for name in TABLES if name not in ARRAYS},
        as_written=_WRITTEN,
        hidden=_array(_TEXT),
        backend=_array(schema_of("backend")),
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
    "Changed": _object(name=_TEXT, state={"enum": ["ready", "drain", "maint"]}, who=_TEXT),
    "LastReload": _object(ok=_FLAG, at=_NUMBER, who=_TEXT, faults=_array(_TEXT) | {"maxItems": 20}),
    "Reloaded": _object(changes=_array(_TEXT), who=_TEXT),
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
    bad = {code: _answer(_REFUSALS[code], "application/json", _ref("Error")) for code in refusals}
    return {"operationId": name, "summary": summary, "responses": {"200": good, **bad}, **more}


def _json(description: str, schema: str) -> Schema:
    return _answer(description, "application/json", _ref(schema))


def _query(name: str, text: str) -> Schema:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", "maxLength": 128}}


def _text(description: str) -> Schema:
    return _answer(description, "text/plain", _TEXT)


_NAME: Final[Schema] = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_BODY: Final[Schema] = {"required": True, "content": {"application/json": {"schema": _ref("Wish")}}}
_READING: Final = ("401", "403", "413")
_CHANGING: Final = ("400", "401", "403", "404", "409", "413", "415", "501")
_OPEN: Final[list[Schema]] = [{}]


def _set(word: str, summary: str) -> Schema:
    good = _json("It is so.", "Changed")
    return {"post": _operation(word, summary, good, *_CHANGING, requestBody=_BODY, parameters=[_NAME])}


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
                    "content": {kind: {"schema": _TEXT} for kind in ("text/plain", "application/openmetrics-text")},
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
                parameters=[_query("zone", "The zone of the client."), _query("client", _CLIENT)],
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
                "Server-sent events: begin, backends and log until complete, and then pool, backends and log.",
                _answer("A stream without end.", "text/event-stream", _TEXT),
                "503",
                *_READING,
            )
        },
        "/api/v1/backends/{name}/ready": _set("ready", "Let clients in again."),
        "/api/v1/backends/{name}/drain": _set("drain", "Let no new clients in; it is still probed."),
        "/api/v1/backends/{name}/maint": _set("maint", "Let no new clients in, and do not probe it."),
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
