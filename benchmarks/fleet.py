"""A process of backends from the test kit: prints their ports as JSON, serves until its standard input ends."""

from __future__ import annotations

import json
import sys

import trio

from lambdamu.testing import FakeFleet


async def main(count: int) -> None:
    async with FakeFleet(count) as fleet:
        print(json.dumps({"ports": [port for _, port in fleet.addresses]}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
