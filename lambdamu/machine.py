"""The logical machine: a nursery, its named objects, and the links between them; and lists of child machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import trio

from lambdamu.messages import Batch, Code, Command, Message, error
from lambdamu.objects import NOTHING, LMObject, Peer, Quick, Reply


class LogicalMachine:
    """Named objects behind one door: a message goes to the object it names."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, LMObject] = {}

    def add(self, lm_object: LMObject) -> None:
        self.objects[lm_object.name] = lm_object

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        """Return the answer of the object that the message names, or an Error when there is none."""
        lm_object = self.objects.get(message.object)
        if lm_object is not None:
            return lm_object.handle(message, now, peer)
        if message.command in (Command.VALUE, Command.ERROR):
            return NOTHING
        return [error(message, Code.UNKNOWN_OBJECT, "there is no such object here")]

    def prepare(self, batch: Batch) -> Quick | None:
        """Return what answers a batch of the same bytes, when its one message has such an answer."""
        if len(batch) != 1 or batch[0].object not in self.objects:
            return None
        return self.objects[batch[0].object].prepare(batch[0])

    def disconnected(self, peer: Peer) -> None:
        for lm_object in self.objects.values():
            lm_object.disconnected(peer)


class ChildMachine(LogicalMachine):
    """A logical machine that lives in the list of another one."""

    async def run(self) -> None:
        """Work until cancelled."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing any more from now on; the task is cancelled next. Again does nothing."""


Child = TypeVar("Child", bound=ChildMachine)
Settings = TypeVar("Settings")


class LMList(Generic[Child, Settings]):
    """The child machines of a machine, by name; their number changes with their configuration.

    `build` makes one child of its settings. It raises when the settings are not valid, and has no other effect.
    """

    def __init__(self, build: Callable[[Settings], Child]) -> None:
        self._build = build
        self._prepared: list[Child] = []
        self._running: dict[str, tuple[Child, trio.CancelScope]] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter([child for child, _ in self._running.values()])

    def __len__(self) -> int:
        return len(self._running)

    def __getitem__(self, name: str) -> Child:
        return self._running[name][0]

    def do_prepare(self, settings: Iterator[Settings] | list[Settings] | tuple[Settings, ...]) -> None:
        """Build every child before any of them starts, so that a bad one stops all."""
        self._prepared = [self._build(item) for item in settings]

    def do_start(self, nursery: trio.Nursery) -> None:
        """Start what was prepared, one task each, beside those that run already."""
        for child in self._prepared:
            scope = trio.CancelScope()
            self._running[child.name] = (child, scope)
            nursery.start_soon(self._run, child, scope)
        self._prepared = []

    def stop(self, name: str) -> None:
        """Stop the child `name` and know it no more; its task ends at its next checkpoint."""
        child, scope = self._running.pop(name)
        child.close()
        scope.cancel()

    async def _run(self, child: Child, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await child.run()
        finally:
            # Not a new child of that name, which may have started while this one was stopping.
            if self._running.get(child.name) == (child, scope):
                del self._running[child.name]
