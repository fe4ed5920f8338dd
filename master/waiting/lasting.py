"""What of a waiting room outlives the process: its tickets, by their keeper, and what operators want of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from master.queue.policy import Mode
from master.store import QueueStore, SavedOrder, StoreError
from master.waiting.keeper import QueueKeeper
from master.waiting.orders import Order
from master.waiting.room import WaitingRoom
from master.write_behind import Logger, Trouble

_STORE_S: Final = 5.0
_RETRY_S: Final = 10.0
_FINISH_S: Final = 0.3


class Lasting(Trouble):
    """`tell`: hears of what has changed, a kind of event and a line for people."""

    def __init__(self, room: WaitingRoom, store: QueueStore, log: Logger, tell: Callable[[str, str], None]) -> None:
        super().__init__(log, tell)
        self._room = room
        self._store = store
        self._changed = trio.Event()
        self._unsaved = False
        self.keeper = QueueKeeper(
            store,
            room.queues,
            room.turns.numbers,
            lambda: room.policy.commit_s,
            log,
            tell,
            epoch_s=room.queues.epoch_s,
        )
        self.keeper.on_secrets = lambda: room.adopt_secrets(self.keeper.secrets)
        room.on_changed = self._note
        room.kept = self.keeper

    async def restore(self) -> None:
        """Put back what was kept, before anybody asks."""
        try:
            with trio.fail_after(_STORE_S):
                orders = await trio.to_thread.run_sync(self._store.load_orders, abandon_on_cancel=True)
            self._room.restore_orders(trio.current_time(), {order.queue: _read(order) for order in orders})
            for order in orders:
                self._log.info("queue_order_restored", queue=order.queue, who=order.who, why=order.why)
        except (StoreError, ValueError) as exc:
            self._fell_short("queue_orders_not_read", str(exc))
        except trio.TooSlowError:
            self._fell_short("queue_orders_not_read", f"took more than {_STORE_S:g} s")
        await self.keeper.restore()
        self._room.adopt_secrets(self.keeper.secrets)

    async def run(self) -> None:
        """Write whatever changes, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.run)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                if not await self._save():
                    self._changed.set()
                    await trio.sleep(_RETRY_S)

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        await self.keeper.finish()
        if self._unsaved:
            with trio.move_on_after(_FINISH_S):
                await self._save()

    def _note(self) -> None:
        self._unsaved = True
        self._changed.set()

    async def _save(self) -> bool:
        orders = [_write(queue, order) for queue, order in self._room.orders.items()]
        self._unsaved = False
        try:
            with trio.fail_after(_STORE_S):
                await trio.to_thread.run_sync(self._store.save_orders, orders, abandon_on_cancel=True)
        except (StoreError, trio.TooSlowError) as exc:
            self._unsaved = True
            self._fell_short("queue_orders_not_written", str(exc) or f"took more than {_STORE_S:g} s")
            return False
        except trio.Cancelled:
            self._unsaved = True
            raise
        self._recovered("queue_orders_written", "what operators want of the queue is kept again")
        return True


def _read(saved: SavedOrder) -> Order:
    """Raise ValueError on a mode that this version does not know."""
    mode = None if saved.mode is None else Mode(saved.mode)
    return Order(saved.who, saved.why, saved.at, mode, saved.text, saved.per_minute, saved.target_load)


def _write(queue: str, order: Order) -> SavedOrder:
    mode = None if order.mode is None else order.mode.value
    return SavedOrder(queue, mode, order.text, order.per_minute, order.target_load, order.who, order.why, order.at)
