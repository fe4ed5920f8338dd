"""The files that a configuration names: there and right, or named with what is wrong; and no secret is ever shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from lambdamu.keys import Signer
from master.config import Config
from master.config_file import ConfigError, load, parse
from master.config_json import tables_of
from master.config_notes import describe
from master.reload import compare

SECRET = "the-master-0123456789"
TOKEN = "correct-horse-battery"
TEXTS = {"keys": Signer.generate().line(), "tokens": f"phones: {TOKEN}", "revoked": "p1", "mail": f"{SECRET}\n"}
FILE = """
[probe]
user_mail_file = "mail"
[access]
keys_file = "keys"
tokens_file = "tokens"
revoked_file = "revoked"
"""


def write(folder: Path, mode: int = 0o600, **texts: str) -> str:
    for name, text in {**TEXTS, **texts}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    (folder / "pool.toml").write_text(FILE)
    return str(folder / "pool.toml")


def test_files_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    config = load(write(tmp_path))
    assert config.access.keys_file == str(tmp_path / "keys")
    assert config.probe.user_mail_file == str(tmp_path / "mail")
    assert config.probe.user_mail == SECRET
    assert Config().probe.user_mail == "master@localhost"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("keys", "k1", "[access]: keys_file: {file}: line 1: is not `ID: private: KEY`"),
        ("tokens", "a: short", "[access]: tokens_file: {file}: line 1: a token has"),
        ("revoked", "x" * 257, "[access]: revoked_file: {file}: line 1: is longer"),
        ("mail", "", "[probe]: user_mail_file: {file} must hold one line"),
        ("mail", "\n", "[probe]: user_mail_file: {file}: the line must be from 1 to 256 bytes long"),
        ("mail", f"{SECRET}\n{SECRET}", "[probe]: user_mail_file: {file} must hold one line"),
        ("mail", f"{SECRET}\x1b", "[probe]: user_mail_file: {file} must hold one line"),
        ("mail", SECRET * 20, "[probe]: user_mail_file: {file}: the line must be from 1 to 256 bytes long"),
    ],
)
def test_a_fault_names_table_key_file_and_line_and_no_secret(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = write(tmp_path, **{name: text})
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {fault.format(file=tmp_path / name)}")
    assert SECRET not in str(caught.value)


def test_every_file_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    for name in TEXTS:
        (tmp_path / name).unlink()
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [fault.key for fault in caught.value.faults] == [
        "keys_file",
        "tokens_file",
        "revoked_file",
        "user_mail_file",
    ]


def test_files_that_lie_open_are_warned_of(tmp_path: Path) -> None:
    warnings = load(write(tmp_path, 0o644)).warnings
    assert [name for name in TEXTS if any(f"{tmp_path / name} holds secrets" in each for each in warnings)] == [
        "keys",
        "tokens",
        "mail",
    ]
    assert not any("holds secrets" in each for each in load(write(tmp_path)).warnings)


def test_only_one_mail_is_told() -> None:
    with pytest.raises(ConfigError, match="must not stand beside user_mail"):
        parse('[probe]\nuser_mail = "a"\nuser_mail_file = "b"\n')


def test_a_secret_is_shown_nowhere(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = load(path)
    write(tmp_path, mail="another-secret-of-ours")
    after = load(path)
    difference = compare(before, after)
    assert difference.lines() == ["~ [probe]: user_mail: another one, it is not shown"]
    assert difference
    assert after.probe.user_mail == "another-secret-of-ours"
    shown = [*difference.lines(), *describe(after), repr(after), *after.warnings, json.dumps(tables_of(after))]
    for secret in (SECRET, "another-secret", TOKEN, TEXTS["keys"].rpartition(" ")[2]):
        assert not any(secret in text for text in shown)


def write_tls(folder: Path, name: str = "master") -> dict[str, Path]:
    """Write a certificate and its key; return where they are."""
    files = {key: folder / f"{name}.{key}" for key in ("certificate", "key", "client_ca")}
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files["certificate"].write_bytes(issued.cert_chain_pems[0].bytes())
    files["key"].write_bytes(issued.private_key_pem.bytes())
    files["key"].chmod(0o600)
    files["client_ca"].write_bytes(authority.cert_pem.bytes())
    lines = ["[tls]", 'listen = "127.0.0.1:0"', *(f'{key} = "{path.name}"' for key, path in files.items())]
    (folder / "pool.toml").write_text("\n".join(lines))
    return files


@pytest.mark.parametrize("key", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize(("text", "fault"), [(None, "cannot be read"), ("rubbish", ""), ("", ""), ("\0", "")])
def test_a_file_of_tls_that_is_not_right_is_named_by_its_key(
    tmp_path: Path, key: str, text: str | None, fault: str
) -> None:
    file = write_tls(tmp_path)[key]
    assert load(tmp_path / "pool.toml").tls.key == str(tmp_path / "master.key")
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "pool.toml")
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / 'pool.toml'}: [tls]: {key}: {file} ")
    assert fault in line


def test_a_key_that_everybody_may_read_and_a_certificate_that_has_ended_are_warned_of(tmp_path: Path) -> None:
    files = write_tls(tmp_path)
    files["client_ca"].write_bytes("# \u00e9cole\n".encode() + files["client_ca"].read_bytes())
    nobody_sent = "there is no [[backend]]: every client will be told NoServer"
    assert load(tmp_path / "pool.toml").warnings == (nobody_sent,)
    files["key"].chmod(0o644)
    ended = trustme.CA().issue_cert("localhost", not_after=datetime(2026, 1, 1, tzinfo=UTC))
    files["certificate"].write_bytes(ended.cert_chain_pems[0].bytes())
    files["key"].write_bytes(ended.private_key_pem.bytes())
    _, over, bare = load(tmp_path / "pool.toml").warnings
    assert over == f"{files['certificate']} has ended: clients refuse it"
    assert "chmod" in bare


def test_check_says_who_is_let_in_and_how_often(tmp_path: Path) -> None:
    said = describe(load(write(tmp_path)))
    assert "clients are let in by pass or token" in said
    tls = '[tls]\nlisten = "127.0.0.1:7443"\ncertificate = "c"\nkey = "k"\nclient_ca = "a"\n'
    said = describe(parse(f"{tls}[access]\nclient_certificates = true\n[limits]\nasks_per_network_per_s = 0.5"))
    assert "listens on 127.0.0.1:7443 under TLS" in said
    assert "clients are let in by certificate" in said
    assert "asks of one network (/32 or /64): 0.5 a second, 20 at once" in said
    assert not [line for line in describe(Config()) if "let in" in line or "network" in line]
