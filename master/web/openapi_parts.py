"""The small schemas of which those of the API are made, and how they are put together."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
COUNTS: Final[Schema] = {"type": "object", "additionalProperties": COUNT}
FLAG: Final[Schema] = {"type": "boolean"}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}
