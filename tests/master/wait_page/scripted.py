"""A door that answers as a test has told it to, and a gateway with a waiting page before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lambdamu.datapack import DEFAULT_LIMITS
from lambdamu.http_wire import HttpReader, HttpWire
from lambdamu.messages import MASTER, SERVER, Command, Message, Result
from lambdamu.objects import Peer
from master.gateway import Gateway, GatewayRules
from master.wait_page.page import WaitRules
from master.wait_page.redirect import Redirect
from master.wait_page.texts import load_texts
from tests.master.test_gateway import Answered

TICKET = "t" * 88
TURN = "Tu-rn_" * 20
HOST = "192.0.2.9"


def wait(position: int = 41, **more: Any) -> tuple[Result, dict[str, Any]]:
    """Return the answer to somebody who waits."""
    told = {"Queue": "default", "Ticket": TICKET, "Position": position, "ETA": 200.0, "ETA90": 400.0}
    return Result.WAIT, told | {"RetryAfter": 3.2, "Reason": "InLine"} | more


def ok(ip: str = "10.0.0.1", **more: Any) -> tuple[Result, dict[str, Any]]:
    return Result.OK, {"IP": ip, "Port": 9001, "Name": "b 1/ä", "Turn": TURN} | more


@attrs.define
class ScriptedDoor:
    """`answers` are given one after another, and the last one for ever."""

    answers: list[tuple[Result, dict[str, Any]]] = attrs.Factory(lambda: [wait()])
    asked: list[dict[str, Any]] = attrs.Factory(list)
    peers: list[Peer] = attrs.Factory(list)

    def do_send_server(self, message: Message, now: float, peer: Peer, *, hold: bool = True) -> Sequence[Message]:
        assert not hold
        self.asked.append(message.data)
        self.peers.append(peer)
        result, data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [Message(MASTER, Command.VALUE, SERVER, {"Result": result, "Data": data})]

    def quick(self, pack: Any) -> None:
        return None


@attrs.define
class Room:
    """A browser without a screen before a gateway: it keeps cookies as it is told."""

    door: ScriptedDoor
    gateway: Gateway
    jar: dict[str, str] = attrs.Factory(dict)

    def ask(self, path: str = "/wait/default", method: str = "GET", body: bytes = b"", **headers: str) -> Answered:
        """Send a request; an underscore in the name of a header stands for a hyphen."""
        if self.jar:
            headers.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.jar.items()))
        lines = [f"{method} {path} HTTP/1.1", "Host: game.example", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        reader = HttpReader(DEFAULT_LIMITS)
        reader.feed("\r\n".join([*lines, "", ""]).encode() + body)
        batch = reader.next_batch()
        assert batch is not None
        assert self.gateway.prepare(batch) is None
        [request] = batch
        sent = HttpWire().pack(self.gateway.handle(request, 0.0, Peer(HOST, 5)))
        answer = Answered.of(sent, method)
        if cookie := answer.headers.get("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.jar = self.jar | {name: value} if "Max-Age=0" not in cookie else {}
        return answer

    def poll(self, path: str = "/wait/default", **headers: str) -> Any:
        """Ask as the script of the page does."""
        return self.ask(path, Accept="application/json", **headers).json

    def post(self, body: bytes, **headers: str) -> Answered:
        return self.ask(method="POST", body=body, **headers)


def make_room(*answers: tuple[Result, dict[str, Any]], redirect: str = "", texts: str = "", **rules: Any) -> Room:
    door = ScriptedDoor(list(answers) or [wait()])
    page = WaitRules(load_texts(texts), Redirect.parse(redirect) if redirect else None)
    return Room(door, Gateway(door, GatewayRules(wait=page, **rules)))
