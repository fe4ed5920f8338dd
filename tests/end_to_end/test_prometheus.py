"""A real Prometheus: it scrapes a real master, and its rules say what they should."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.end_to_end.conftest import START_S, Stage, ask, free_port, wait_for_port, wait_until_up

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
if not os.environ.get("CI") and (PROMETHEUS is None or PROMTOOL is None):
    pytest.skip("there is no Prometheus here", allow_module_level=True)

TOKEN = "a-token-of-many-letters"
SCRAPE = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
  - job_name: lambdamu
    authorization: {{credentials: {token}}}
    static_configs: [{{targets: ["127.0.0.1:{port}", "127.0.0.1:{queue}"]}}]
"""
SELDOM = "lambdamu_queue_drain_per_second"
"""It is there only while people wait."""


def test_each_alert_fires_when_it_should_and_no_other_time() -> None:
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "alerts_test.yml"],
        cwd=DEPLOY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_expression_of_the_dashboard_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(expressions())]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    command = [str(PROMTOOL), "check", "rules", "--lint-fatal", str(tmp_path / "panels.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def expressions() -> list[str]:
    """Return the expressions of the dashboard, with values for its variables."""
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable, value in (("$instance", ".*"), ("$__rate_interval", "3s"), ("$top", "10")):
        found = [expression.replace(variable, value) for expression in found]
    return found


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.terminate()
        process.wait(10)


def test_prometheus_scrapes_a_master_with_a_token(
    stage: Stage, tmp_path: Path, prometheus: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "tokens").write_text(f"prom: {TOKEN}: read\n")
    _, alive = stage.server("--users", "7")
    port, at, cached = free_port(), free_port(), free_port()
    http = f'[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "tokens"\n' + tls(tmp_path)
    http += f'[cache_node]\naddress = "127.0.0.1:{cached}"\n'
    dead = f'[[backend]]\nname = "dead"\nhost = "127.0.0.1"\nport = {free_port()}\ncapacity = 100\n'
    master, clients = stage.master(alive, text=http + dead, backend='name = "<b1>"\ncapacity = 100')
    wait_for_port(port, master)
    wait_until_up(master, 1)
    ask(clients)
    queue = free_port()
    cache = f'[cache]\nlisten = "127.0.0.1:{cached}"\nfile = "{tmp_path}/cache.db"\n'
    cache += f'upstream = ["127.0.0.1:{free_port()}"]\n'
    cache += '[[cache.warm]]\ntype = 1\nobject = "Products"\nname = "Cards"\n'
    http = f'{cache}[queue]\nper_minute = 600\n[http]\nlisten = "127.0.0.1:{queue}"\ntokens_file = "tokens"\n'
    second, _ = stage.master(alive, text=http, backend='name = "b2"\ncapacity = 100')
    wait_for_port(queue, second)
    (tmp_path / "prometheus.yml").write_text(SCRAPE.format(token=TOKEN, port=port, queue=queue))
    command = [
        str(PROMETHEUS),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{at}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        prometheus.append(subprocess.Popen(command, stdout=log, stderr=log))
    assert query(at, 'lambdamu_backend_up{backend="<b1>"}') == 1
    assert query(at, 'lambdamu_backend_users{backend="<b1>"}') in {
        7,
        8,
    }  # the client is forgotten when it does not come
    assert query(at, 'sum(lambdamu_asks_total{result="OK"})') == 1
    assert query(at, "lambdamu_loop_lag_seconds_count") > 0
    assert query(at, "sum(lambdamu_answer_seconds_count)") == 1
    master.signal(signal.SIGHUP)  # without a reload there is no time of one
    for expression in expressions():
        if SELDOM not in expression:
            query(at, expression)


def tls(folder: Path) -> str:
    """Return the part of a configuration that has a certificate, which is written into `folder`."""
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    return f'[tls]\nlisten = "127.0.0.1:{free_port()}"\ncertificate = "certificate.pem"\nkey = "key.pem"\n'


def query(port: int, expression: str) -> float:
    """Return the value of an expression as soon as there is one."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            found = []
        if found:
            return float(found[0]["value"][1])
        time.sleep(0.1)
    raise AssertionError(f"nothing for {expression}")
