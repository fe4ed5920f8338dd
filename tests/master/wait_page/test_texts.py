"""The texts of the waiting page: which language is chosen, and which files are taken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.line_file import LineFileError
from master.wait_page.texts import load_texts

BUILT_IN = load_texts()


@pytest.mark.parametrize(
    ("wishes", "tag"),
    [
        ("", "en"),
        ("ru", "ru"),
        ("RU-ru", "ru"),
        ("de-CH-1996", "de"),
        ("fr", "en"),
        ("fr, de", "de"),
        ("en;q=0.5, de;q=0.9", "de"),
        ("de;q=0.5, ru;q=0.5", "de"),
        ("de;q=0", "en"),
        ("de;q=0, ru;q=0.1", "ru"),
        ("*", "en"),
        ("de;q=0.5, *", "en"),
        ("de ; q=1.000", "de"),
        ("de;q=2, ru", "ru"),
        ("de;q=x", "en"),
        (", ,de,", "de"),
        ("dede-", "en"),
        ("xx," * 40 + "de", "en"),
    ],
)
def test_the_dearest_language_that_there_is_is_chosen(wishes: str, tag: str) -> None:
    assert BUILT_IN.choose(wishes).tag == tag


@given(st.text())
def test_whatever_is_wished_for_there_is_a_language(wishes: str) -> None:
    assert BUILT_IN.choose(wishes).tag in ("en", "de", "ru")


@pytest.mark.parametrize("tag", ["de", "ru"])
def test_a_language_of_ours_says_all_with_the_same_fields(tag: str) -> None:
    english, other = (BUILT_IN.languages[each].words for each in ("en", tag))
    own = json.loads((Path(__file__).parents[3] / f"master/wait_page/texts/{tag}.json").read_text("utf-8"))
    assert own.keys() == english.keys()
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", other[key])) == set(re.findall(r"\{\w+\}", text)), key
        assert bool(other[key]) is bool(text), key


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "less than a minute"),
        (59.9, "less than a minute"),
        (60.0, "1 min"),
        (60.1, "2 min"),
        (3540.0, "59 min"),
        (3541.0, "1 h 0 min"),
        (48 * 3600.0 - 60.0, "47 h 59 min"),
        (48 * 3600.0, "2 d 0 h"),
        (48 * 3600.0 + 1.0, "2 d 1 h"),
        (1234 * 86400.0, "1,234 d 0 h"),
    ],
)
def test_a_time_is_said_in_minutes_and_never_too_short(seconds: float, text: str) -> None:
    assert BUILT_IN.languages["en"].duration(seconds).replace("\u00a0", " ") == text


def test_files_add_languages_and_replace_single_texts(tmp_path: Path) -> None:
    (tmp_path / "de.json").write_text('\ufeff{"wait": "Du bist in der Schlange"}', encoding="utf-8")
    (tmp_path / "pt-BR.json").write_text('{"wait": "Você está na fila"}', encoding="utf-8")
    (tmp_path / "README").write_text("no text")
    texts = load_texts(str(tmp_path))
    german, brazilian = texts.choose("de"), texts.choose("pt-br")
    assert (german.say("wait"), german.say("leave")) == ("Du bist in der Schlange", "Warteschlange verlassen")
    assert (brazilian.tag, brazilian.say("wait")) == ("pt-BR", "Você está na fila")
    assert brazilian.say("leave") == "Leave the line"
    assert BUILT_IN.choose("de").say("wait") == "Sie stehen in der Warteschlange"
    assert texts.choose("pt").tag == "en"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("de.json", "{", "de.json is no JSON: Expecting property name"),
        ("de.json", "[]", "de.json is no map of texts"),
        ("de.json", "1" * 5000, "de.json is no map of texts"),
        ("de.json", "[" * 50000, "de.json is no map of texts"),
        ("de.json", '{"wiat": "x"}', 'de.json: "wiat": is not known; did you mean wait?'),
        ("de.json", '{"wait": 5}', 'de.json: "wait": must be a text'),
        ("de.json", '{"wait": "a", "wait": "b"}', 'de.json: "wait": stands there twice'),
        ("de.json", '{"wait": "a\\nb"}', 'de.json: "wait": must be one line of whole characters'),
        ("de.json", '{"wait": "\\ud800"}', 'de.json: "wait": must be one line of whole characters'),
        ("de.json", json.dumps({"wait": "x" * 1001}), 'de.json: "wait": must be at most 1000 characters long'),
        ("de.json", '{"place": "{people} {seat}"}', 'de.json: "place": has no field {seat}'),
        ("de.json", '{"place": "{people"}', 'de.json: "place": has a brace that is part of no field'),
        ("de.json", '{"place": "{people!r}"}', 'de.json: "place": has a brace that is part of no field'),
        ("de.json", '{"direction": "up"}', 'de.json: "direction": must be "ltr" or "rtl"'),
        ("german.json", "{}", "german.json is not named after a language, as de.json or pt-BR.json"),
        ("de.json", "{}" + " " * 65536, "de.json is larger than 65536 bytes"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, name: str, text: str, fault: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(LineFileError) as caught:
        load_texts(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}/{fault}")
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_none_or_holds_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, fault in (
        (tmp_path / "gone", "cannot be read: No such file or directory"),
        (tmp_path / "file", "cannot be read: Not a directory"),
        (tmp_path, "holds no file such as de.json"),
    ):
        with pytest.raises(LineFileError) as caught:
            load_texts(str(folder))
        assert str(caught.value) == f"{folder} {fault}"


def test_two_files_of_one_language_are_told(tmp_path: Path) -> None:
    for name in ("pt-BR.json", "pt-br.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(LineFileError, match="is for the same language as"):
        load_texts(str(tmp_path))
