"""A thousand backends, asked once a second by one master."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from lambdamu.address import Address
from lambdamu.tcp_server import open_listeners
from master.config import BackendConfig, Config, MasterPolicy, Mode, ProbePolicy
from master.core.pool import State
from master.entrances import Entrance
from master.log import Sink, make_logger
from master.node import Node

BACKENDS = 1000
SECONDS = 5


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    command = [sys.executable, str(Path(__file__).with_name("fleet.py")), str(BACKENDS)]
    # Not measured for coverage: a fleet that is traced line by line cannot keep up.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as fleet:
        assert fleet.stdin is not None
        assert fleet.stdout is not None
        yield json.loads(fleet.stdout.readline())
        fleet.stdin.close()


@pytest.mark.no_cover  # what is measured here is the program and not the measuring of its lines
@pytest.mark.parametrize("mode", list(Mode))
async def test_every_report_is_fresh_and_a_core_is_left_over(mode: Mode, ports: list[int]) -> None:
    backends = tuple(BackendConfig(f"b{port}", "127.0.0.1", port) for port in ports)
    config = Config(MasterPolicy(listen=Address("127.0.0.1", 0)), probe=ProbePolicy(mode=mode), backends=backends)
    node = Node(config, rng=random.Random(1), log=make_logger(Sink(None), json=True))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, {Entrance.CLIENTS: open_listeners(config.master.listen)})
        await trio.sleep(2.5)
        began, used = time.monotonic(), time.process_time()
        oldest = 0.0
        while time.monotonic() - began < SECONDS:
            await trio.sleep(0.5)
            now = trio.current_time()
            for member in node.pool:
                assert member.state(now) is State.READY
                assert member.report is not None
                oldest = max(oldest, member.report.age(now))
        share = (time.process_time() - used) / (time.monotonic() - began)
        nursery.cancel_scope.cancel()
    print(f"{BACKENDS} backends, mode {mode}: {share:.2f} of a core, oldest report {oldest:.2f} s")
    assert share < 0.9
