"""`[queue]` and `[[queue.template]]`: what switches the queue on, what is refused, and what is told of it.

The file is long because each fault of these tables, and each line of `check`, is a row.
"""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu.keys import Signer
from master.config import BackendConfig, Config, StateConfig
from master.config_file import ConfigError, load, parse
from master.config_json import read_config, schema_of, tables_of
from master.config_notes import describe, warn
from master.config_queue import MOST_TEMPLATES, Control, QueueConfig, pattern_fault
from master.queue.policy import Mode, TemplatePolicy
from master.queue.ticket import Lane
from master.reload import Changed, compare

FULL = """
[queue]
mode = "queue_all"
per_minute = 0
control = "shadow"
n_minus_1 = true
[[queue.template]]
pattern = "event-*"
per_minute = 0.5
lanes = ["vip", "plain"]
[[queue.template]]
share = 3
"""


def queue_of(text: str, **environment: str) -> QueueConfig | None:
    return parse(text, environment={f"LAMBDAMU_QUEUE__{key}": value for key, value in environment.items()}).queue


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    return str(caught.value).splitlines()


def test_the_table_switches_it_on_also_when_it_is_empty_or_in_the_environment() -> None:
    assert queue_of("") is None
    assert queue_of("[queue]") == queue_of("queue = {}") == queue_of("", MODE="auto") == QueueConfig()
    assert queue_of("", TEMPLATE__0__SHARE="1") == QueueConfig()
    assert queue_of("[queue]\nburst = 5", BURST="7", MODE="hold") == QueueConfig(Mode.HOLD, burst=7)


def test_what_is_written_is_what_is_meant() -> None:
    assert queue_of(FULL) == QueueConfig(
        Mode.QUEUE_ALL,
        per_minute=0.0,
        control=Control.SHADOW,
        n_minus_1=True,
        templates=(
            TemplatePolicy("event-*", per_minute=0.5, lanes=(Lane.VIP, Lane.PLAIN)),
            TemplatePolicy("default", share=3.0),
        ),
    )


def test_without_a_template_there_is_one_and_with_one_no_other() -> None:
    for text in ("[queue]", "[queue]\ntemplate = []"):
        assert queue_of(text) == QueueConfig(templates=(TemplatePolicy("default"),))
    queue = queue_of("[[queue.template]]\npattern = 'a'")
    assert queue is not None
    assert [each.pattern for each in queue.templates] == ["a"]


