"""`lambdamu queue` against real masters."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import msgpack
import pytest

from tests.end_to_end.conftest import Client, Stage, ask, free_port, wait_for_port

TEMPLATES = '[queue]\n[[queue.template]]\npattern = "default"\n[[queue.template]]\npattern = "match-*"\n'


class Scene:
    """A master whose backend nobody has started, with or without a queue."""

    def __init__(self, stage: Stage, queue: str) -> None:
        self.stage = stage
        http = free_port()
        text = f'[choice]\nfirst_round_s = 0\n[http]\nlisten = "127.0.0.1:{http}"\n{queue}'
        self.master, self.clients = stage.master(free_port(), text=text)
        wait_for_port(http, self.master)
        self.url = f"http://127.0.0.1:{http}"

    def run(self, *command: str) -> tuple[int, str, str]:
        done = self.stage.run(*command, "--url", self.url)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    yield Scene(stage, TEMPLATES)
    stage.end()


def test_an_operator_holds_the_queue_and_lets_it_go(scene: Scene) -> None:
    code, said, _ = scene.run("queue", "--mode", "closed", "--text", "Back soon", "--why", "a fire")
    assert code == 0
    assert said.splitlines()[0].endswith("; mode closed")
    assert "mode closed, text Back soon by local at " in said
    answer = ask(scene.clients)
    assert (answer["Result"], answer["Data"]["Text"]) == ("Closed", "Back soon")
    assert "mode closed" in scene.run("status")[1]
    [event] = scene.master.events("queue_order")
    assert (event["wanted"], event["who"], event["why"]) == ("mode closed, text Back soon", "local", "a fire")
    told = json.loads(scene.run("queue", "--reset", "--why", "it is out", "--json")[1])
    assert (told["mode"], told["orders"]) == ("auto", [])


def test_one_queue_gets_a_rate_of_its_own(scene: Scene) -> None:
    code, said, _ = scene.run("queue", "match-1", "--per-minute", "30", "--why", "small")
    assert (code, said) == (0, "queue match-1: per_minute 30\n")
    [order] = json.loads(scene.run("queue", "--json")[1])["orders"]
    assert (order["queue"], order["per_minute"], order["who"], order["reason"]) == ("match-1", 30.0, "local", "small")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("nix", "--per-minute", "3", "--why", "x"), "refused (404): there is no queue nix, and no template fits it"),
        (("match-1",), "refused (404): there is no queue match-1 now: nobody has asked for it lately"),
        (("match-1", "--mode", "hold", "--why", "x"), "refused (400): of one queue only per_minute can be set"),
        (("--load", "7", "--why", "x"), "refused (400): target_load must be a number from 0.01 to 1"),
        (("--per-minute", "nan", "--why", "x"), "refused (400): per_minute must be a number from 0.001 to"),
    ],
)
def test_what_cannot_be_is_one_line(scene: Scene, command: tuple[str, ...], said: str) -> None:
    code, out, err = scene.run("queue", *command)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {said}")
    assert len(err.splitlines()) == 1


def test_what_operators_want_and_who_waits_outlive_a_restart(stage: Stage) -> None:
    scene = Scene(stage, f'[state]\nfile = "{stage.folder}/state.sqlite"\n{TEMPLATES}')
    scene.run("queue", "--mode", "hold", "--load", "0.5", "--why", "a fire")
    scene.run("queue", "match-1", "--per-minute", "none", "--why", "small")
    with Client(scene.clients) as client:
        for name in ("ann", "bob"):
            asks = {"Object": "Master", "Command": "Event", "Name": "DoSendServer"}
            client.send(msgpack.packb([asks | {"Data": {"Client": name, "Queue": "match-1"}}]))
            [answer] = client.receive()
            assert answer["Data"]["Result"] == "Wait"
    code, said, _ = scene.run("why", "bob")
    assert code == 0
    assert "Wait  Held" in said.splitlines()[0]
    assert said.splitlines()[-1].startswith(
        "its place in queue match-1: waiting in the plain lane, 1 before it; joined"
    )
    before = json.loads(scene.run("queue", "--json")[1])
    assert (before["waiting"], before["mode"], before["load"]["target_load"]) == (2, "hold", 0.5)
    scene.master.signal(signal.SIGTERM)
    assert scene.master.wait() == 0
    config = scene.stage.folder / f"pool-{scene.clients}.toml"
    again = stage.start("master", "--config", str(config))
    wait_for_port(int(scene.url.rpartition(":")[2]), again)
    after = json.loads(scene.run("queue", "--json")[1])
    assert (after["waiting"], after["mode"], after["orders"]) == (2, "hold", before["orders"])
    assert after["store"]["failing"] is False
    code, said, err = scene.run("why", "bob")  # no answer is kept, but the place is
    assert (code, said.count("1 before it")) == (0, 1)
    assert err == "no answer to such a client is kept\n"
    stage.end()


def test_a_master_without_a_queue_says_so(stage: Stage) -> None:
    scene = Scene(stage, "")
    for command in (("queue",), ("queue", "--mode", "hold", "--why", "x")):
        code, _, err = scene.run(*command)
        assert (code, err.count("the configuration of this master has no [queue]")) == (1, 1)
    stage.end()
