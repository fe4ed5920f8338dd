"""The testing kit itself: the fake backend in a process of its own."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.testing import FakeBackendProcess, Script, Stats

AUTH = encode([Message("Auth", "Set", "UserName", "master"), Message("Auth", "Set", "UserMail", "m@localhost")])
COUNT = encode([Message("System", "Get", "UserCount")])
TASK_ANSWER = encode([Message("Auth", "Value", "TaskObject", "Task")])
COUNT_ANSWER = encode([Message("System", "Value", "UserCount", 10)])
ALL = len(TASK_ANSWER + COUNT_ANSWER)
SILENT_S = 0.2
"""Real seconds: what says nothing for so long is silent."""
PATIENCE_S = 30.0
"""Real seconds: what should answer may take so long on a busy machine."""


def talk(stream: socket.socket, question: bytes, answer_bytes: int) -> bytes:
    """Send, and return the answer as far as it comes."""
    stream.settimeout(PATIENCE_S)
    stream.sendall(question)
    answer = b""
    while len(answer) < answer_bytes and (some := stream.recv(65536)):
        answer += some
    return answer


def test_a_fake_in_its_own_process_says_and_counts_the_same() -> None:
    with FakeBackendProcess(Script(extra=True)) as backend:
        backend.script(extra=False, users=math.nan, task=b"\xff")
        says = b"".join(
            encode([Message(*names, data)])
            for *names, data in (["Auth", "Value", "TaskObject", b"\xff"], ["System", "Value", "UserCount", math.nan])
        )
        start = time.monotonic()
        with socket.create_connection(backend.address) as stream:
            assert talk(stream, AUTH + COUNT, len(says)) == says
        stats = backend.until(lambda stats: stats.ended_well == 1)
        assert (stats.opened, stats.answered, stats.user_name) == (1, 1, "master")
        assert stats.last_question == AUTH + COUNT
        assert start <= stats.asked_at[0] <= time.monotonic()
        with pytest.raises(TimeoutError):
            backend.until(lambda stats: stats.opened == 2, within_s=0.0)


def test_a_stopped_process_accepts_and_is_silent_until_it_goes_on() -> None:
    with FakeBackendProcess() as backend:
        backend.stop_signal()
        with socket.create_connection(backend.address) as stream:
            stream.sendall(AUTH + COUNT)
            stream.settimeout(SILENT_S)
            with pytest.raises(TimeoutError):
                stream.recv(1)
            backend.answer_s = SILENT_S
            with pytest.raises(TimeoutError):
                backend.stats()
            backend.answer_s = PATIENCE_S
            backend.cont_signal()
            assert talk(stream, b"", ALL) == TASK_ANSWER + COUNT_ANSWER
        # The answer that nobody waited for is not taken for the one to the next call.
        backend.script(drop="both")
        assert backend.until(lambda stats: stats.open_now == 0).answered == 1


def test_a_killed_process_takes_its_connections_along_and_another_may_take_its_address() -> None:
    with FakeBackendProcess() as backend:
        with socket.create_connection(backend.address) as stream:
            assert talk(stream, COUNT, len(COUNT_ANSWER)) == COUNT_ANSWER
            backend.kill()
            assert stream.recv(1) == b""
        with pytest.raises(RuntimeError, match="died"):
            backend.stats()
        with FakeBackendProcess(port=backend.address[1]) as heir:
            assert heir.address == backend.address


def test_hanging_up_in_another_process_resets_too() -> None:
    with FakeBackendProcess() as backend, socket.create_connection(backend.address) as stream:
        backend.until(lambda stats: stats.open_now == 1)
        backend.hang_up(reset=True)
        with pytest.raises(ConnectionResetError):
            stream.recv(1)


@pytest.mark.parametrize(
    ("treat", "exit_code"),
    [
        pytest.param(lambda backend: None, 0, id="running"),
        pytest.param(FakeBackendProcess.stop_signal, 0, id="stopped"),
        pytest.param(FakeBackendProcess.kill, -signal.SIGKILL, id="killed"),
        pytest.param(FakeBackendProcess.close, 0, id="closed"),
    ],
)
def test_the_process_is_gone_after_the_block_whatever_state_it_was_in(
    treat: Callable[[FakeBackendProcess], None], exit_code: int
) -> None:
    with FakeBackendProcess() as backend:
        assert backend.exit_code is None
        treat(backend)
    assert backend.exit_code == exit_code
    with pytest.raises(ProcessLookupError):
        os.kill(backend.pid, 0)


def test_a_script_that_cannot_be_played_is_refused_before_it_is_sent() -> None:
    with FakeBackendProcess() as backend:
        with pytest.raises(ValueError, match="users"):
            backend.script(users={1})
        assert backend.stats() == Stats()


def test_a_taken_address_is_an_error_at_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeBackendProcess() as backend, pytest.raises(RuntimeError, match="died"):
        FakeBackendProcess(port=backend.address[1])
    assert "in use" in capfd.readouterr().err


def test_the_program_answers_each_line_and_ends_with_its_input() -> None:
    lines = [
        b'{"do": "script", "script": {"users": NaN, "task": {"$msgpack": "c403fffefd"}, "drop": "auth"}}',
        b'{"do": "script", "script": {"users": {"$msgpack": "c1"}}}',
        b'{"do": "script", "script": {"nonsense": 1}}',
        b'{"do": "dance"}',
        b"not JSON",
        b"[]",
        b'{"do": "stats"}',
    ]
    command = [sys.executable, "-m", "lambdamu.testing.backend"]
    done = subprocess.run(command, input=b"\n".join([*lines, b""]), capture_output=True, timeout=30, check=True)
    address, *answers = map(json.loads, done.stdout.splitlines())
    assert address["address"][0] == "127.0.0.1"
    assert [list(answer) == ["error"] for answer in answers] == [False, True, True, True, True, True, False]
    assert Stats.from_json(answers[-1]) == Stats()
    assert done.stderr == b""
