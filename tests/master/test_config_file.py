"""Reading the file: encodings, what is no file, what is no TOML, backends that are one, and anything at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.errors import LambdaMuError
from master.config import BackendConfig, Config
from master.config_file import ConfigError, Fault, load, parse
from master.config_text import MAX_FILE_BYTES


@pytest.mark.parametrize(
    "encoded", [str.encode, lambda text: text.encode("utf-8-sig"), lambda text: b"\r\n" + text.encode()]
)
def test_a_mark_at_the_head_and_windows_line_ends_do_not_matter(tmp_path: Path, encoded: Any) -> None:
    text = '# ü\r\n[[backend]]\r\nname = "ü"\r\nhost = "a"\r\nport = 1\r\n'
    (tmp_path / "pool.toml").write_bytes(encoded(text))
    assert load(tmp_path / "pool.toml").backends == (BackendConfig("ü", "a", 1),)
    assert parse("\ufeff" + text).backends == (BackendConfig("ü", "a", 1),)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ("[master]".encode("utf-16"), "is not UTF-8 but UTF-16, or no text at all: save it as UTF-8"),
        ("[master]".encode("utf-16-le"), "is not UTF-8 but UTF-16, or no text at all: save it as UTF-8"),
        ("a\n'ü'".encode("latin-1"), "is not UTF-8: line 2 holds the byte fc: save it as UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than 4 MiB"),
        (b"[master]\nlisten 5", "line 2, column 8: is not TOML: Expected '=' after a key in a key/value pair"),
        (b"[master]\nlisten = ", "line 2, column 10: is not TOML: Invalid value"),
        (b"a = " + b"[" * 5000, "is not usable: values are nested too deeply"),
        (b"a = " + b"9" * 5000, "is not usable: a number has too many digits"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, data: bytes, cause: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {cause}"


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("missing.toml", "cannot be read: No such file or directory"),
        (".", "is a directory"),
        ("fifo", "is not a regular file"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("a\nb", "cannot be read: No such file or directory"),
        ("a\0b", "is no file name"),
        pytest.param(
            "/proc/self/mem",
            "cannot be read: Input/output error",
            marks=pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="a file that even root cannot read"),
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, path: str, cause: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LambdaMuError) as caught:
        load(tmp_path / path)
    assert str(caught.value).endswith(f": {cause}")
    assert str(caught.value).isprintable()


def pool(*backends: str) -> str:
    return "backend = [" + ", ".join("{" + backend + "}" for backend in backends) + "]"


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    return [str(fault) for fault in caught.value.faults]


HONEST = "host = '10.9.9.9', port = 9000"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "LocalHost"),
        ("db.localhost", "localhost."),
        ("HOST", "host"),
        ("host.", "host"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("2001:db8::1", "[2001:0DB8:0::1]"),
    ],
)
def test_one_place_under_two_spellings_is_refused(one: str, other: str) -> None:
    first, second = f"name = 'x', host = '{one}', port = 1", f"name = 'y', weight = 2, host = '{other}', port = "
    assert faults(pool(HONEST, first, second + "1")) == [
        'f: [[backend]] 3 "y": host, port: are the same place as those of [[backend]] 2 "x"'
    ]
    assert len(parse(pool(HONEST, first, second + "2")).backends) == 3


@pytest.mark.parametrize(("one", "other"), [("127.0.0.1", "::1"), ("127.0.0.1", "127.0.0.2"), ("a", "b"), ("a", "a.b")])
def test_two_places_stay_two(one: str, other: str) -> None:
    assert len(parse(pool(f"host = '{one}', port = 1", f"host = '{other}', port = 1")).backends) == 2


def test_a_place_listed_twice_without_names_is_one_fault() -> None:
    assert faults(pool(HONEST, HONEST)) == [
        "f: [[backend]] 2: host, port: are the same place as those of [[backend]] 1"
    ]


def test_a_name_is_given_once_even_where_it_is_a_default() -> None:
    assert faults(pool(HONEST, "name = '10.9.9.9:9000', host = '10.0.0.1', port = 1")) == [
        'f: [[backend]] 2 "10.9.9.9:9000": name: "10.9.9.9:9000" is the name of [[backend]] 1 already'
    ]


def test_a_warning_is_one_line_whatever_the_names() -> None:
    joined = "name = '\\u200d', host = '10.0.0.1', port = 1, advertise = ['1.1.1.1:1']".replace("'", '"')
    assert parse(pool(joined, "host = '1.1.1.1', port = 1")).warnings == (
        'clients are told one and the same address for "\\u200d", "1.1.1.1:1"',
    )


TOML_TEXT = st.lists(
    st.sampled_from(
        [*"[]{}=\"'.,#\n\r\\:+-_ \t019eaéT", '"""', "[[backend]]\n", "[probe]\n", "host", "port", " = ", "nan", "1e999"]
    )
).map("".join)


def outcome(read: Callable[[], Config]) -> Config | tuple[Fault, ...]:
    try:
        return read()
    except ConfigError as error:
        return error.faults


@given(st.text() | TOML_TEXT)
def test_any_text_is_a_configuration_or_faults(text: str) -> None:
    got = outcome(lambda: parse(text))
    assert isinstance(got, Config) or (got and all(str(fault).isprintable() for fault in got))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_faults(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    got = outcome(lambda: load(path))
    assert isinstance(got, Config) or (got and all(fault.file == str(path) for fault in got))


def test_a_broken_file_is_never_replaced_by_defaults() -> None:
    broken = 'backend = [{host = "10.0.0.1", port = 9001}]\n[probe]\ninterval_s = 2\ntimeout_s = 3'
    assert outcome(lambda: parse(broken, "f")) == (
        Fault("f", "[probe]", "timeout_s", "must not exceed interval_s, but 3 is more than 2"),
        Fault("f", "[probe]", "interval_s + timeout_s", "must not exceed stale_after_s, but 5 is more than 3"),
    )


def test_a_fault_leaves_out_what_it_does_not_have_and_stays_one_line() -> None:
    assert str(Fault("a\nb.toml", "", "", "is empty")) == "a\\nb.toml: is empty"
    assert str(Fault("a", "[b]", "c", "d")) == "a: [b]: c: d"
