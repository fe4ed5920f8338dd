"""What reaches the terminal, or a pipe."""

from __future__ import annotations

import json
import os
import sys

import pytest
from rich.text import Text

from client_stub.show import complain, put_json, put_line


class Pipe:
    """Stands for standard output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> None:
        reader, writer = os.pipe()
        self._read = os.fdopen(reader, encoding=encoding)
        self._write = os.fdopen(writer, "w", encoding=encoding)
        monkeypatch.setattr(sys, "stdout", self._write)

    def read(self) -> str:
        self._write.close()
        with self._read:
            return self._read.read()

    def leave(self) -> None:
        self._read.close()

    def close(self) -> None:
        self._write.close()


def test_letters_that_the_output_lacks_are_shown_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch, "ascii")
    put_line(Text("Task-Я"))
    put_json("Я")
    plain, as_json = pipe.read().splitlines()
    assert (plain, json.loads(as_json)) == ("Task-\\u042f", "Я")


def test_a_line_is_not_broken_and_no_markup_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    put_line(Text("[red]" + "x " * 300))
    assert pipe.read() == "[red]" + "x " * 300 + "\n"


def test_a_reader_that_has_left_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    pipe.leave()
    put_json({})
    put_line(Text("more"))
    pipe.close()


def test_a_complaint_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("two\nlines")
    assert capsys.readouterr().err == "lambdamu client: two\\nlines\n"
