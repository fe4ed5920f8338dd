"""What has changed in the pool since somebody asked: also what time alone has changed, of which nobody else hears."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import attrs

from master.core.admin import Admin


@attrs.define(eq=False)
class News:
    """Of each backend once, so it is bounded by them."""

    _turned: dict[str, None] = attrs.field(factory=dict, init=False)
    _ended: dict[str, Admin] = attrs.field(factory=dict, init=False)

    def turn(self, names: Iterable[str]) -> None:
        """Note who works and is wanted now and was not, or the other way round."""
        self._turned.update(dict.fromkeys(names))

    def end(self, name: str, admin: Admin) -> None:
        """Note what an operator wanted of a backend, and has ended by itself."""
        self._ended[name] = admin

    def take_turned(self, most: int) -> list[str]:
        """Return up to so many, those first that have waited longest, and forget them."""
        taken = list(self._turned)[:most]
        for name in taken:
            del self._turned[name]
        return taken

    def take_ended(self) -> dict[str, Admin]:
        taken, self._ended = self._ended, {}
        return taken

    def keep(self, names: Collection[str]) -> None:
        """Forget all backends but these."""
        self._turned = {name: None for name in self._turned if name in names}
        self._ended = {name: admin for name, admin in self._ended.items() if name in names}
