"""What must outlive the process. Times are Unix seconds: another process has another monotonic clock."""

from master.store.memory import MemoryStore
from master.store.sqlite import SqliteStore
from master.store.sqlite_cache import SqliteCache
from master.store.state import (
    CacheFile,
    QueueStore,
    RowsLostError,
    SavedAdmin,
    SavedCache,
    SavedOrder,
    SavedQueue,
    SavedReport,
    State,
    Store,
    StoreBusyError,
    StoreError,
)

__all__ = [
    "CacheFile",
    "MemoryStore",
    "QueueStore",
    "RowsLostError",
    "SavedAdmin",
    "SavedCache",
    "SavedOrder",
    "SavedQueue",
    "SavedReport",
    "SqliteCache",
    "SqliteStore",
    "State",
    "Store",
    "StoreBusyError",
    "StoreError",
    "open_store",
]


def open_store(file: str) -> Store:
    """Return the store that a configuration asks for; nothing is read or made yet."""
    return SqliteStore(file) if file else MemoryStore()
