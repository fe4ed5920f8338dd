"""The fake backend as a program, `python -m lambdamu.testing.backend`; `FakeBackendProcess` drives it.

It writes `{"address": [host, port]}`, then answers each line of its input, a JSON object, with one line:

    {"do": "script", "script": {field: value, ...}}     changes these fields of the script
    {"do": "stats"}                                     asks for the counters
    {"do": "hang_up", "reset": bool}                    ends every open connection

A value that JSON cannot carry stands as `{"$msgpack": hex}`, no Data at all as `{"$absent": true}`. A line that cannot
be obeyed is answered with `{"error": text}`. The program ends with its input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import trio
import trio.lowlevel

from lambdamu.testing.fake import FakeBackend
from lambdamu.testing.script import fields_from_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="lambdamu.testing.backend", description="A backend that fails to order.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    options = parser.parse_args()
    trio.run(_serve, options.host, options.port)


async def _serve(host: str, port: int) -> None:
    async with FakeBackend(host=host, port=port, clock=time.monotonic) as backend:
        _say({"address": backend.address})
        buffer = bytearray()
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as orders:
            async for data in orders:
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    _say(_obey(backend, line))


def _obey(backend: FakeBackend, line: bytearray) -> dict[str, Any]:
    try:
        order = json.loads(line)
        match order["do"]:
            case "script":
                backend.script(**fields_from_json(order["script"]))
                return {}
            case "stats":
                return backend.stats().to_json()
            case "hang_up":
                backend.hang_up(reset=order["reset"])
                return {}
            case unknown:
                return {"error": f"there is no order {unknown!r}"}
    except (ValueError, TypeError, KeyError) as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
