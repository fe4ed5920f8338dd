"""Two masters are restarted one after the other, while clients come in all the time."""

from __future__ import annotations

import signal

import trio

import lambdamu
from lambdamu.errors import LambdaMuError
from lambdamu.testing import FakeBackend
from tests.end_to_end.conftest import Process, Stage, free_port, wait_for_port, wait_until_up
from tests.end_to_end.test_http import get

QUICK = """
[master]
linger_s = 0.5
retry_after_s = 0.2
[choice]
masters = 2
[probe]
interval_s = 0.2
timeout_s = 0.2
stale_after_s = 0.6
"""
EVERY_S = 0.05
WITHIN_S = 10.0


class House:
    """One of two masters of the same backends."""

    def __init__(self, stage: Stage, backends: list[int]) -> None:
        self._stage, self._backends, self._http = stage, backends, free_port()
        self.port: int | None = None
        self._master = self._start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _start(self) -> Process:
        text = f'{QUICK}[http]\nlisten = "127.0.0.1:{self._http}"\n'
        master, self.port = self._stage.master(*self._backends, text=text, port=self.port)
        wait_for_port(self._http, master)
        wait_until_up(master, len(self._backends))
        return master

    def restart(self) -> None:
        """Do what docs/operations.md says."""
        assert get(self._http, "/readyz") == (200, "ok\n")
        self._master.signal(signal.SIGTERM)
        assert self._master.wait() == 0
        self._master = self._start()
        assert get(self._http, "/readyz") == (200, "ok\n")


class Crowd:
    """Clients that come one after the other, each with a memory of its own, and those that did not get in."""

    def __init__(self, masters: list[str]) -> None:
        self._masters = masters
        self._policy = lambdamu.ClientPolicy(within_s=WITHIN_S)
        self.in_ = 0
        self.failed: list[str] = []

    async def come(self, until: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            while not until.is_set():
                nursery.start_soon(self._client)
                await trio.sleep(EVERY_S)

    async def _client(self) -> None:
        try:
            async with lambdamu.connect(
                self._masters, user_name="ann", user_mail="ann@example.org", policy=self._policy
            ):
                self.in_ += 1
        except LambdaMuError as error:
            self.failed.append(str(error))


async def test_every_client_gets_in_while_two_masters_are_restarted_one_after_the_other(stage: Stage) -> None:
    async with FakeBackend() as one, FakeBackend() as other:
        ports = [backend.address[1] for backend in (one, other)]
        houses = [await trio.to_thread.run_sync(House, stage, ports) for _ in range(2)]
        crowd, over = Crowd([house.address for house in houses]), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.come, over)
            for house in houses:
                await trio.to_thread.run_sync(house.restart)
            over.set()
        assert crowd.failed == []
        assert crowd.in_ > 20
