"""Who has the right to ask: passes, tokens, certificates, and what takes it away again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.keys import Signer
from lambdamu.line_file import LineFile, LineFileError
from lambdamu.messages import Reason
from lambdamu.passes import Pass, PassVerifier, make_pass
from master.access import (
    Access,
    Credentials,
    Denied,
    Granted,
    SharedTokens,
    parse_revoked,
    parse_shared_tokens,
    read_credentials,
)
from master.config import AccessPolicy

KEY, FOREIGN = Signer.generate("k1"), Signer.generate("k1")
NOW = 1_800_000_000
TOKEN = "correct-horse-battery"
SAYS = Pass("p1", "ann", ("access", "vip"), NOW + 60)
GOOD = make_pass(KEY, SAYS)
REVOKED = frozenset({"p9", "eve", "CN=eve"})
ALL = AccessPolicy(keys_file="k", tokens_file="t", client_certificates=True)


def access(policy: AccessPolicy) -> Access:
    passes = PassVerifier({"k1": KEY.verifier()}, REVOKED) if policy.keys_file else None
    tokens = SharedTokens({"phones": TOKEN}) if policy.tokens_file else None
    return Access(policy, Credentials(passes, tokens, REVOKED))


def of(**values: object) -> str:
    made = {"id": "p1", "subject": "ann", "rights": ("access",), "expires": NOW + 60, **values}
    return make_pass(KEY, Pass(**made))  # type: ignore[arg-type]


CASES = [
    ("nothing", None, "", Reason.PASS_MISSING),
    ("a good pass", GOOD, "", Granted("ann", ("access", "vip"))),
    ("the token", TOKEN, "", Granted("phones")),
    ("a certificate", None, "CN=ann", Granted("CN=ann")),
    ("a certificate and rubbish", "rubbish", "CN=ann", Granted("CN=ann")),
    ("a revoked certificate", None, "CN=eve", Reason.PASS_REVOKED),
    ("a revoked certificate and a good pass", GOOD, "CN=eve", Granted("ann", ("access", "vip"))),
    ("another token", TOKEN + "x", "", Reason.PASS_FOREIGN),
    ("a pass of another key of the same name", make_pass(FOREIGN, SAYS), "", Reason.PASS_FOREIGN),
    ("a pass of an unknown key", make_pass(Signer.generate("k2"), SAYS), "", Reason.PASS_FOREIGN),
    ("a pass that is over", of(expires=NOW - 60), "", Reason.PASS_EXPIRED),
    ("a revoked pass", of(id="p9"), "", Reason.PASS_REVOKED),
    ("a pass of one who is revoked", of(subject="eve"), "", Reason.PASS_REVOKED),
    ("a pass for something else", of(rights=("vip",)), "", Reason.PASS_TOO_LITTLE),
]


@pytest.mark.parametrize(("text", "subject", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_kind_of_right_is_judged(text: str | None, subject: str, wanted: Granted | Reason) -> None:
    judged = access(ALL).judge(NOW, text, subject)
    assert judged == (Denied(wanted) if isinstance(wanted, Reason) else wanted)


@pytest.mark.parametrize(
    ("policy", "text", "subject", "reason"),
    [
        (AccessPolicy(keys_file="k"), TOKEN, "", Reason.PASS_MALFORMED),
        (AccessPolicy(keys_file="k"), None, "CN=ann", Reason.PASS_MISSING),
        (AccessPolicy(tokens_file="t"), GOOD, "", Reason.PASS_FOREIGN),
        (AccessPolicy(tokens_file="t"), None, "CN=ann", Reason.PASS_MISSING),
        (AccessPolicy(client_certificates=True), GOOD, "", Reason.PASS_FOREIGN),
        (AccessPolicy(client_certificates=True), None, "", Reason.PASS_MISSING),
    ],
)
def test_what_the_configuration_does_not_name_gives_no_right(
    policy: AccessPolicy, text: str | None, subject: str, reason: Reason
) -> None:
    assert access(policy).judge(NOW, text, subject) == Denied(reason)


@given(st.text(), st.sampled_from([AccessPolicy(keys_file="k"), AccessPolicy(tokens_file="t"), ALL]))
def test_no_text_of_chance_gets_in_or_raises(text: str, policy: AccessPolicy) -> None:
    assert isinstance(access(policy).judge(NOW, text), Denied)


def test_a_token_is_found_whole_and_by_nothing_less() -> None:
    tokens = SharedTokens({"a": TOKEN, "b": "another-token-of-ours"})
    assert [tokens.find(text) for text in (TOKEN, "another-token-of-ours")] == ["a", "b"]
    for text in ("", TOKEN[:-1], TOKEN.upper(), TOKEN + "\0", "a", "\ud800" * 20):
        assert tokens.find(text) is None


def lines(*text: str) -> LineFile:
    return LineFile("tokens", "\n".join(text))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (["a: short"], "tokens: line 1: a token has from 16 to 512 characters"),
        (["# one", f"a: {'x' * 513}"], "tokens: line 2: a token has from 16 to 512 characters"),
        ([TOKEN], "tokens: line 1: is not `name: token`"),
        ([f"a: {TOKEN} {TOKEN}"], "tokens: line 1: is not `name: token`"),
        ([f"a: {TOKEN}", f"a: {TOKEN}x"], "tokens: line 2: a has a token already"),
        ([f"a: {TOKEN}", f"b: {TOKEN}"], "tokens: line 2: the token of b is that of another too"),
        (["# none"], "tokens holds no token"),
    ],
)
def test_a_fault_in_a_file_of_tokens_names_the_line_and_no_token(text: list[str], fault: str) -> None:
    with pytest.raises(LineFileError) as caught:
        parse_shared_tokens(lines(*text))
    assert str(caught.value) == fault


def test_who_is_revoked_stands_on_a_line_of_his_own() -> None:
    assert parse_revoked(lines("# gone", "p1", "  ann of b ", "")) == {"p1", "ann of b"}
    assert parse_revoked(lines()) == frozenset()
    with pytest.raises(LineFileError, match="line 2: is longer"):
        parse_revoked(lines("p1", "x" * 257))


def test_the_files_are_read_and_those_that_lie_open_are_told_of(tmp_path: Path) -> None:
    paths = {}
    for name, text in (("keys_file", KEY.line()), ("tokens_file", f"a: {TOKEN}"), ("revoked_file", "p1")):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o644)
        paths[name] = str(file)
    credentials = read_credentials(AccessPolicy(**paths))  # type: ignore[arg-type]
    assert [warning.split(" ")[0] for warning in credentials.warnings] == [paths["keys_file"], paths["tokens_file"]]
    judging = Access(AccessPolicy(**paths), credentials)  # type: ignore[arg-type]
    assert judging.judge(NOW, TOKEN) == Granted("a")
    assert judging.judge(NOW, GOOD) == Denied(Reason.PASS_REVOKED)
    assert judging.used > 0
