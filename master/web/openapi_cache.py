"""What the API tells of the cache, as schemas."""

from __future__ import annotations

from typing import Final

from lambdamu.breaker import State
from lambdamu.messages import CACHE, WARM
from master.cache.rows import Table
from master.web.cache_views import MOST_KEYS, MOST_ROWS, SHOWN_BYTES
from master.web.openapi_parts import COUNT, FLAG, NUMBER, TEXT, Schema, array, or_null, record, ref

_TABLE: Final[Schema] = {"enum": [table.name.lower() for table in reversed(Table)]}
_SHARE: Final = or_null({"type": "number", "minimum": 0, "maximum": 1})
_SUMMARY: Final[dict[str, Schema]] = {
    "sessions": COUNT,
    "trouble": array(TEXT) | {"description": "A line for each thing that is not as it should be."},
}
_TIMES: Final[dict[str, Schema]] = {"renewed_at": NUMBER, "ends_in_s": NUMBER}
_ROW: Final[dict[str, Schema]] = {
    "type": COUNT,
    "version": COUNT,
    **_TIMES,
    "ttl_s": NUMBER,
    "value": ref("CacheValue"),
}
CACHE_SCHEMAS: Final[dict[str, Schema]] = {
    "CacheSummary": record(**_SUMMARY),
    "Cache": record(
        at=NUMBER,
        **_SUMMARY,
        bytes=COUNT,
        max_bytes=COUNT,
        tables=array(record(table=_TABLE, rows=COUNT, bytes=COUNT, evicted=COUNT, expired=COUNT, refused=COUNT)),
        last_minute=record(
            seconds=or_null(NUMBER),
            hit_rate=_SHARE,
            asks_per_s=or_null(NUMBER),
            saved_per_s=or_null(NUMBER),
            calls_per_s=or_null(NUMBER),
            failed_per_s=or_null(NUMBER),
            refused_per_s=or_null(NUMBER),
        ),
        warm=or_null(
            record(
                asks=COUNT,
                hits=COUNT,
                joined=COUNT,
                missed=COUNT,
                refused=COUNT,
                stale=COUNT,
                hit_rate=_SHARE,
                saved=COUNT,
                calls=COUNT,
                failures=COUNT,
                app_starts=COUNT,
                warmed=COUNT,
                flights=COUNT,
                max_flights=COUNT,
            )
        ),
        queue=record(
            length=COUNT,
            max_length=COUNT,
            oldest_s=NUMBER,
            waiting=COUNT,
            max_waiting=COUNT,
            refused=COUNT,
            put_out=COUNT,
            expired=COUNT,
            cut=COUNT,
            dropped=COUNT,
        ),
        workers=record(busy=COUNT, max=COUNT, kinds=array(record(kind=TEXT, busy=COUNT, max=COUNT))),
        upstream=array(record(peer=TEXT, breaker={"enum": [state.value for state in State]})),
        store=or_null(record(failing=FLAG, unwritten=COUNT, written_s_ago=NUMBER)),
        connections=record(open=COUNT, max=COUNT, refused=COUNT),
        keys=array(record(table={"enum": [CACHE.lower(), WARM.lower()]}, name=TEXT, asks=COUNT, over=COUNT))
        | {"maxItems": MOST_KEYS, "description": "Asked for most in the last five to ten minutes; `over`: too many."},
    ),
    "CacheValue": record(
        bytes=COUNT,
        looks={"enum": ["empty", "text", "bytes"]},
        text=or_null(TEXT),
        base64=or_null(TEXT),
    )
    | {"description": f"With values=1 its first {SHOWN_BYTES} bytes, as one of text and base64; else both are null."},
    "CacheSession": record(
        at=NUMBER,
        session=TEXT,
        hash=TEXT,
        client=TEXT,
        **_ROW,
        more={"type": "boolean", "description": "There are others, which are not told."},
        entries=array(record(key=TEXT, **_ROW)) | {"maxItems": MOST_ROWS},
    ),
    "CacheDevice": record(
        at=NUMBER,
        device=TEXT,
        clients=array(record(client=TEXT, **_TIMES)) | {"maxItems": MOST_ROWS},
        more=FLAG,
    ),
    "CacheClient": record(
        at=NUMBER,
        client=TEXT,
        more=FLAG,
        devices=array(record(device=TEXT, **_TIMES)) | {"maxItems": MOST_ROWS},
        sessions=array(record(session=TEXT, hash=TEXT, **_ROW)) | {"maxItems": MOST_ROWS},
        warm=array(record(**_ROW)) | {"maxItems": MOST_ROWS},
    ),
    "CacheReason": {
        "type": "object",
        "properties": {"reason": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}},
        "required": ["reason"],
        "additionalProperties": False,
    },
    "CacheSessionEnded": record(
        session={"type": "string", "description": "The first digits of its hash."}, ended=FLAG, who=TEXT
    ),
}
