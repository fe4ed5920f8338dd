"""The status page explains every word that it may show."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.resources import files

import pytest

from lambdamu.messages import LinkFault, QueueReason, Result
from master.core.answers import Reason, State
from master.core.ejection import Verdict
from master.queue.control import Steered
from master.queue.limits import Limit
from master.queue.policy import Mode

PAGE = (files("master.web") / "static" / "page.html").read_text()
NOT_TOLD = {Verdict.NOT_SENT, Verdict.COUNTED, Verdict.ALREADY_OUT}


@pytest.mark.parametrize("words", [State, Reason, Result, LinkFault, Verdict, QueueReason, Limit, Steered])
def test_each_word_has_a_sentence(words: type[StrEnum]) -> None:
    sentences = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]+\.|[^<]+\?)</dd>", PAGE))
    assert [word.value for word in words if word.value not in sentences and word not in NOT_TOLD] == []


def test_no_word_is_explained_twice() -> None:
    words = re.findall(r"<dt>(\w+)</dt>", PAGE)
    assert sorted(words) == sorted(set(words))


def test_each_mode_can_be_chosen_and_is_explained_there() -> None:
    options = re.findall(r'<option value="(\w+)">(\w+): [^<]+</option>', PAGE)
    assert options == [(mode, mode) for mode in Mode]
