"""`lambdamu check FILE --diff URL`: what a reload with a file would do to a running master."""

from __future__ import annotations

from typing import Final

import attrs

from master.config import SECRETS, Config
from master.config_json import UNKNOWN, default_of, read_config
from master.operator_client import CallError, Json, get
from master.operator_commands import ask, show
from master.reload import compare

_DIFFERENT: Final = 5


def show_difference(config: Config, url: str, *, as_json: bool) -> int:
    """Say what would change at the master at `url` if `config` stood in its file; return the exit code."""
    changes, unseen = ask(lambda: difference(get(url, "/api/v1/config"), config))
    nothing = [] if changes else ["nothing would change" + ", as far as can be seen" * bool(unseen)]
    lines = [*changes, *nothing, *(f"? {each}: may be another one, it is not shown" for each in unseen)]
    show({"changes": changes, "unseen": unseen}, lines, as_json=as_json)
    return _DIFFERENT if changes else 0


def difference(got: Json, config: Config) -> tuple[list[str], list[str]]:
    """Return a line for each difference from what a master told of itself, and the keys of which nobody can tell.

    Raise CallError where what it told is no configuration of this version.
    """
    try:
        running = read_config(got)
    except (ValueError, TypeError, AttributeError, ExceptionGroup) as exc:
        raise CallError("what runs there is of another version; its configuration cannot be compared") from exc
    running, unseen = _fill_in(running, config)
    return compare(running, config).lines(), unseen


def _fill_in(running: Config, config: Config) -> tuple[Config, list[str]]:
    """Take a secret that was not told for the one in the file, and name it; it is known only that it is no default."""
    unseen: list[str] = []
    for table, key in sorted(SECRETS):
        ours = getattr(getattr(config, table), key)
        if getattr(getattr(running, table), key) == UNKNOWN and ours != default_of(table, key):
            unseen.append(f"[{table}]: {key}")
            running = attrs.evolve(running, **{table: attrs.evolve(getattr(running, table), **{key: ours})})
    return running, unseen
