"""A backend that demands turns, by real processes: the probe is asked for none, and everybody else is."""

from __future__ import annotations

import socket
import time

import msgpack

from lambdamu import keys
from lambdamu.turns import NOBODY, Signer
from tests.end_to_end.conftest import Stage, wait_until_up

SECRET = "a-secret-between-master-and-backend"


def say(port: int, **said: str) -> list[bytes]:
    """Say this of oneself to a backend, and return the names and codes in its answers, until it closes or lets in."""
    batch = [{"Object": "Auth", "Command": "Set", "Name": name, "Data": data} for name, data in said.items()]
    heard, unpacker = [], msgpack.Unpacker(raw=True)
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(msgpack.packb(batch))
        while data := sock.recv(4096):
            unpacker.feed(data)
            for [answer] in unpacker:
                if answer[b"Name"] == b"TaskObject":
                    return [*heard, b"let in"]
                heard.append(answer[b"Data"][b"Code"])
    return [*heard, b"closed"]


def test_with_a_turn_a_client_is_let_in_once_and_the_probe_without(stage: Stage) -> None:
    key = keys.Signer.generate()
    (stage.folder / "turn.keys").write_text(key.verifier().line())
    (stage.folder / "mail").write_text(SECRET)
    _, backend = stage.server("--require-turns", str(stage.folder / "turn.keys"), "--probe-mail", SECRET)
    master, port = stage.master(backend, text='[probe]\nuser_mail_file = "mail"\n')
    wait_until_up(master, 1)
    refused = stage.run("client", "--master", f"127.0.0.1:{port}", "--turn")
    assert refused.returncode == 1
    assert "it answered the error TurnMissing: " in refused.stderr
    turn = Signer(key).sign(1, NOBODY, f"127.0.0.1:{backend}", int(time.time()) + 60)
    who = {"UserName": "ann", "UserMail": "ann@example.org"}
    assert say(backend, Turn=turn, **who) == [b"let in"]
    assert say(backend, Turn=turn, **who) == [b"TurnUsed", b"closed"]
    assert say(backend, Turn=turn[:-2] + "AA", **who) == [b"TurnUsed", b"closed"]
    assert say(backend, **who) == [b"TurnMissing", b"closed"]
