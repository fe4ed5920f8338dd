"""Passes as their operator and a client meet them, by real processes."""

from __future__ import annotations

import signal
import time

from lambdamu.keys import Signer
from lambdamu.passes import Pass, make_pass
from tests.end_to_end.conftest import Stage, wait_until_up

SECRET = "a-secret-between-master-and-backend"


def test_a_client_with_a_pass_is_let_in_until_it_is_revoked_and_others_are_told_why(stage: Stage) -> None:
    key, revoked = Signer.generate(), stage.folder / "revoked"
    text = make_pass(key, Pass("p1", "ann", ("access",), 2**40))
    (stage.folder / "public.keys").write_text(key.verifier().line())
    (stage.folder / "mail").write_text(SECRET)
    revoked.write_text("")
    _, backend = stage.server("--probe-mail", SECRET)
    master, port = stage.master(
        backend,
        text='[probe]\nuser_mail_file = "mail"\n[access]\nkeys_file = "public.keys"\nrevoked_file = "revoked"\n',
    )
    wait_until_up(master, 1)
    ask = ("client", "--master", f"127.0.0.1:{port}", "--ask-only")
    denied, let_in = stage.run(*ask), stage.run(*ask, "--pass", text)
    assert (denied.returncode, denied.stdout) == (3, "")
    assert denied.stderr == f"lambdamu client: master 127.0.0.1:{port}: it answered Denied, PassMissing\n"
    assert (let_in.returncode, let_in.stdout.strip()) == (0, f"127.0.0.1:{backend}")
    revoked.write_text("p1")
    master.signal(signal.SIGHUP)
    end = time.monotonic() + 20
    while not master.events("reloaded"):
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)
    assert "Denied, PassRevoked" in stage.run(*ask, "--pass", text).stderr
    assert SECRET not in master.stderr
    assert text not in master.stderr
