"""The embedded client among real processes: masters that end, backends that are killed."""

from __future__ import annotations

import signal

import pytest

import lambdamu
from lambdamu.errors import NoServerError
from lambdamu.messages import SYSTEM, USER_COUNT, Command, Message
from tests.end_to_end.conftest import Stage, free_port, wait_until_up

PROBE = "[probe]\ninterval_s = 2.0\ntimeout_s = 1.0\nstale_after_s = 20.0\n"
SLOW_NEWS = PROBE + 'mode = "reconnect"\n'
"""So a master goes on sending people to a backend that has just died."""


def make_client(*ports: int, within_s: float = 20.0) -> lambdamu.Client:
    peers = lambdamu.Peers(lambdamu.ClientPolicy(within_s=within_s))
    masters = [f"127.0.0.1:{port}" for port in ports]
    return lambdamu.Client(masters, user_name="ann", user_mail="ann@example.org", peers=peers)


async def test_it_gets_a_task_and_talks_to_its_backend(stage: Stage) -> None:
    _, backend = stage.server("--users", "3")
    master, port = stage.master(backend, text=PROBE)
    wait_until_up(master, 1)
    async with make_client(free_port(), port).connect() as connection:
        assert connection.task
        assert connection.backend.port == backend
        await connection.send(Message(SYSTEM, Command.GET, USER_COUNT))
        assert await connection.receive(within_s=5.0) == [Message(SYSTEM, Command.VALUE, USER_COUNT, 3)]


async def test_a_backend_that_was_killed_costs_nobody_the_connection(stage: Stage) -> None:
    dead, first = stage.server()
    _, second = stage.server("--users", "50")
    master, port = stage.master(first, second, text=SLOW_NEWS)
    wait_until_up(master, 2)
    dead.signal(signal.SIGKILL)
    dead.wait()
    ann = make_client(port)
    for _ in range(3):
        async with ann.connect() as connection:
            assert connection.backend.port == second


async def test_where_there_is_no_backend_it_says_so(stage: Stage) -> None:
    _, port = stage.master()
    with pytest.raises(NoServerError) as caught:
        async with make_client(port, within_s=1.0).connect():
            raise AssertionError
    assert caught.value.retry_after_s is not None
