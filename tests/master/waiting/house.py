"""A master with a waiting room, its backends and its clock: what the tests of the waiting room are told with."""

from __future__ import annotations

import random
from typing import Any

from lambdamu.datapack import Decoder, encode
from lambdamu.keys import Keys, Signer
from lambdamu.messages import Message, Reason, Result
from lambdamu.networks import Networks
from lambdamu.objects import Later, Peer
from lambdamu.turns import Verifier
from master.config_queue import QueueConfig
from master.core.backend import Backend
from master.core.ejection import Verdict
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.queue.numbers import NumberBlock
from master.service import Master
from master.told import AnswerPolicy
from master.waiting.room import WaitingRoom
from master.waiting.survey import Survey

KEY = Signer.generate("k1")
KEYS = Keys((KEY,), {"k1": KEY.verifier()})
EPOCH_S = 1_800_000_000.0


class Ears:
    def __init__(self) -> None:
        self.results: list[Result] = []

    def answered(self, result: Result) -> None:
        self.results.append(result)

    def denied(self, reason: Reason) -> None:
        raise AssertionError(reason)

    def accused(self, name: str, verdict: Verdict) -> None: ...


class House:
    """`capacities`: of each backend, by name b0, b1...; who is sent there stays until `users` is changed.

    `probed`: whether they have been probed since the start.
    """

    def __init__(
        self,
        *capacities: int | None,
        keys: Keys | None = KEYS,
        probed: bool = True,
        session_s: float | None = 600.0,
        **config: Any,
    ) -> None:
        self.now = 1000.0
        self.wall_off_s = 0.0
        self.rng = random.Random(7)
        backends = [Backend(f"b{i}", capacity=capacity) for i, capacity in enumerate(capacities)]
        self.pool = Pool(backends, HealthPolicy(), LoadPolicy(session_s=session_s))
        self.users = {backend.name: 0 for backend in backends}
        self.dead: set[str] = set()
        self.ears = Ears()
        self.room = WaitingRoom(
            QueueConfig(**config),
            self.pool,
            self.rng,
            networks=Networks(24, 48),
            times=AnswerPolicy(2.0, 2.0),
            keys=keys,
            clock=lambda: self.now,
            wall=lambda: self.now + EPOCH_S + self.wall_off_s,
        )
        self.room.queues.numbers.add(NumberBlock(1, 1 << 40))
        self.room.turns.numbers.add(1, 1 << 40)
        self.master = Master(self.pool, AnswerPolicy(2.0, 2.0), self.rng, self.ears, None, None, self.room.desk)
        if probed:
            self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass: each second all living backends report, and the room looks around."""
        until = self.now + seconds
        while True:
            for name, count in self.users.items():
                if name not in self.dead:
                    self.pool.record_report(
                        self.now, self.rng, name, count, self.now, ("10.0.0.1", 9000 + int(name[1:]))
                    )
            self.room.look(self.now)
            self.settle()
            if self.now >= until:
                return
            self.now = min(until, self.now + 1.0)

    def settle(self) -> None:
        """Look at all backends, and call whom there is room for."""
        survey = Survey(self.room.policy.target_load, self.room.asks_cpu)
        for member in self.pool:
            survey.add(member, self.now)
        self.room.settle(self.now, survey)

    def kill(self, name: str) -> None:
        self.dead.add(name)
        self.users[name] = 0
        self.pool.record_lost(self.now, name)

    def arrive(self, answer: dict[str, Any]) -> str:
        """Have somebody who was told OK be counted by his backend."""
        name = f"b{answer['Data']['Port'] - 9000}"
        self.users[name] += 1
        return name

    def reply(self, data: Any = None, host: str = "192.0.2.9", hold: bool = True) -> Any:
        message = Message("Master", "Event", "DoSendServer", data)
        return self.master.do_send_server(message, self.now, Peer(host, 5), hold=hold)

    def ask(self, client: str | None = None, host: str = "192.0.2.9", **data: Any) -> dict[str, Any]:
        """Return `{Result, Data}` of the one answer, after a way over the wire."""
        if client is not None:
            data["Client"] = client
        reply = self.reply(data, host)
        assert not isinstance(reply, Later)
        return said(reply)

    def plain(self, host: str = "192.0.2.9") -> tuple[Later, list[dict[str, Any]]]:
        """Ask as an old client does, which is owed the answer; return where that will stand."""
        later = self.reply(None, host)
        assert isinstance(later, Later)
        answers: list[dict[str, Any]] = []
        later.attach(lambda messages: answers.append(said(messages)))
        return later, answers

    def rush(self, people: int = 60) -> list[str]:
        """Have more come to the only backend than there is room for; return who still waits when ten have got in."""
        waiting = [f"w{i}" for i in range(people)]
        full = max(self.users["b0"], 1)
        while len(waiting) > people - 10:
            self.users["b0"] = full - 1
            self.tick(1.0)
            waiting = [name for name in waiting if self.ask(name)["Result"] == "Wait"]
            self.users["b0"] = full
        return waiting

    def verifier(self, name: str) -> Verifier:
        return Verifier(KEYS.verifiers, name)


def said(reply: Any) -> dict[str, Any]:
    (message,) = next(Decoder().feed(encode(reply)))
    assert (message.object, message.name) == ("Master", "Server"), message
    return dict(message.data)
