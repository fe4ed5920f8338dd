"""The task that posts, in virtual time: nobody waits for it, and what it says is in the log once."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import structlog
import trio
import trio.lowlevel

from lambdamu.testing import virtual_clock
from master.alerts.alerter import Alerter
from master.alerts.body import About
from master.alerts.outbox import Outbox
from master.alerts.webhook import WebhookError
from master.config import AlertsPolicy, BackendConfig, Config
from master.core.pool import Admin, Wish
from master.event_log import EventLog
from master.pool_config import make_pool
from master.webhook_url import WebhookURL

FINISH_S = 0.3
URL = WebhookURL.parse("https://hooks.example/hush")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return virtual_clock()


@attrs.define(eq=False)
class FakePoster:
    """Keeps what it is to post; says `error`, or takes `takes_s`."""

    error: str = ""
    retry_after_s: float = 0.0
    takes_s: float = 0.0
    tries: list[tuple[float, WebhookURL]] = attrs.Factory(list)
    bodies: list[Any] = attrs.Factory(list)

    async def post(self, url: WebhookURL, body: bytes, *, within_s: float) -> None:
        self.tries.append((trio.current_time(), url))
        with trio.move_on_after(within_s):
            await trio.sleep(self.takes_s)
            if not self.error:
                self.bodies.append(json.loads(body))
                return
            raise WebhookError(self.error, self.retry_after_s)
        raise WebhookError("no answer in time")


class House:
    def __init__(self, policy: AlertsPolicy) -> None:
        self.policy = policy
        self.poster = FakePoster()
        self.events = EventLog()
        self.pool = make_pool(Config(backends=(BackendConfig("b1", "10.0.0.1", 1), BackendConfig("b2", "10.0.0.1", 2))))
        self.capture = structlog.testing.LogCapture()
        self.outbox = Outbox(policy, 0.0)
        self.alerter = Alerter(
            lambda: self.policy,
            self.outbox,
            self.poster,
            about=About("127.0.0.1:7000", "1"),
            pool=self.pool,
            events=self.events,
            log=structlog.wrap_logger(None, processors=[self.capture]),
            rng=random.Random(1),
        )

    def happen(self, kind: str, backend: str = "") -> None:
        self.events.add(trio.current_time(), kind, "why", backend)

    def told(self) -> list[list[str]]:
        return [[change["kind"] for change in body["changes"]] for body in self.poster.bodies]

    def logged(self) -> list[str]:
        return [entry["event"] for entry in self.capture.entries]


@asynccontextmanager
async def house(policy: AlertsPolicy | None = None) -> AsyncIterator[House]:
    here = House(policy or AlertsPolicy(URL))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.alerter.run)
        yield here
        nursery.cancel_scope.cancel()
    await here.alerter.finish(FINISH_S)


async def test_a_change_is_posted_with_the_times_of_the_wall(autojump_clock: object) -> None:
    async with house() as here:
        here.happen("backend_down", "b1")
        await trio.sleep(100)
        (body,) = here.poster.bodies
        assert body["text"] == "lambdamu 127.0.0.1:7000: b1 is down: why"
        assert body["at"] > body["changes"][0]["at"]
        assert here.poster.tries == [(1.0, URL)]


async def test_who_adds_an_event_never_waits_for_a_receiver_that_hangs(autojump_clock: object) -> None:
    async with house() as here:
        here.poster.takes_s = 1000.0
        for i in range(1000):
            before = trio.current_time()
            here.happen("backend_down" if i % 2 else "backend_up", "b1")
            assert trio.current_time() == before
            await trio.sleep(1)
        assert here.poster.bodies == []
        assert 10 < len(here.poster.tries) < 70
        assert here.outbox.undelivered <= 1
        here.poster.takes_s = 0.0
        await trio.sleep(100)
        assert here.told() == [["backend_down"]]


async def test_failures_stand_in_the_log_and_the_events_once_and_so_does_their_end(autojump_clock: object) -> None:
    async with house() as here:
        here.poster.error = "it answered 500"
        here.happen("backend_down", "b1")
        await trio.sleep(550)
        assert here.logged() == ["alerts_failed"]
        here.poster.error = ""
        await trio.sleep(100)
        assert here.logged() == ["alerts_failed", "alerts_work"]
        kinds = [(event.kind, event.text) for event in here.events.last(9)][1:]
        assert kinds == [
            ("alerts_failed", "https://hooks.example/...: it answered 500"),
            ("alerts_work", "https://hooks.example/..."),
        ]
        assert "hush" not in str(here.capture.entries)
        assert here.outbox.counts["failed"] > 5


async def test_it_is_switched_on_and_off_and_elsewhere_by_a_reload(autojump_clock: object) -> None:
    async with house(AlertsPolicy()) as here:
        here.happen("backend_down", "b1")
        await trio.sleep(100)
        assert here.poster.tries == []
        here.policy = AlertsPolicy(URL)
        here.happen("reloaded")
        await trio.sleep(100)
        other = WebhookURL.parse("http://elsewhere.example/")
        here.policy = AlertsPolicy(other)
        here.happen("reloaded")
        here.happen("backend_up", "b1")
        await trio.sleep(100)
        here.policy = AlertsPolicy()
        here.happen("reloaded")
        here.happen("backend_down", "b1")
        await trio.sleep(100)
        assert [url for _, url in here.poster.tries] == [URL, other]


async def test_what_its_operator_has_set_aside_and_what_is_gone_wake_nobody(autojump_clock: object) -> None:
    async with house() as here:
        here.pool.set_admin(0.0, "b1", Admin(Wish.DRAIN, "ann", "why"))
        here.happen("backend_down", "b1")
        here.happen("backend_down", "b9")
        here.happen("reloaded")
        await trio.sleep(100)
        (body,) = here.poster.bodies
        assert [(change["backend"], change["severity"]) for change in body["changes"]] == [("b1", "info")]


async def test_the_stop_is_told_at_once_whenever_the_last_post_was(autojump_clock: object) -> None:
    async with house() as here:
        here.happen("backend_down", "b1")
        await trio.sleep(1.5)
        here.happen("stopping")
        await trio.sleep(0.1)
        assert here.told() == [["backend_down"], ["stopping"]]  # clients may be served for long yet
        here.happen("spare_lost")
    assert here.told()[2:] == [["spare_lost"]]
    assert trio.current_time() == 1.6
    assert here.logged() == []


async def test_a_stop_waits_a_moment_for_a_receiver_that_hangs_and_says_what_is_lost(autojump_clock: object) -> None:
    async with house() as here:
        here.poster.takes_s = 1000.0
        here.happen("backend_down", "b1")
        await trio.sleep(2)
        here.happen("stopping")
        await trio.lowlevel.checkpoint()
    assert trio.current_time() == 2 + FINISH_S
    assert here.capture.entries == [{"event": "alerts_undelivered", "changes": 2, "log_level": "warning"}]


async def test_without_a_webhook_a_stop_says_nothing_of_it(autojump_clock: object) -> None:
    async with house(AlertsPolicy()) as here:
        here.happen("backend_down", "b1")
        here.happen("stopping")
    assert here.logged() == []
    assert here.poster.tries == []
