"""`lambdamu-health [URL]`: whether the master of this machine answers. Exit codes: 0 it does, 1 it does not.

For health checks that start a process each time. It imports next to nothing, so it takes 35 ms of a processor where
`lambdamu status` takes 600. It names 127.0.0.1: where `localhost` is ::1 first, a master that listens on IPv4 would be
sick for ever.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_USUAL: Final = "127.0.0.1:7080"
_TIMEOUT_S: Final = 4.0
_HEAD_BYTES: Final = 64
_PLACE: Final = re.compile(r"(?:http://)?(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>[0-9]{1,5})/?")
_ALL_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where one that listens everywhere is asked."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask /livez once; end the process with the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    place = given[0] if given else place_of(os.environ)
    try:
        fault = ask(place)
    except OSError as exc:
        fault = exc.strerror or str(exc)
    if fault:
        print(f"{place!a}: {fault}", file=sys.stderr)
    sys.exit(1 if fault else 0)


def place_of(environment: Mapping[str, str]) -> str:
    """Return where the master's [http] listens, by LAMBDAMU_URL, by its configuration there, or as usual."""
    return environment.get("LAMBDAMU_URL") or environment.get("LAMBDAMU_HTTP__LISTEN") or _USUAL


def ask(place: str) -> str:
    """Return what is wrong with the answer of the master at `place`; "" when nothing is. Raise OSError."""
    match = _PLACE.fullmatch(place)
    if match is None or int(match["port"]) > 65535:
        return f"is not the place of a master's [http], such as http://{_USUAL}"
    host = match["host"].strip("[]")
    with socket.create_connection((_ALL_ADDRESSES.get(host, host), int(match["port"])), _TIMEOUT_S) as master:
        master.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        head = b""
        while b"\r\n" not in head and len(head) < _HEAD_BYTES:
            data = master.recv(_HEAD_BYTES)
            if not data:
                break
            head += data
    line = head.partition(b"\r\n")[0]
    return "" if re.match(rb"HTTP/1\.\d 200\b", line) else f"answered {line!a}"
