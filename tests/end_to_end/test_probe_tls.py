"""A master that probes by TLS, by real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trustme

from tests.end_to_end.conftest import Stage, free_port, set_of_named, wait_for_port, wait_until_named

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the port under TLS is Linux's")
def test_a_stranger_at_the_address_of_a_backend_is_not_named_and_the_status_says_why(stage: Stage) -> None:
    ours = trustme.CA()
    ours.cert_pem.write_to_path(stage.folder / "ca.pem")
    _, good = stage.server("--tls", *certificate(stage.folder / "good", ours))
    _, bad = stage.server("--tls", *certificate(stage.folder / "bad", trustme.CA()))
    web = free_port()
    text = f'{FAST}tls = true\nca_file = "ca.pem"\n[http]\nlisten = "127.0.0.1:{web}"\n'
    master, port = stage.master(good, bad, text=text)
    wait_for_port(web, master)
    wait_until_named(port, good)
    assert set_of_named(port, 0.5) == {good}
    status = stage.run("status", "--url", f"http://127.0.0.1:{web}")
    (line,) = [line for line in status.stdout.splitlines() if f":{bad} " in line]
    assert " ready " not in line
    assert "its certificate is not good" in line
    assert "Traceback" not in master.stderr


def test_a_certificate_that_is_none_is_named(stage: Stage) -> None:
    (stage.folder / "none").write_text("")
    done = stage.run("server", "--listen", "127.0.0.1:0", "--tls", *[str(stage.folder / "none")] * 2)
    assert done.returncode == 1
    assert done.stderr.startswith(f"lambdamu server: {stage.folder / 'none'} ")
    assert done.stderr.count("\n") == 1


def certificate(stem: Path, authority: trustme.CA) -> tuple[str, str]:
    """Write a certificate for 127.0.0.1 and its key; return where they are."""
    issued = authority.issue_cert("127.0.0.1")
    files = stem.with_suffix(".pem"), stem.with_suffix(".key")
    files[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files[1])
    return str(files[0]), str(files[1])
