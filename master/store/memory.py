"""Keeps nothing beyond the process."""

from __future__ import annotations

from master.store.state import State


class MemoryStore:
    def __init__(self) -> None:
        self._state = State()

    def load(self) -> State:
        return self._state

    def save(self, state: State) -> None:
        self._state = state
