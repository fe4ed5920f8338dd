"""A cache node and its upstream as processes: the upstream falls silent under load, and first screens that were warmed.

The clients are those of the benchmarks, which share no code with what they ask.
"""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import msgpack

from benchmarks.cache_client import Silence, ask_through, screens, storm
from tests.end_to_end.conftest import Client, Process, Stage, free_port, wait_for_port

COURSE = Silence(rate=100.0, lifetime_s=2.0, well_s=1.0, silent_s=6.0, after_s=2.0)
WORKERS, PLACES = 30, 100
SPARE_S = 1.5
"""What a busy machine may add to an answer, and to the moment at which the upstream is back."""


def begin_at_once() -> None:
    pass


def start(stage: Stage, upstream_s: float, more: str = "") -> tuple[Process, int, int]:
    """Start an upstream and a node for the cache alone; return the node, its port, and that of the upstream."""
    _, upstream = stage.server("--products", str(upstream_s))
    port, config = free_port(), stage.folder / "cache.toml"
    names = enumerate(("Accounts", "Cards", "Deposits", "Loans", "Packages"), 1)
    types = [
        f'[[cache.warm]]\ntype = {number}\nobject = "Products"\nname = "{name}"\nlifetime_s = {COURSE.lifetime_s}\n'
        for number, name in names
    ]
    text = (
        f'[cache]\nlisten = "127.0.0.1:{port}"\nfile = "{stage.folder}/cache.db"\nupstream = ["127.0.0.1:{upstream}"]\n'
    )
    config.write_text(f"{text}workers = {WORKERS}\nlength = {PLACES}\n{''.join(types)}{more}")
    node = stage.start("master", "--config", str(config))
    wait_for_port(port, node)
    return node, port, upstream


def fall_silent(upstream: int, silent: bool) -> None:
    """What it is asked meanwhile never gets an answer, also not later."""
    fault = {"Object": "Products", "Command": "Set", "Name": "Fault", "Data": "silent" if silent else None}
    count = {"Object": "System", "Command": "Get", "Name": "UserCount"}
    with Client(upstream) as client:
        client.send(msgpack.packb([fault, count]))
        client.receive()


def test_a_silent_upstream_is_an_error_in_time_for_each_and_over_when_it_is_back(stage: Stage) -> None:
    http = free_port()
    node, port, upstream = start(stage, 0.02, f'[http]\nlisten = "127.0.0.1:{http}"\n')
    wait_for_port(http, node)
    before = node.rss_bytes()
    busy, queued, rss = [], [], []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask_through, port, begin_at_once, COURSE, partial(fall_silent, upstream))
        while not running.done():
            told = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5.0).read().decode()
            busy.append(sum(map(int, re.findall(r"^lambdamu_cache_workers_busy\{.*\} (\d+)", told, re.MULTILINE))))
            queued += map(int, re.findall(r"^lambdamu_cache_queue_length (\d+)", told, re.MULTILINE))
            rss.append(node.rss_bytes())
            wait([running], 0.5)
    seen = running.result()
    assert seen["unanswered"] == 0
    assert seen["longest_s"] < COURSE.lifetime_s + SPARE_S
    assert seen["well_not_data"] == 0
    assert seen["silent"] == COURSE.rate * COURSE.silent_s
    assert seen["silent_other"] == 0
    assert min(seen[f"silent_{word}"] for word in ("upstream", "expired", "full")) > 0, seen
    assert seen["recovered_s"] < COURSE.lifetime_s + SPARE_S
    assert max(busy) == WORKERS
    assert 0 < max(queued) <= PLACES
    assert max(rss) - before < 30e6
    assert node.popen.poll() is None


def test_a_first_screen_that_was_warmed_is_ten_times_as_fast(stage: Stage) -> None:
    _, port, _ = start(stage, 0.2)
    assert screens(port, begin_at_once, people=5)["faster"] > 10
    seen = storm(port, begin_at_once, lines=2, window=10, sessions=20, whole=False, seconds=0.2)
    assert seen["errors"] == 0
    assert seen["asks"] > 0
