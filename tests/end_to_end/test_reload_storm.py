"""Reloads of a real master while clients ask all the time: nobody who asks, and nothing that is kept, notices."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgpack
import trio

from lambdamu.testing import FakeBackend, Script
from tests.end_to_end.conftest import ASK, START_S, Client, Process, Stage, free_port, wait_for_port, wait_until_up

# A machine that is busy with others makes nobody down here.
PROBE = "[probe]\ninterval_s = 1.0\ntimeout_s = 1.0\nfall = 20\nstale_after_s = 30.0\n"
CHOICE = "[choice]\nslow_start_s = 0\njoin_cap = 1e9\n"


class Site:
    """A master in a process of its own, its file, and backends in ours."""

    def __init__(self, stage: Stage, backends: list[FakeBackend]) -> None:
        self.stage, self.backends = stage, backends
        self.http = free_port()
        self.process: Process
        self.port = 0
        self.reloads = 0

    def tables(self, keys: str, more: str = "") -> str:
        """Return the tables of the first two, each with `keys`, and of the others with `more`, where it is given."""
        each = [f'name = "b{i}"\nhost = "127.0.0.1"\nport = {b.address[1]}\n' for i, b in enumerate(self.backends)]
        kept = [table + keys for table in each[:2]] + [table + more for table in each[2:] if more]
        return "".join(f"[[backend]]\n{table}\n" for table in kept)

    async def start(self, keys: str) -> None:
        text = f'{PROBE}{CHOICE}[http]\nlisten = "127.0.0.1:{self.http}"\n{self.tables(keys)}'
        self.process, self.port = await trio.to_thread.run_sync(lambda: self.stage.master(text=text))
        self.file = self.stage.folder / f"pool-{self.port}.toml"
        self.head = self.file.read_text().partition("[[backend]]")[0]
        await trio.to_thread.run_sync(wait_for_port, self.http, self.process)
        await self.told("backend_up", 2)

    async def told(self, event: str, times: int) -> None:
        with trio.fail_after(START_S):
            while len(self.process.events(event)) < times:  # noqa: ASYNC110 - a log has no event to wait for
                await trio.sleep(0.01)

    async def reload(self, tables: str) -> None:
        self.file.write_text(self.head + tables)
        self.process.signal(signal.SIGHUP)
        self.reloads += 1
        await self.told("reloaded", self.reloads)

    async def get(self, path: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}{path}", data, {"Content-Type": "application/json"}
        )

        def get() -> str:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()  # type: ignore[no-any-return]

        return await trio.to_thread.run_sync(get)


@asynccontextmanager
async def site(stage: Stage, count: int, keys: str = "") -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(FakeBackend(Script(users=i))) for i in range(count)]
        here = Site(stage, backends)
        await here.start(keys)
        yield here
        await trio.to_thread.run_sync(stage.end)


async def answer(stream: trio.SocketStream) -> Any:
    """Ask on a connection that is there; return the port of the backend, or what was said instead of it."""
    await stream.send_all(ASK)
    unpacker = msgpack.Unpacker()
    with trio.fail_after(START_S):
        while True:
            unpacker.feed(await stream.receive_some(65536))
            for batch in unpacker:
                said = batch[0]["Data"]
                return said["Data"]["Port"] if said["Result"] == "OK" else said["Result"]


async def test_fifty_reloads_under_a_storm_of_asks_are_noticed_by_nobody(stage: Stage) -> None:
    answers: list[Any] = []
    async with site(stage, 4) as here:
        await here.get("/api/v1/backends/b1/drain", {"reason": "upgrade"})
        over = trio.Event()

        async def keep_asking() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", here.port) as stream:
                while not over.is_set():
                    answers.append(await answer(stream))

        async def come_and_ask() -> None:
            while not over.is_set():
                async with await trio.open_tcp_stream("127.0.0.1", here.port) as stream:
                    answers.append(await answer(stream))

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(keep_asking)
                nursery.start_soon(come_and_ask)
            for i in range(50):
                # The same; other weights; one more, who is sent nobody; and all of it.
                keys, more = f"weight = {1 + i % 2}.0\n" * (i % 4 > 0), "weight = 0\n" * (i % 4 > 1)
                await here.reload(here.tables(keys, more))
            over.set()
        assert len(answers) > 100
        assert set(answers) == {here.backends[0].address[1]}
        assert [backend.stats().opened for backend in here.backends[:2]] == [1, 1]
        metrics = await here.get("/metrics")
        assert int(float(re.findall(r'_assignments_total\{backend="b0"\} (\S+)', metrics)[0])) == len(answers)
        assert re.findall(r'lambdamu_probe_failures_total\{backend="b[01]".*?\} (\S+)', metrics)
        assert {*re.findall(r'lambdamu_probe_failures_total\{backend="b[01]".*?\} (\S+)', metrics)} == {"0.0"}
        rows = {row["name"]: row for row in json.loads(await here.get("/api/v1/backends"))["backends"]}
        assert (rows["b1"]["state"], rows["b1"]["admin"]["reason"]) == ("drain", "upgrade")
        for i in (0, 1):
            asked = len(here.backends[i].stats().asked_at)
            assert rows[f"b{i}"]["probes"] in (asked - 2, asked - 1, asked)
        assert not here.process.events("backend_down")


def test_five_hundred_who_ask_at_once_amid_probes_and_a_reload_are_all_sent_somewhere(stage: Stage) -> None:
    backends = {stage.server()[1] for _ in range(2)}
    text = f"{PROBE}{CHOICE}".replace("1.0", "0.2")
    master, port = stage.master(*backends, text=text, backend="capacity = 1000")
    wait_until_up(master, 2)
    file = stage.folder / f"pool-{port}.toml"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(port)) for _ in range(500)]
        for more in ("", 'zone = "x"\n', f'[[backend]]\nhost = "127.0.0.1"\nport = {free_port()}\n'):
            whole = file.with_suffix(".new")  # a reload that still reads finds the one or the other
            whole.write_text(file.read_text() + more)
            whole.rename(file)
            if more:
                master.signal(signal.SIGHUP)
            for client in clients:
                client.send(ASK)
            answers = [client.receive()[0]["Data"] for client in clients]
            assert {each["Result"] for each in answers} == {"OK"}
            assert {each["Data"]["Port"] for each in answers} == backends
    end = time.monotonic() + START_S
    while len(master.events("reloaded")) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
