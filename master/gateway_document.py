"""What the gateway promises, as a document of OpenAPI 3.1. A test holds it against what it answers."""

from __future__ import annotations

import json
from typing import Any, Final

from lambdamu.messages import QueueReason, Reason, Result

Schema = dict[str, Any]

_SECONDS: Final[Schema] = {"type": ["number", "null"]}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}


def _text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}


def _map(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


_ASK: Final[Schema] = {
    "description": "What is left out is not known. Keys that are not named here are passed over.",
    **_map(
        Client=_text(128),
        Device=_text(128),
        Zone=_text(128),
        Queue=_text(128),
        Ticket=_text(200),
        Away={"type": "boolean"},
        Leave={"type": "boolean"},
        Pass=_text(512),
        Failed={
            "type": "array",
            "maxItems": 64,
            "items": _map(IP=_text(64), Port=_PORT, Why=_text(128)) | {"required": ["IP", "Port"]},
        },
        Want={"type": "array", "maxItems": 16, "items": {"enum": ["Name", "Alternates", "TTL", "Turn"]}},
    ),
}
_ANSWER: Final[Schema] = {
    **_map(
        Result={"enum": [result.value for result in Result]},
        Data=_map(
            IP={"type": "string"},
            Port=_PORT,
            Name={"type": "string"},
            Turn={"type": "string", "maxLength": 200, "description": "To be shown to the backend, once."},
            Alternates={"type": "array", "items": _map(IP={"type": "string"}, Port=_PORT, Name={"type": "string"})},
            TTL={"type": "number"},
            Queue={"type": "string", "description": "The queue in which the client waits."},
            Ticket=_text(200) | {"description": "Its place, to be shown at the next ask."},
            Position={"type": "integer", "minimum": 0, "description": "People ahead; 0: it is next."},
            ETA=_SECONDS | {"description": "How long it still waits, in the mean. Null: not known."},
            ETA90=_SECONDS | {"description": "What nine in ten waits do not exceed. Null: not known."},
            RetryAfter=_SECONDS | {"description": "When to ask again. Null: not at all."},
            Reason={"enum": sorted({*Reason, *QueueReason})},
            Text={"type": "string", "description": "What the operator says to people."},
        ),
    ),
    "required": ["Result", "Data"],
    "additionalProperties": False,
}
_FAULT: Final[Schema] = {
    **_map(Error=_map(Code={"type": "string"}, Text={"type": "string"}) | {"required": ["Code", "Text"]}),
    "required": ["Error"],
    "additionalProperties": False,
}


def _json(description: str, schema: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _answer(description: str) -> Schema:
    after = {"description": "RetryAfter in whole seconds, rounded up.", "schema": {"type": "integer", "minimum": 0}}
    return _json(description, "Answer") | {"headers": {"Retry-After": after}}


_RESPONSES: Final[Schema] = {
    "200": _answer("OK: go there. Wait: ask again after RetryAfter, by POST, with the Ticket."),
    "400": _json("The question is not right; the text names what.", "Fault"),
    "403": _answer(
        "Denied: RetryAfter null means that it is of no use to ask again. Used: the Ticket has let somebody else in."
    ),
    "413": {"description": "The body is too long. The connection ends."},
    "503": _answer("NoServer or Closed: ask again after RetryAfter; where it is null, do not."),
}

_DOCUMENT: Final[Schema] = {
    "openapi": "3.1.0",
    "info": {"title": "Where do I connect? The gateway of a lambdamu master", "version": "1"},
    "paths": {
        "/v1/server": {
            "get": {"operationId": "server", "summary": "Where do I connect?", "responses": _RESPONSES},
            "post": {
                "operationId": "server_for",
                "summary": "Where do I connect, being who I am?",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Ask"}}}},
                "responses": _RESPONSES,
            },
        },
    },
    "components": {"schemas": {"Ask": _ASK, "Answer": _ANSWER, "Fault": _FAULT}},
}
DOCUMENT: Final = json.dumps(_DOCUMENT, separators=(",", ":")).encode()
"""As it is sent."""
