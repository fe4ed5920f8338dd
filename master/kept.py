"""How something is kept beyond the process, as whoever shows it sees it."""

from __future__ import annotations

from typing import Protocol


class Kept(Protocol):
    """What is told of how something is kept beyond the process."""

    failing: bool
    """What was tried last, failed."""
    error: str
    """What went wrong last, in one line; empty where nothing ever has."""
    written_at: float
    """When the last commit ended well, or the start."""
    commits: int
    failures: int
    """Both from the start."""

    @property
    def unwritten(self) -> int:
        """How many changes would be lost if the process were killed now."""
        ...
