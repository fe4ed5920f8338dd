"""What operators want of the queue, kept: a store that fails is told of once, and again when it works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog
import trio

from master.queue.policy import Mode
from master.store import MemoryStore, SavedOrder
from master.waiting.lasting import Lasting
from master.waiting.orders import WHOLE, Order
from tests.master.slow_disk import SlowDisk
from tests.master.thread_clock import thread_clock
from tests.master.waiting.house import House


@pytest.fixture
def autojump_clock() -> Iterator[trio.testing.MockClock]:
    with thread_clock() as clock:
        yield clock


class Disk(SlowDisk, MemoryStore):
    def save_orders(self, orders: Sequence[SavedOrder]) -> None:
        with self:
            super().save_orders(orders)


async def test_orders_that_cannot_be_kept_are_tried_again_and_told_of_once(autojump_clock: object) -> None:
    disk, house, told = Disk(), House(None, commit_s=10.0), []
    capture = structlog.testing.LogCapture()
    log: Any = structlog.wrap_logger(None, processors=[capture])
    lasting = Lasting(house.room, disk, log, lambda kind, text: told.append((kind, text)))
    await lasting.restore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lasting.run)
        disk.full = True
        house.room.order(house.now, WHOLE, Order("ann", "why", 0.0, Mode.HOLD))
        await trio.sleep(60.0)
        assert 3 < lasting.failures < 9
        assert [entry["error"] for entry in capture.entries] == ["the disk is full"]
        disk.full = False
        await trio.sleep(15.0)
        assert told == [
            ("queue_orders_not_written", "the disk is full"),
            ("queue_orders_written", "what operators want of the queue is kept again"),
        ]
        assert [order.why for order in disk.load_orders()] == ["why"]
        nursery.cancel_scope.cancel()
