"""The fake backend in a process of its own, which can be stopped and killed for real."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import attrs

from lambdamu.testing.script import Script, fields_to_json
from lambdamu.testing.stats import Stats

_START_S: Final = 30.0
"""By then a fresh interpreter has started on the busiest machine."""
_POLL_S: Final = 0.005


class FakeBackendProcess:
    """A FakeBackend in another process, started at once and ended by `close` or the end of `with`.

    Its calls block for milliseconds, also in async code. One that is not answered in `answer_s` raises TimeoutError
    (the process is stopped), one that cannot be answered RuntimeError (it has died). `stats().asked_at` is in seconds
    of `time.monotonic()`, which the processes of one machine share.
    """

    def __init__(
        self, script: Script | None = None, *, host: str = "127.0.0.1", port: int = 0, answer_s: float = 10.0
    ) -> None:
        command = [sys.executable, "-m", "lambdamu.testing.backend", "--host", host, "--port", str(port)]
        # A session of its own: Ctrl-C in a terminal is for the test, which then ends this process.
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._orders = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        self.answer_s = answer_s
        self._unread = b""
        self._late = 0
        """Answers that were not waited for to the end; they come first when the process goes on."""
        self._script = Script()
        try:
            bound_host, bound_port = self._answer(_START_S)["address"]
            self._address = (str(bound_host), int(bound_port))
            if script is not None:
                self.script(**attrs.asdict(script, recurse=False))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives; negative: the signal that killed it."""
        return self._process.poll()

    def script(self, **changes: Any) -> None:
        """Change fields of the script, from the next answer on; raise TypeError or ValueError on a bad one."""
        self._script = attrs.evolve(self._script, **changes)
        self._order(do="script", script=fields_to_json(changes))

    def stats(self) -> Stats:
        return Stats.from_json(self._order(do="stats"))

    def until(self, holds: Callable[[Stats], bool], *, within_s: float = 5.0) -> Stats:
        """Block until `holds(stats)`, and return these; raise TimeoutError when that takes longer than `within_s`."""
        end = time.monotonic() + within_s
        while not holds(stats := self.stats()):
            if time.monotonic() > end:
                raise TimeoutError(f"after {within_s} s the backend has only seen {stats}")
            time.sleep(_POLL_S)
        return stats

    def hang_up(self, *, reset: bool = False) -> None:
        """End every open connection from the backend's side; new ones are welcome."""
        self._order(do="hang_up", reset=reset)

    def stop_signal(self) -> None:
        """Stop it (SIGSTOP): the kernel goes on accepting connections for it, and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def cont_signal(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait until it is gone; its connections are reset or closed by the kernel."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, by its id, whatever state it is in; again does nothing."""
        if self.exit_code is None:
            self.cont_signal()
        # An order that a dead process never took is lost with it.
        with suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(self.answer_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._answers.close()

    def _order(self, **order: Any) -> dict[str, Any]:
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except BrokenPipeError as exc:
            raise RuntimeError("the backend process has died") from exc
        self._late += 1
        while self._late:
            answer = self._answer(self.answer_s)
            self._late -= 1
        if "error" in answer:
            raise RuntimeError(f"the backend process refused: {answer['error']}")
        return answer

    def _answer(self, within_s: float) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while b"\n" not in self._unread:
            self._unread += self._read_some(end - time.monotonic())
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_some(self, timeout_s: float) -> bytes:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(max(0.0, timeout_s) * 1000):
            raise TimeoutError("the backend process does not answer")
        data = os.read(self._answers.fileno(), 65536)
        if not data:
            raise RuntimeError("the backend process has died")
        return data