def test_templates_of_the_environment_go_over_those_of_the_file_and_on_behind_them() -> None:
    queue = queue_of(FULL, TEMPLATE__1__PATTERN="*", TEMPLATE__2__PATTERN="z", TEMPLATE__2__LANES="plain")
    assert queue is not None
    assert [(each.pattern, each.share) for each in queue.templates] == [("event-*", 1.0), ("*", 3.0), ("z", 1.0)]
    assert queue.templates[2].lanes == (Lane.PLAIN,)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queue = 5", "[queue]: must be a table, not 5"),
        ("[[queue]]", "[queue]: must be a table, not an array"),
        ("[queue.template]", "[[queue.template]]: must be an array of tables, each under [[queue.template]] in two"),
        ("[queue]\ntemplate = [5]", "[[queue.template]] 1: must be a table, not 5"),
        ('["queue.template"]', "[queue.template]: is not known; did you mean queue.template?"),
        ("[[template]]", "[template]: is not known; did you mean queue.template?"),
        ("[queue]\ntemplates = 5", "[queue]: templates: is not known; did you mean template?"),
        ("[queue]\nshadow = true", "[queue]: shadow: is not known"),
        ("[queue]\nvip_share = 1", "[queue]: vip_share: is not known here; it belongs to [[queue.template]]"),
        ("[queue]\ncontrol = true", '[queue]: control: must be "on", "shadow" or "off", not true'),
        ("[queue]\nper_minute = 0.0001", "[queue]: per_minute: must be a number from 0.001 to 6000000, or 0, not 0.00"),
        ('[queue]\ntext = "a\\nb"', '[queue]: text: must be of characters that print, not "a\\nb"'),
        ("[[queue.template]]\npattern = 5", "[[queue.template]] 1: pattern: must be a text in quotes, not 5"),
        ("[[queue.template]]\npattern = ''", '[[queue.template]] 1 "": pattern: must be from 1 to 128 bytes long'),
        ("[[queue.template]]\npattern = '[z-a]'", '[[queue.template]] 1 "[z-a]": pattern: holds a range that runs'),
        ("[[queue.template]]\nlanes = []", '[[queue.template]] 1: lanes: must hold "plain"'),
        ("[[queue.template]]\nlanes = ['resume', 'vip']", '[[queue.template]] 1: lanes: must hold "plain"'),
        ("[[queue.template]]\nlanes = 'plain'", '[[queue.template]] 1: lanes: must be an array of texts, not "plain"'),
        ("[[queue.template]]\nlanes = ['vip', 'plain', 'vip']", '[[queue.template]] 1: lanes: holds "vip" more than'),
        ("[[queue.template]]\nlanes = [2]", '[[queue.template]] 1: lanes: must be "resume", "vip" or "plain", not 2'),
        (
            "[[queue.template]]\npattern = 'a'\n[[queue.template]]\npattern = 'a'",
            '[[queue.template]] 2 "a": pattern: "a" is the pattern of [[queue.template]] 1 "a" already',
        ),
        (
            "[[queue.template]]\n[[queue.template]]\nshare = 2",
            '[[queue.template]] 2: pattern: "default" is the pattern of [[queue.template]] 1 already',
        ),
        (
            "".join(f"[[queue.template]]\npattern = 'q{n}'\n" for n in range(MOST_TEMPLATES + 1)),
            "[[queue.template]]: there are 257, and at most 256 are taken",
        ),
    ],
)
def test_what_is_not_right_is_one_line(text: str, line: str) -> None:
    (got,) = refused(text)
    assert got.startswith(f"f: {line}")
    assert got.isprintable()


def test_every_fault_of_templates_is_named_at_once() -> None:
    bad = "[[queue.template]]\npattern = '['\nshare = 0\nlanes = []\n"
    keys = [line.split(": ")[2] for line in refused(f"[queue]\nturn_s = 0\n{bad}{bad}")]
    assert keys == ["turn_s", *["pattern", "share", "lanes"] * 2]


@pytest.mark.parametrize(
    "pattern", ["a", "*", "?", "[ab]", "[!ab]", "[]]", "[!]]", "[[]", "a]", "[a-]", "[[-]", "(?!)"]
)
def test_a_pattern_that_the_shell_knows_is_right(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize("pattern", ["[", "a[b", "[!", "[]", "[!]", "[]a", "[a][", "[z-a]", "x[b-a]*"])
def test_a_pattern_that_means_something_else_than_it_says_is_wrong(pattern: str) -> None:
    assert pattern_fault(pattern) is not None


@given(st.text("[]!-abz*?", max_size=12))
@example("[!]")
@example("[[]")
def test_a_bracket_that_fnmatch_takes_for_a_letter_is_found(pattern: str) -> None:
    """What it makes of one is an escaped bracket, which a class that begins with a bracket has, too."""
    stray = r"\[" in re.sub(r"(?<!\\)\[\\\[", "", fnmatch.translate(pattern))
    assert (pattern_fault(pattern) or "").startswith("opens a [") == stray


# The file of keys


def with_keys(folder: Path, text: str, mode: int = 0o600) -> Path:
    (folder / "turns.keys").write_text(text)
    (folder / "turns.keys").chmod(mode)
    file = folder / "pool.toml"
    file.write_text('[queue]\nkeys_file = "turns.keys"\n')
    return file


def test_the_file_of_keys_is_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    queue = load(with_keys(tmp_path, Signer.generate().line())).queue
    assert queue is not None
    assert queue.keys_file == str(tmp_path / "turns.keys")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "holds no key"),
        (Signer.generate().verifier().line(), "holds public keys alone, and a private one has to sign"),
    ],
)
def test_a_file_that_cannot_sign_is_a_fault(tmp_path: Path, text: str | None, fault: str) -> None:
    file = with_keys(tmp_path, text or "")
    if text is None:
        (tmp_path / "turns.keys").unlink()
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: [queue]: keys_file: {tmp_path / 'turns.keys'} {fault}"


