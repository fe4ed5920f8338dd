"""Keeps nothing beyond the process."""

from __future__ import annotations

from master.store.state import State


class MemoryStore:
    def __init__(self) -> None:
        self._state = State()
        self._next: dict[str, int] = {}
        self._secrets: dict[str, bytes] = {}

    def load(self) -> State:
        return self._state

    def save(self, state: State) -> None:
        self._state = state

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        first = max(self._next.get(name, 0), least)
        self._next[name] = first + size
        return first

    def secret(self, name: str, fresh: bytes) -> bytes:
        return self._secrets.setdefault(name, fresh)
