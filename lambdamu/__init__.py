"""The platform: what a node is made of, and what an application embeds to find its backend.

What is named here is imported when it is first used, so that `import lambdamu` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lambdamu.client import Client as Client
    from lambdamu.client import ClientObserver as ClientObserver
    from lambdamu.client import ClientPolicy as ClientPolicy
    from lambdamu.client import Connection as Connection
    from lambdamu.client import Peers as Peers
    from lambdamu.client import Place as Place
    from lambdamu.client import Tls as Tls
    from lambdamu.client import connect as connect

__all__ = ["Client", "ClientObserver", "ClientPolicy", "Connection", "Peers", "Place", "Tls", "connect"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lambdamu import client  # noqa: PLC0415

    return getattr(client, name)
