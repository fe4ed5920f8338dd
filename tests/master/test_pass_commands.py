"""`lambdamu pass`: keys and passes as their operator makes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lambdamu.keys import load_keys
from lambdamu.passes import Pass, PassVerifier, make_pass
from master.pass_commands import passes


def run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(passes, arguments, input=given, standalone_mode=False)


def failed(*arguments: str) -> tuple[int, str]:
    """Return exit code and what was complained of, as the command line tells it."""
    done = CliRunner().invoke(passes, arguments)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.exit_code, done.stderr


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "pass.keys"
    path.write_text(run("key", "--id", "k1").stdout)
    return str(path)


def test_a_pass_is_made_with_a_key_that_was_made_and_shown_by_its_public_half(keys: str, tmp_path: Path) -> None:
    public = tmp_path / "public.keys"
    public.write_text(run("key", "--public-of", keys).stdout)
    assert public.read_text().startswith("k1: public: ")
    assert load_keys(str(public)).signer is None
    rights = ("--right", "vip", "--right", "access")
    text = run("make", "--keys", keys, "--subject", "ann", *rights, "--for", "30d", "--id", "p1").stdout.strip()
    found = PassVerifier(load_keys(str(public)).verifiers).judge(time.time(), text)
    assert isinstance(found, Pass)
    assert (found.id, found.subject, found.rights) == ("p1", "ann", ("access", "vip"))
    assert abs(found.expires - time.time() - 30 * 86400) < 60
    for arguments in ((text,), ("-",)):
        shown = run("show", *arguments, "--keys", str(public), given=f"{text}\n")
        assert shown.return_value == 0
        assert shown.stdout.startswith("id: p1\nsubject: ann\nrights: access, vip\nkey: k1\nends: 2")
        assert shown.stdout.endswith("signature: good\n")
    assert run("show", text).stdout.endswith("not checked, for want of --keys\n")


def test_by_default_a_pass_gives_access_and_has_an_id_of_chance(keys: str) -> None:
    texts = [run("make", "--keys", keys, "--subject", "ann", "--for", "1h").stdout for _ in range(2)]
    shown = [run("show", text.strip()).stdout.splitlines() for text in texts]
    assert shown[0][0] != shown[1][0]
    assert shown[0][2] == "rights: access"


def test_show_says_why_a_pass_lets_nobody_in(keys: str, tmp_path: Path) -> None:
    signer = load_keys(keys).signer
    assert signer is not None
    over = make_pass(signer, Pass("p1", "ann", ("access",), 1))
    good = make_pass(signer, Pass("p1", "ann", ("vip",), 2**52))
    others = tmp_path / "others"
    others.write_text(run("key", "--id", "k1").stdout)
    unknown = tmp_path / "unknown"
    unknown.write_text(run("key", "--id", "k2").stdout)
    for arguments, fault in (
        (("rubbish",), "malformed"),
        ((over,), "expired"),
        ((over, "--keys", keys), "expired"),
        ((good, "--keys", str(others)), "bad_signature"),
        ((good, "--keys", str(unknown)), "unknown_key"),
    ):
        done = run("show", *arguments)
        assert done.return_value == 1
        assert done.stderr.endswith(f"{fault}\n")
    assert run("show", good, "--keys", keys).return_value == 0


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["make", "--keys", "/nowhere/keys", "--subject", "a", "--for", "1h"], "/nowhere/keys cannot be read"),
        (["make", "--keys", "{keys}", "--subject", "", "--for", "1h"], "a subject has"),
        (["make", "--keys", "{keys}", "--subject", "a", "--for", "1h", "--right", "A B"], "rights"),
        (["make", "--keys", "{keys}", "--subject", "a", "--for", "1h", "--id", "a b"], "the id of a pass"),
        (["make", "--keys", "{keys}", "--subject", "a", "--for", "30"], "30 is not a number with s, m, h or d"),
        (["make", "--keys", "{keys}", "--subject", "a", "--for", "-1d"], "-1d"),
        (["make", "--keys", "{keys}", "--subject", "a"], "--for"),
        (["key", "--id", "a b"], "an id has"),
        (["key", "--public-of", "/nowhere/keys"], "/nowhere/keys cannot be read"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2(keys: str, arguments: list[str], culprit: str) -> None:
    code, complaint = failed(*(argument.format(keys=keys) for argument in arguments))
    assert code == 2
    assert culprit in complaint


def test_public_keys_make_no_pass(keys: str, tmp_path: Path) -> None:
    public = tmp_path / "public.keys"
    public.write_text(run("key", "--public-of", keys).stdout)
    done = run("make", "--keys", str(public), "--subject", "ann", "--for", "1h")
    assert (done.return_value, done.stdout) == (2, "")
    assert done.stderr == f"{public} holds no private key to sign with\n"
