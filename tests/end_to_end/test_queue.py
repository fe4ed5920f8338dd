"""The virtual queue by real processes: who waits when the master is killed, and old clients that wait unknowingly."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
from typing import Any

from tests.end_to_end.conftest import ASK, Client, Stage, free_port, wait_until_up
from tests.end_to_end.crowd import ask, exchange, number_of

CROWD = 100_000


def test_after_kill_9_a_hundred_thousand_stand_where_they_stood(stage: Stage) -> None:
    text = (
        f'[state]\nfile = "{stage.folder}/state.db"\n'
        '[limits]\nexempt = ["127.0.0.1"]\n[queue]\nmode = "hold"\nlease_s = 300\n'
    )
    master, port = stage.master(text=text)
    ids = [f"{number:032x}" for number in range(CROWD)]
    joined = exchange(port, [ask(Client=each) for each in ids])
    master.signal(signal.SIGKILL)  # the last ones are in no file yet
    master.wait()
    places = [answer["Data"]["Position"] for answer in joined]
    tickets = [answer["Data"]["Ticket"] for answer in joined]
    numbers = {number_of(ticket) for ticket in tickets}
    assert sorted(places) == list(range(CROWD))
    assert len(numbers) == CROWD

    _, port = stage.master(text=text, port=port)
    # Those of whom nothing was kept bring their places back; nobody is shown a worse one than before meanwhile.
    order = sorted(range(CROWD), key=places.__getitem__)
    late, early = order[-20_000:], random.Random(1).sample(order[:-20_000], 2_000)
    again = late + early
    back = exchange(port, [ask(Client=ids[number], Ticket=tickets[number]) for number in again])
    assert [number_of(answer["Data"]["Ticket"]) for answer in back] == [number_of(tickets[each]) for each in again]
    shown = [(answer["Data"]["Position"], places[number]) for answer, number in zip(back, again, strict=True)]
    assert all(position <= before for position, before in shown[: len(late)])
    assert all(position == before for position, before in shown[len(late) :])
    newcomers = exchange(port, [ask(Client=f"new {number}") for number in range(100)])
    assert sorted(answer["Data"]["Position"] for answer in newcomers) == list(range(CROWD, CROWD + 100))
    assert not numbers & {number_of(answer["Data"]["Ticket"]) for answer in newcomers}


def test_old_clients_wait_on_their_connections_in_order_and_a_fin_gives_the_place_up(stage: Stage) -> None:
    backend, at = stage.server("--users", "1")
    master, port = stage.master(at, text="[queue]\ntarget_load = 1.0\n", backend="capacity = 1")
    wait_until_up(master, 1)
    with Client(port) as gone, Client(port) as first, Client(port) as second:
        for client in (gone, first, second):
            client.send(ASK)
            assert not client.readable(0.3), "it is owed its answer"
        gone.socket.shutdown(socket.SHUT_WR)
        assert gone.receive() is None
        backend.signal(signal.SIGKILL)
        backend.wait()
        assert not first.readable(0.5), "all are down, and that is no reason to send anybody away"
        stage.server("--users", "0", port=at)
        [message] = first.receive()
        assert message["Data"] == {"Result": "OK", "Data": {"IP": "127.0.0.1", "Port": at}}
        master.signal(signal.SIGTERM)
        [message] = second.receive()
        assert message["Data"]["Result"] == "NoServer"
    assert master.wait() == 0


def test_by_whichever_door_the_same_client_has_one_place(stage: Stage) -> None:
    gateway = free_port()
    _, port = stage.master(text=f'[gateway]\nlisten = "127.0.0.1:{gateway}"\n[queue]\nmode = "hold"\n')

    def by_http(method: str, body: str = "") -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", gateway, timeout=10)
        connection.request(method, "/v1/server", body or None, {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    [first] = exchange(port, [ask(Client="ann")])
    [second] = exchange(port, [ask(Client="bob")])
    assert by_http("POST", '{"Client": "ann"}')["Data"]["Ticket"] == first["Data"]["Ticket"]
    plain = by_http("GET")
    assert (plain["Result"], plain["Data"]["Position"]) == ("Wait", 2)
    assert by_http("POST", json.dumps({"Ticket": plain["Data"]["Ticket"]}))["Data"]["Position"] == 2
    assert second["Data"]["Position"] == 1
    assert by_http("POST", '{"Client": "ann", "Leave": true}')["Data"]["Reason"] == "Left"
    [moved] = exchange(port, [ask(Client="bob")])
    assert moved["Data"]["Position"] == 0


def test_the_rush_of_the_demonstration_ends_with_everybody_served_in_order(stage: Stage) -> None:
    done = stage.run("demo", "--rush", "--seconds", "20", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3000 of 3000 were let in, 0 of them out of order" in done.stdout
    assert "is killed (SIGKILL)" in done.stdout
    assert done.stdout.rstrip().endswith("all is well")
