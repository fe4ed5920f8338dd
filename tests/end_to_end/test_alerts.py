"""A real master tells a real receiver that a backend has died, and that it stops itself."""

from __future__ import annotations

import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tests.end_to_end.conftest import Stage, free_port, wait_for_port, wait_until_named

SECRET = "hush-T0-B0"
FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n[choice]\nfirst_round_s = 0\n"


@contextmanager
def receiver() -> Iterator[tuple[int, queue.Queue[dict[str, Any]]]]:
    """Take posts; yield the port and what was posted."""
    posts: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, posts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def alerts(port: int) -> str:
    return f'[alerts]\nwebhook = "http://127.0.0.1:{port}/{SECRET}"\nmin_interval_s = 0.2\n'


def until(posts: queue.Queue[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the next change of that kind."""
    while True:
        for change in posts.get(timeout=20)["changes"]:
            if change["kind"] == kind:
                return dict(change)


def test_a_backend_that_is_killed_and_comes_back_and_the_stop_are_posted(stage: Stage) -> None:
    backends = [stage.server() for _ in range(2)]
    (_, alive), (killed, port) = backends
    with receiver() as (hook, posts):
        master, clients = stage.master(alive, port, text=FAST + alerts(hook))
        wait_until_named(clients, alive, port)
        killed.signal(signal.SIGKILL)
        down = until(posts, "backend_down")
        assert (down["backend"], down["severity"]) == (f"127.0.0.1:{port}", "warning")
        stage.server(port=port)
        assert until(posts, "backend_up")["backend"] == f"127.0.0.1:{port}"
        master.signal(signal.SIGTERM)
        assert until(posts, "stopping")["text"].startswith("the master stops")
        assert master.wait() == 0
    assert SECRET not in master.stderr


def test_a_receiver_that_hangs_holds_up_neither_asks_nor_the_stop(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        http = free_port()
        text = f'{FAST}{alerts(hangs.getsockname()[1])}[http]\nlisten = "127.0.0.1:{http}"\n'
        _, alive = stage.server()
        master, clients = stage.master(alive, free_port(), text=text)
        wait_for_port(http, master)
        wait_until_named(clients, alive)
        hangs.settimeout(20)
        held, _ = hangs.accept()  # the post has begun: of two backends one is down
        wait_until_named(clients, alive, seconds=5)
        before = time.monotonic()
        master.signal(signal.SIGTERM)
        assert master.wait() == 0
        assert time.monotonic() - before < 3.0  # grace_s is 5
        held.close()
        assert master.events("alerts_undelivered")