def test_a_file_of_keys_that_lies_open_is_warned_of_and_no_key_is_shown(tmp_path: Path) -> None:
    line = Signer.generate().line()
    config = load(with_keys(tmp_path, line, 0o644))
    assert [each for each in config.warnings if each.startswith(f"{tmp_path / 'turns.keys'} holds secrets")]
    shown = [*describe(config), *config.warnings, repr(config), json.dumps(tables_of(config))]
    assert not any(line.rpartition(" ")[2] in each for each in shown)


# What is told of it


def test_it_goes_through_json_and_comes_back_as_it_was() -> None:
    for text in ("", "[queue]", FULL):
        config = attrs.evolve(parse(text), warnings=())
        told = json.loads(json.dumps(tables_of(config) | {"backend": []}))
        assert read_config(told) == config
    assert told["queue"]["template"][0]["lanes"] == ["vip", "plain"]
    assert told["queue"]["template"][0].keys() == schema_of("queue.template")["properties"].keys()
    assert told["queue"].keys() == schema_of("queue")["anyOf"][0]["properties"].keys()


OLD = Config(queue=parse(FULL).queue)


def to(**keys: object) -> Config:
    return attrs.evolve(OLD, queue=attrs.evolve(OLD.queue, **keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"mode": Mode.HOLD},
        {"per_minute": None},
        {"max_held": 5},
        {"commit_s": 1.0},
        {"control": Control.OFF},
        {"templates": (TemplatePolicy("*"),)},
    ],
)
def test_it_changes_live(keys: dict[str, object]) -> None:
    difference = compare(OLD, to(**keys))
    assert difference
    assert difference.fixed == ()
    assert difference.config == to(**keys)


def test_the_name_of_the_file_of_keys_needs_a_restart() -> None:
    difference = compare(OLD, to(keys_file="keys", burst=5))
    assert difference.config == to(burst=5)
    assert difference.lines() == [
        "~ [queue]: burst: 10 -> 5",
        '! [queue]: keys_file: "" -> "keys" (needs a restart)',
    ]


def test_to_switch_it_on_or_off_needs_a_restart() -> None:
    on, off = compare(Config(), OLD), compare(OLD, Config())
    assert on.lines() == ["! [queue]: there is one now (needs a restart)"]
    assert off.lines() == ["! [queue]: there is none any more (needs a restart)"]
    assert (on.config, off.config) == (Config(), OLD)
    assert not on
    assert not off
    assert on.fixed == (Changed("[queue]", "", None, OLD.queue),)


def test_templates_are_told_by_their_patterns() -> None:
    assert OLD.queue is not None
    event, default = OLD.queue.templates
    event = attrs.evolve(event, lanes=(Lane.PLAIN,), share=2.0)
    assert compare(OLD, to(templates=(event, default))).lines() == [
        '~ [[queue.template]] "event-*": share: 1 -> 2',
        '~ [[queue.template]] "event-*": lanes: ["vip", "plain"] -> ["plain"]',
    ]
    assert compare(OLD, to(templates=(default, TemplatePolicy("new")))).lines() == [
        '~ [queue]: template: ["event-*", "default"] -> ["default", "new"]'
    ]
    assert compare(OLD, to(templates=OLD.queue.templates[::-1])).lines() == [
        '~ [queue]: template: ["event-*", "default"] -> ["default", "event-*"]'
    ]


