"""The log of a real master at its most talkative: what happened is in it, and no secret is."""

from __future__ import annotations

import json
import signal
import time

import msgpack
import pytest

from tests.end_to_end.conftest import Client, Process, Stage, free_port, wait_for_port, wait_until_up

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"
SECRETS = ["hush-mail-1@host", "hush-mail-2@host", "hush-hook-1", "hush-hook-2", "hush-token-0123456", "hush-client-id"]


def wait_for_event(master: Process, name: str) -> None:
    end = time.monotonic() + 20
    while not master.events(name):
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)


def test_at_debug_asks_are_in_it_and_no_secret_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    mail, other_mail, hook, other_hook, token, client_id = SECRETS
    (stage.folder / "tokens").write_text(f"ann: {token}: write\n")
    nobody, http = free_port(), free_port()
    _, alive = stage.server("--probe-mail", mail)
    text = (
        f'{FAST}user_mail = "{mail}"\n[choice]\nfirst_round_s = 0\n'
        f'[alerts]\nwebhook = "http://127.0.0.1:{nobody}/{hook}"\nmin_interval_s = 0.1\n'
        f'[http]\nlisten = "127.0.0.1:{http}"\ntokens_file = "tokens"\n'
    )
    master, clients = stage.master(alive, free_port(), text=text, options=("--log-level", "debug"))
    wait_for_port(http, master)
    wait_until_up(master, 1)
    with Client(clients) as client:
        data = {"Client": client_id, "Zone": "a"}
        client.send(msgpack.packb([{"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": data}]))
        assert client.receive()[0]["Data"]["Result"] == "OK"
    for given in (token, token + "-wrong"):
        monkeypatch.setenv("LAMBDAMU_TOKEN", given)
        stage.run("status", "--url", f"http://127.0.0.1:{http}")
    path = stage.folder / f"pool-{clients}.toml"
    before = path.read_text()
    path.write_text(before.replace(mail, other_mail).replace(hook, other_hook))
    master.signal(signal.SIGHUP)
    wait_for_event(master, "reloaded")
    path.write_text(before.replace("http://127", "ftp://127").replace("[probe]", "[probe]\nfall = 0"))
    master.signal(signal.SIGHUP)
    wait_for_event(master, "reload_refused")
    wait_for_event(master, "alerts_failed")
    master.signal(signal.SIGTERM)
    assert master.wait() == 0
    (ask,) = (ask for ask in master.events("ask") if ask.get("zone"))
    assert (ask["network"], ask["result"], ask["backend"]) == ("127.0.0.0/24", "OK", f"127.0.0.1:{alive}")
    assert len(ask["client"]) == 32
    assert [secret for secret in SECRETS if secret in master.stderr] == []
    assert all(json.loads(line)["service"] == {"name": "lambdamu"} for line in master.stderr.splitlines())
