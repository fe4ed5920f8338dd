"""The task that posts: it waits for what is due, posts it, and says when posts fail and work again.

Nobody waits for it but the end of the process, and that for a moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog
import trio

from master.alerts.body import About, make_body
from master.alerts.outbox import Outbox, Post
from master.alerts.webhook import WebhookError
from master.config import AlertsPolicy
from master.core.admin import Wish
from master.core.pool import Pool
from master.event_log import Event, EventLog
from master.log import Throttle
from master.webhook_url import WebhookURL

_LOG_S: Final = 600.0

Logger = structlog.typing.FilteringBoundLogger


class Poster(Protocol):
    async def post(self, url: WebhookURL, body: bytes, *, within_s: float) -> None:
        """Post `body`, or raise WebhookError."""
        ...


class Alerter:
    """Posts what changes in `pool`, by its `events`. `policy` gives the settings as they are now."""

    def __init__(
        self,
        policy: Callable[[], AlertsPolicy],
        outbox: Outbox,
        poster: Poster,
        *,
        about: About,
        pool: Pool,
        events: EventLog,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self._policy = policy
        self._outbox = outbox
        self._poster = poster
        self._about = about
        self._pool = pool
        self._events = events
        self._log = log
        self._rng = rng
        self._bell = trio.Event()
        self._failing = False
        self._failures = Throttle(_LOG_S)
        events.listen(self._hear)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            with trio.move_on_at(max(0.0, self._outbox.next_at())):
                await self._bell.wait()
            self._bell = trio.Event()
            post = self._outbox.take(trio.current_time())
            if post is not None:
                await self._try(post)

    async def finish(self, within_s: float) -> None:
        """Post what has not been posted yet, if `within_s` is enough for it."""
        self._outbox.recall()
        self._outbox.hurry()
        post = self._outbox.take(trio.current_time())
        if post is not None:
            with trio.move_on_after(within_s):
                await self._try(post)
            self._outbox.recall()
        if self._policy().webhook is not None and self._outbox.undelivered:
            self._log.warning("alerts_undelivered", changes=self._outbox.undelivered)

    def _hear(self, event: Event) -> None:
        self._outbox.policy = self._policy()
        self._outbox.hear(event, aside=self._is_aside(event.backend, event.at))
        if event.kind == "stopping":
            self._outbox.hurry()
        elif event.kind == "reloaded":
            self._outbox.keep({member.backend.name for member in self._pool})
        self._bell.set()

    def _is_aside(self, name: str, now: float) -> bool:
        try:
            return bool(name) and self._pool[name].wish(now) is not Wish.READY
        except KeyError:
            return False

    async def _try(self, post: Post) -> None:
        policy = self._policy()
        if policy.webhook is None:  # it has just been switched off
            self._outbox.failed(trio.current_time(), self._rng)
            return
        body = make_body(post, self._about, _wall)
        try:
            await self._poster.post(policy.webhook, body, within_s=policy.timeout_s)
        except WebhookError as exc:
            self._outbox.failed(trio.current_time(), self._rng, exc.retry_after_s)
            self._say_failed(policy.webhook, str(exc))
        else:
            self._outbox.succeeded(trio.current_time())
            self._say_works(policy.webhook)

    def _say_failed(self, url: WebhookURL, error: str) -> None:
        now = trio.current_time()
        if not self._failing:
            self._failing = True
            self._events.add(now, "alerts_failed", f"{url}: {error}")
        held = self._failures.let_through(now)
        if held is not None:
            self._log.warning("alerts_failed", webhook=str(url), error=error, left_out=held)

    def _say_works(self, url: WebhookURL) -> None:
        if self._failing:
            self._failing = False
            self._events.add(trio.current_time(), "alerts_work", str(url))
            self._log.info("alerts_work", webhook=str(url))


def _wall(at: float) -> float:
    return at + time.time() - trio.current_time()