GOOD = BackendConfig("b", "10.0.0.1", 9001, capacity=100)
HONEST = QueueConfig(keys_file="keys")


def lines_of(queue: QueueConfig, *backends: BackendConfig, state: str = "state.db") -> list[str]:
    return list(warn(Config(queue=queue, backends=backends or (GOOD,), state=StateConfig(state))))


@pytest.mark.parametrize(
    ("queue", "line"),
    [
        (HONEST, None),
        (attrs.evolve(HONEST, templates=(TemplatePolicy("*"),)), None),
        (attrs.evolve(HONEST, templates=(TemplatePolicy("a*"), TemplatePolicy("?*"))), None),
        (QueueConfig(), "[queue] has no keys_file: no client gets a Turn"),
        (attrs.evolve(HONEST, per_minute=0.0), "[queue] per_minute is 0: nobody is let in"),
        (
            attrs.evolve(HONEST, templates=(TemplatePolicy(per_minute=0.0),)),
            '[[queue.template]] "default" per_minute is 0: nobody is let in from its queues',
        ),
        (
            attrs.evolve(HONEST, templates=(TemplatePolicy("Default"),)),
            'no [[queue.template]] fits "default": clients that name no Queue are denied',
        ),
        (
            attrs.evolve(HONEST, templates=(TemplatePolicy("d*"), TemplatePolicy("default"))),
            '[[queue.template]] "default" stands behind "d*", which fits all that it fits: no queue is opened from it',
        ),
        (
            attrs.evolve(HONEST, templates=(TemplatePolicy("*"), TemplatePolicy("a*"))),
            '[[queue.template]] "a*" stands behind "*", which fits all that it fits: no queue is opened from it',
        ),
    ],
)
def test_what_looks_like_a_mistake_is_a_warning(queue: QueueConfig, line: str | None) -> None:
    assert lines_of(queue) == ([line] if line else [])


def test_a_pool_that_does_not_fit_a_queue_is_a_warning() -> None:
    endless = BackendConfig("c", "10.0.0.2", 9001)
    nobody = BackendConfig("d", "10.0.0.3", 9001, weight=0)
    assert lines_of(HONEST, GOOD, endless, nobody) == [
        'without capacity of "c" there is always room: no free place is waited for in [queue]'
    ]
    assert lines_of(HONEST, nobody) == ["every [[backend]] has weight 0 or capacity 0: nobody is let in"]
    assert lines_of(HONEST, state="") == [
        "[queue] without [state] file: a restart forgets all places but those of clients that show their Ticket"
    ]
    assert list(warn(Config())) == ["there is no [[backend]]: every client will be told NoServer"]


def test_a_queue_is_described() -> None:
    def said(queue: QueueConfig | None) -> list[str]:
        return [line for line in describe(Config(queue=queue)) if line.startswith(("queue", "turns"))]

    assert said(None) == []
    assert said(parse(FULL.replace("per_minute = 0\n", "")).queue) == [
        "queue: mode queue_all, everybody takes a place first",
        (
            "queue: up to 90 % of the capacity, with room for the loss of the largest backend, no limit a minute, "
            "10000 open calls"
        ),
        "queue: what the load asks for is shown and binds nobody",
        "queue: 1000000 places in 1000 queues, 1000 for one network; 10000 plain clients held",
        "turns: none",
        'queues "event-*": share 1, 0.5 a minute, at most 1000000 wait, lanes vip plain',
        'queues "default": share 3, no limit a minute, at most 1000000 wait, lanes resume vip plain',
    ]
    many = attrs.evolve(HONEST, templates=tuple(TemplatePolicy(f"q{n}") for n in range(11)))
    assert said(many)[-1] == "queues: 1 more template"
    assert "turns: hold for 10 s" in said(many)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("control", Control)
def test_every_mode_has_its_words(mode: Mode, control: Control) -> None:
    assert f"queue: mode {mode.value}, " in "\n".join(describe(Config(queue=QueueConfig(mode, control=control))))
