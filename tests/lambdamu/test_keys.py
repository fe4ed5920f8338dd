"""Key files: who signs, who verifies, and what is wrong with a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lambdamu.keys import Signer, load_keys
from lambdamu.line_file import LineFileError, read_line_file

OLD, NEW = Signer.generate("old"), Signer.generate("new")


def write(path: Path, *lines: str) -> str:
    file = path / "pass.keys"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return str(file)


def test_the_first_private_key_signs_and_every_key_verifies(tmp_path: Path) -> None:
    path = write(tmp_path, "# ours", "", OLD.verifier().line(), f"  {NEW.line()}", Signer.generate("later").line())
    keys = load_keys(path)
    assert keys.signer is not None
    assert keys.signer.id == "new"
    assert [signer.id for signer in keys.signers] == ["new", "later"]
    assert list(keys.verifiers) == ["old", "new", "later"]
    assert keys.verifiers["old"].verify(OLD.sign(b"data"), b"data")
    assert keys.verifiers["new"].verify(keys.signer.sign(b"data"), b"data")
    assert not keys.verifiers["old"].verify(NEW.sign(b"data"), b"data")


def test_public_lines_alone_sign_nothing(tmp_path: Path) -> None:
    assert load_keys(write(tmp_path, NEW.verifier().line())).signer is None


def test_no_key_is_shown_by_repr() -> None:
    secret = NEW.line().rpartition(" ")[2]
    assert secret not in repr(NEW)
    assert "old" in repr(OLD.verifier())


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("nonsense", "is not `ID: private: KEY` or `ID: public: KEY`, the key as base64url"),
        ("a: secret: AAAA", "is not `ID: private: KEY` or `ID: public: KEY`, the key as base64url"),
        (": public: AAAA", "an id has 1 to 16 letters, digits, - or _"),
        ("seventeen-letters: public: AAAA", "an id has 1 to 16 letters, digits, - or _"),
        ("a b: public: AAAA", "an id has 1 to 16 letters, digits, - or _"),
        ("a: public: AAAA", "a key is 32 bytes as base64url without padding, 43 characters"),
        (f"a: public: {'A' * 42}B", "a key is 32 bytes as base64url without padding, 43 characters"),
        (f"a: public: {'A' * 43}=", "is not `ID: private: KEY` or `ID: public: KEY`, the key as base64url"),
        (OLD.line(), "old has a key already"),
    ],
)
def test_a_fault_names_file_and_line_and_no_key(tmp_path: Path, line: str, fault: str) -> None:
    path = write(tmp_path, OLD.verifier().line(), "# a comment", line)
    with pytest.raises(LineFileError) as caught:
        load_keys(path)
    assert str(caught.value) == f"{path}: line 3: {fault}"


def test_more_keys_than_anybody_has_are_refused(tmp_path: Path) -> None:
    key = OLD.verifier().line().partition(":")[2]
    path = write(tmp_path, *(f"k{i}:{key}" for i in range(257)))
    with pytest.raises(LineFileError, match="line 257: a file holds at most 256 keys"):
        load_keys(path)


def test_a_file_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = tmp_path / "large"
    large.write_bytes(b"#" * 65537)
    latin = tmp_path / "latin"
    latin.write_bytes(b"\xe4")
    faults = {
        str(tmp_path / "none"): "cannot be read: No such file or directory",
        str(fifo): "is no regular file",
        str(tmp_path): "is no regular file",
        str(large): "is larger than 65536 bytes",
        str(latin): "is not UTF-8",
        write(tmp_path, "# nothing"): "holds no key",
    }
    for path, fault in faults.items():
        with pytest.raises(LineFileError) as caught:
            load_keys(path)
        assert str(caught.value).replace("Is a directory", "is no regular file").endswith(fault)
        assert path in str(caught.value)
    with pytest.raises(LineFileError, match="null character"):
        load_keys("a\0b")


@pytest.mark.parametrize(("mode", "too_open"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_file_that_others_may_read_or_change_is_too_open(tmp_path: Path, mode: int, too_open: bool) -> None:
    path = write(tmp_path, NEW.line())
    os.chmod(path, mode)
    assert read_line_file(path).too_open is too_open


def test_an_id_of_a_new_key_is_made_up_or_refused() -> None:
    assert Signer.generate().id != Signer.generate().id
    with pytest.raises(ValueError, match="an id has"):
        Signer.generate("a b")
