"""What can be seen of a file that is to keep something, before anybody opens it for that.

Not for the process that keeps something in it: to close the file here would end the locks that it has on it.
"""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Final

from lambdamu.address import quoted
from master.store.sqlite import FORMS
from master.store.sqlite_cache import CACHE_FORM, FORM_AT

_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"


def fault_of_state(file: str) -> str:
    """Return why the state, and the queue with it, could not be kept there by this user; "" where nothing is seen."""
    return _fault(file, range(len(FORMS) + 1), "the state")


def fault_of_cache(file: str) -> str:
    """Return why the cache could not be kept there by this user; "" where nothing is seen."""
    return _fault(file, (0, CACHE_FORM), "the cache")


def _fault(file: str, forms: Container[int], what: str) -> str:
    if os.path.isdir(file):
        return f"{quoted(file)} is a folder"
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        return f"there is no folder {quoted(folder)}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not write in the folder {quoted(folder)}"
    return _fault_within(file, forms, what)


def _fault_within(file: str, forms: Container[int], what: str) -> str:
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # a pipe would be waited for
            return f"{quoted(file)} is no file"
        with Path(file).open("rb") as opened:
            header = opened.read(_HEADER_BYTES)
    except FileNotFoundError:  # it is made
        return ""
    except OSError as exc:
        return f"{quoted(file)}: {exc.strerror}"
    except ValueError:
        return f"{quoted(file)} is no name of a file"
    if not os.access(file, os.W_OK):
        return f"this user may not write {quoted(file)}"
    # The form of one that is written the first time may stand in the log beside it, and here a 0.
    if header and not (header.startswith(_MAGIC) and int.from_bytes(header[FORM_AT]) in forms):
        return f"{quoted(file)} is no file of {what} that this version knows"
    return ""
