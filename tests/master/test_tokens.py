"""Tokens: who is known by one, what a file of them may hold, and that no message repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.config import Config
from master.config_file import ConfigError, load, parse
from master.tokens import Caller, Right, TokensError, load_tokens, parse_tokens

SECRET = "s3cret-s3cret-s3cret"
OTHER = "other-other-other-other"


def test_a_token_is_known_by_its_line_and_no_other_text_is() -> None:
    tokens = parse_tokens(f"# who\n\nann: {SECRET}: write\n  prom.1:{OTHER}:   read\n", "tokens")
    assert tokens.find(SECRET) == Caller("ann", Right.WRITE)
    assert tokens.find(OTHER) == Caller("prom.1", Right.READ)
    for wrong in ("", SECRET[:-1], SECRET + "x", "ann", "é" * 20):
        assert tokens.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no token"),
        (f"ann {SECRET} write", "line 1 is not"),
        (f"ann: {SECRET}: admin", "line 1 is not"),
        (f"ann: {SECRET}", "line 1 is not"),
        ("\nann: short: read", "line 2: a token has at least 16 characters"),
        (f"ann: {SECRET}: read\nann: {OTHER}: read", "line 2: ann has a token already"),
    ],
)
def test_a_wrong_file_is_named_by_line_and_no_secret_is_told(text: str, said: str) -> None:
    with pytest.raises(TokensError) as caught:
        parse_tokens(text, "tokens")
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="cannot be read: No such file"):
        load_tokens(str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(TokensError, match="is not UTF-8"):
        load_tokens(str(tmp_path / "latin"))
    (tmp_path / "large").write_bytes(b"#" * 100_000)
    with pytest.raises(TokensError, match="is larger than"):
        load_tokens(str(tmp_path / "large"))


def test_the_path_begins_at_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text('[http]\nlisten = "0.0.0.0:0"\ntokens_file = "tokens"\n')
    with pytest.raises(ConfigError, match=r"tokens_file: .*cannot be read"):
        load(tmp_path / "pool.toml")
    (tmp_path / "tokens").write_text(f"ann: {SECRET}: write\n")
    assert load(tmp_path / "pool.toml").http.tokens_file == str(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("listen", "open_to_others"),
    [
        ("127.0.0.1:0", False),
        ("127.9.9.9:0", False),
        ("[::1]:0", False),
        ("localhost:0", False),
        ("0.0.0.0:0", True),
        ("[::]:0", True),
        ("10.0.0.1:80", True),
        ("chat.example:80", True),
    ],
)
def test_whoever_listens_beyond_loopback_needs_tokens(listen: str, open_to_others: bool) -> None:
    text = f'[http]\nlisten = "{listen}"\n'
    if not open_to_others:
        assert isinstance(parse(text), Config)
        return
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value) == f"f: [http]: tokens_file: is missing, and other machines can reach listen, {listen}"
    assert isinstance(parse(text + 'tokens_file = "t"\n'), Config)
