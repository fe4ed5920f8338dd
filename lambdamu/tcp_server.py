"""TCPServer: the port, in the way that suits the system. Both ways keep the same promises, which `port` names."""

from __future__ import annotations

import sys

from lambdamu.listeners import bound_addresses, open_listeners
from lambdamu.port import Ending, Handler, PortLimits, PortObserver

if sys.platform == "linux":
    from lambdamu.epoll_server import EpollServer as TCPServer
else:
    from lambdamu.stream_server import StreamServer as TCPServer

__all__ = ["Ending", "Handler", "PortLimits", "PortObserver", "TCPServer", "bound_addresses", "open_listeners"]
