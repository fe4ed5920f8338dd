"""A master, backends and clients as real processes.

The file is long because each scenario is a few lines over the same stage of real processes.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections import Counter

import msgpack
import pytest

from tests.end_to_end.conftest import (
    ASK,
    Client,
    Stage,
    ask,
    free_port,
    named,
    set_of_named,
    wait_until_named,
    wait_until_up,
)

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"
RECONNECT = FAST + 'mode = "reconnect"\n'


def test_a_client_is_sent_to_a_backend_and_gets_its_task(stage: Stage) -> None:
    _, backend = stage.server("--users", "3")
    _, port = stage.master(backend)
    wait_until_named(port, backend)
    done = stage.run("client", "--master", f"127.0.0.1:{port}", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["task"]
    assert {**answer, "task": ""} == {"result": "OK", "ip": "127.0.0.1", "port": backend, "task": ""}


def test_no_backend_is_an_answer_and_an_exit_code(stage: Stage) -> None:
    master, port = stage.master()
    assert ask(port)["Result"] == "NoServer"
    done = stage.run("client", "--master", f"127.0.0.1:{port}", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["result"] == "NoServer"
    assert "Traceback" not in done.stderr
    assert master.events("config")


def test_three_hundred_asks_between_two_probes_even_the_backends_out(stage: Stage) -> None:
    users = (10, 11, 12)
    backends = [stage.server("--users", str(count))[1] for count in users]
    master, port = stage.master(*backends)
    wait_until_up(master, 3)
    sent = Counter(named(port) for _ in range(300))
    totals = [count + sent[backend] for count, backend in zip(users, backends, strict=True)]
    assert max(totals) - min(totals) <= 2, totals
    assert sum(totals) == 333


def test_a_killed_backend_is_named_no_later_than_a_tenth_of_a_second_after(stage: Stage) -> None:
    victim, victim_port = stage.server()
    _, other_port = stage.server("--users", "1000000")
    master, port = stage.master(victim_port, other_port)
    wait_until_up(master, 2)
    victim.signal(signal.SIGKILL)
    time.sleep(0.1)
    assert set_of_named(port, 2.0) == {other_port}
    stage.server(port=victim_port)
    wait_until_named(port, victim_port, seconds=3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("text", [FAST, RECONNECT], ids=["hold", "reconnect"])
def test_a_dead_or_stopped_backend_is_named_no_later_than_its_report_is_valid(
    stage: Stage, text: str, number: signal.Signals
) -> None:
    victim, victim_port = stage.server()
    _, other_port = stage.server("--users", "1000000")
    master, port = stage.master(victim_port, other_port, text=text)
    wait_until_up(master, 2)
    victim.signal(number)
    time.sleep(0.6)
    assert set_of_named(port, 1.0) == {other_port}
    if number == signal.SIGSTOP:
        victim.signal(signal.SIGCONT)
        wait_until_named(port, victim_port, seconds=3)


FAULTS = ("hang-auth", "hang-count", "no-count", "garbage", "close", "half", "slow:0.5", "count:-1", "count:nan")


@pytest.mark.parametrize("text", [FAST, RECONNECT], ids=["hold", "reconnect"])
def test_a_backend_with_a_fault_is_never_named(stage: Stage, text: str) -> None:
    ports = [stage.server("--fault", fault)[1] for fault in FAULTS]
    # Each that is named would be preferred to this one.
    _, sound = stage.server("--users", "1000000")
    master, port = stage.master(*ports, sound, text=text)
    wait_until_named(port, sound)
    end = time.monotonic() + 20
    while len(master.events("backend_down")) < len(FAULTS):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert set_of_named(port, 2.0) == {sound}, dict(zip(ports, FAULTS, strict=True))


def test_a_backend_that_never_worked_is_named_in_the_log_with_the_reason(stage: Stage) -> None:
    _, backend = stage.server()
    wrong = free_port()
    master, port = stage.master(backend, wrong, text=FAST)
    wait_until_named(port, backend)
    end = time.monotonic() + 20
    while not master.events("backend_down"):
        assert time.monotonic() < end
        time.sleep(0.05)
    (event,) = master.events("backend_down")
    assert event["backend"] == f"127.0.0.1:{wrong}"
    assert event["why"] == "refused"


@pytest.mark.parametrize("reader", ["closed", "full", "gone"])
def test_a_log_that_cannot_be_written_stops_no_master(stage: Stage, reader: str) -> None:
    victim, backend = stage.server()
    where = {"closed": "2>&-", "full": "2>/dev/full", "gone": "2> >(head -n 1 >/dev/null)"}
    master, port = stage.master(backend, text=FAST, prefix=("bash", "-c", f'exec "$@" {where[reader]}', "bash"))
    wait_until_named(port, backend)
    victim.signal(signal.SIGKILL)
    time.sleep(1.0)
    assert ask(port)["Result"] == "NoServer"
    master.signal(signal.SIGTERM)
    assert master.wait() == 0


def test_a_backend_behind_a_name_that_does_not_resolve_stops_nobody_else(stage: Stage) -> None:
    _, backend = stage.server()
    bad_name = '[[backend]]\nhost = "nowhere.invalid"\nport = 9001\n'
    master, port = stage.master(backend, text=FAST + bad_name)
    wait_until_named(port, backend)
    assert master.popen.poll() is None


def lets_in(port: int) -> bool:
    try:
        Client(port).socket.close()
    except ConnectionRefusedError:
        return False
    return True


def test_what_was_asked_is_answered_at_the_stop_and_nobody_is_let_in_any_more(stage: Stage) -> None:
    _, backend = stage.server()
    master, port = stage.master(backend)
    wait_until_named(port, backend)
    clients = [Client(port) for _ in range(50)]
    one_batch = msgpack.packb(msgpack.unpackb(ASK) * 3)
    # Whole; three and a half one after the other; three and a half messages of one batch; half.
    first = [ASK] * 20 + [ASK * 3 + ASK[:10]] * 10 + [one_batch[:-10]] * 10 + [ASK[:10]] * 10
    rest = [b""] * 20 + [ASK[10:]] * 10 + [one_batch[-10:]] * 10 + [ASK[10:]] * 10
    owed = [1] * 20 + [4] * 10 + [3] * 10 + [1] * 10
    for client, data in zip(clients, first, strict=True):
        client.send(data)
    master.signal(signal.SIGTERM)
    end = time.monotonic() + 4
    while lets_in(port):
        assert time.monotonic() < end
    for client, data in zip(clients, rest, strict=True):
        client.send(data)
    for client, count in zip(clients, owed, strict=True):
        said: list[str] = []
        while (batch := client.receive()) is not None:
            said += [message["Data"]["Result"] for message in batch]
        assert said == ["OK"] * count
        client.socket.close()
    assert master.wait(5) == 0
    assert not master.events("grace_over")


def test_a_master_serves_on_while_it_lingers(stage: Stage) -> None:
    _, backend = stage.server()
    master, port = stage.master(backend, text="[master]\nlinger_s = 1.5\n")
    wait_until_named(port, backend)
    master.signal(signal.SIGTERM)
    assert set_of_named(port, 1.0) == {backend}
    assert master.wait(6) == 0


def test_a_second_signal_ends_a_master_at_once(stage: Stage) -> None:
    master, _ = stage.master(text="[master]\nlinger_s = 60.0\n")
    master.signal(signal.SIGTERM)
    time.sleep(0.3)
    began = time.monotonic()
    master.signal(signal.SIGINT)
    assert master.wait() == 1
    assert time.monotonic() - began < 5
    assert "Traceback" not in master.stderr


def test_a_connection_that_owes_the_rest_of_its_ask_does_not_hold_the_stop_longer_than_the_grace(
    stage: Stage,
) -> None:
    master, port = stage.master(text="[master]\ngrace_s = 1.0\n")
    with Client(port) as client:
        client.send(ASK[:10])
        time.sleep(0.2)
        began = time.monotonic()
        master.signal(signal.SIGTERM)
        assert master.wait() == 0
        assert time.monotonic() - began < 1.0 + 1.0  # the grace, and what a loaded machine takes to end a process


def test_a_hangup_signal_has_the_file_read_again(stage: Stage) -> None:
    _, first = stage.server()
    _, second = stage.server()
    master, port = stage.master(first, text=FAST)
    wait_until_named(port, first)
    file = stage.folder / f"pool-{port}.toml"
    good = file.read_text()
    file.write_text(good + "weight = yes")
    master.signal(signal.SIGHUP)
    assert set_of_named(port, 0.5) == {first}
    (refused,) = master.events("reload_refused")
    assert str(file) in str(refused)
    file.write_text(good.replace(str(first), str(second)))
    master.signal(signal.SIGHUP)
    wait_until_named(port, second)
    assert set_of_named(port, 0.3) == {second}
    assert len(master.events("reloaded")) == 1


def test_a_backend_drains_by_its_own_word(stage: Stage) -> None:
    leaving, leaves = stage.server("--load")
    _, stays = stage.server("--users", "50")
    master, port = stage.master(leaves, stays, text=FAST, backend="load = true")
    wait_until_named(port, leaves)
    leaving.signal(signal.SIGUSR1)
    end = time.monotonic() + 10
    while not master.events("backend_drains"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert set_of_named(port, 0.5) == {stays}
    leaving.signal(signal.SIGUSR1)
    wait_until_named(port, leaves)
    assert not master.events("backend_down")


def test_a_restarted_master_takes_its_port_at_once_and_a_second_copy_says_one_line(stage: Stage) -> None:
    master, port = stage.master()
    clients = [Client(port) for _ in range(50)]
    master.signal(signal.SIGKILL)
    master.wait()
    again, _ = stage.master(port=port)
    assert again.popen.poll() is None
    for client in clients:
        client.socket.close()
    config = stage.folder / f"pool-{port}.toml"
    second = stage.run("master", "--config", str(config))
    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 2, second.stderr  # the other one warns of an empty pool
    assert "cannot_listen" in second.stderr
    assert "Address already in use" in second.stderr
    assert again.popen.poll() is None


def test_a_thousand_clients_that_reset_hurt_nobody_and_hold_no_place_for_ever(stage: Stage) -> None:
    _, backend = stage.server()
    text = "[master]\nreservation_s = 2.0\nconnect_s = 0.5\n" + FAST
    master, port = stage.master(backend, text=text, backend="capacity = 10")
    wait_until_named(port, backend)
    for _ in range(1000):
        client = Client(port)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(ASK)
        client.socket.close()
    wait_until_named(port, backend, seconds=5)
    assert master.popen.poll() is None
    assert "Traceback" not in master.stderr


def test_ten_thousand_refusals_write_few_lines(stage: Stage) -> None:
    master, port = stage.master(free_port(), text=FAST)
    with Client(port) as client:
        for _ in range(10_000):
            assert client.ask()["Result"] == "NoServer"
    assert len(master.stderr.splitlines()) < 10


def test_with_few_descriptors_a_master_keeps_those_of_its_probes(stage: Stage) -> None:
    _, backend = stage.server()
    limited = ("prlimit", "--nofile=128:128", "--")
    master, port = stage.master(backend, text=FAST, prefix=limited)
    wait_until_named(port, backend)
    held = []
    for _ in range(200):
        client = Client(port)
        client.socket.settimeout(5)
        held.append(client)
    before = master.cpu_s()
    time.sleep(3)
    assert master.cpu_s() - before < 1.0
    assert len(master.stderr.splitlines()) < 15
    for client in held:
        client.socket.close()
    time.sleep(0.2)
    assert set_of_named(port, 0.5) == {backend}
    assert not master.events("backend_down")


def test_announced_giants_and_real_ones_cost_no_memory(stage: Stage) -> None:
    _, backend = stage.server()
    master, port = stage.master(backend)
    wait_until_named(port, backend)
    before = master.rss_bytes()
    waiting = []
    for head in (b"\xc6", b"\xdd", b"\xdf", b"\xdb"):
        client = Client(port)
        client.send(head + b"\xff" * 4)
        assert client.receive()[0]["Data"]["Code"] == "Limit"
        waiting.append(client)
    chunk = bytes(65536)
    for _ in range(50):
        client = Client(port)
        try:
            client.send(b"\x91\xc6" + (90 * 2**20).to_bytes(4, "big"))
            for _ in range(90 * 16):
                client.send(chunk)
        except OSError:
            pass
        waiting.append(client)
    assert master.rss_bytes() - before < 30 * 2**20
    assert named(port) == backend
    for client in waiting:
        client.socket.close()
