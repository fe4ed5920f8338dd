"""The usual answer: whatever is read the short way is what the long way would have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu.datapack import DEFAULT_LIMITS, Decoder, WireLimits, encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import MAX_COUNT, Message
from master.probe import Probe
from master.usual_answer import UsualAnswer

TASK = {"Object": "Auth", "Command": "Value", "Name": "TaskObject", "Data": "Task-1"}
NEWS = {"Object": "Chat", "Command": "Value", "Name": "News", "Data": 3}


def count_of(count: Any) -> dict[str, Any]:
    return {"Object": "System", "Command": "Value", "Name": "UserCount", "Data": count}


def packed(*batches: Any) -> bytes:
    return b"".join(msgpack.packb(batch) for batch in batches)


def as_lua(batch: Sequence[Any]) -> dict[int, Any]:
    return dict(enumerate(batch, 1))


def the_long_way(data: bytes, *, needs_task: bool, limits: WireLimits = DEFAULT_LIMITS) -> int | None:
    """Return the count of an answer that is whole, good, and has nothing behind it; else None."""
    probe, decoder = Probe(needs_task), Decoder(limits)
    try:
        for batch in decoder.feed(data):
            if probe.complete:
                return None
            probe.take(batch)
    except (LinkError, RemoteProtocolError):
        return None
    return probe.count if probe.complete and not decoder.pending else None


def learnt(data: bytes, *, needs_task: bool, limits: WireLimits = DEFAULT_LIMITS) -> UsualAnswer:
    """Return one that has heard `data`, if it is a good answer."""
    usual = UsualAnswer(needs_task=needs_task, limits=limits)
    count = the_long_way(data, needs_task=needs_task, limits=limits)
    if count is not None:
        usual.learn(data, count)
    return usual


PLAIN = encode([Message("System", "Value", "UserCount", 7)])


def test_an_answer_that_repeats_is_read_the_short_way() -> None:
    usual = UsualAnswer(needs_task=False, limits=DEFAULT_LIMITS)
    assert usual.count_in(PLAIN) is None  # not heard yet
    usual.learn(PLAIN, 7)
    for count in (7, 0, 127, 128, 255, 256, 65535, 65536, 2**32, MAX_COUNT - 1):
        assert usual.count_in(encode([Message("System", "Value", "UserCount", count)])) == count


# What the count of an answer may be, by its bytes: none of the bad ones is a count.
GOOD_COUNTS = [b"\x05", b"\xcc\x05", b"\xcd\x00\x05", b"\xce\0\0\0\x05", b"\xcf" + bytes(7) + b"\x05", b"\xd0\x05"]
BAD_COUNTS = [
    msgpack.packb(value)
    for value in (-1, -(2**40), MAX_COUNT, 2**63, True, False, None, 5.0, float("nan"), float("inf"), "5", b"5", [], {})
] + [b"", b"\xc1", b"\xcc", b"\xcd\x00", b"\x05\x05", b"\x05" + PLAIN, b"\xdd\xff\xff\xff\xff", b"\xd4\xff\x00"]


@pytest.mark.parametrize("count", GOOD_COUNTS, ids=bytes.hex)
def test_a_count_counts_however_long_it_is_written(count: bytes) -> None:
    assert learnt(PLAIN, needs_task=False).count_in(PLAIN[:-1] + count) == 5


@pytest.mark.parametrize("count", BAD_COUNTS, ids=lambda count: count.hex()[:24] or "nothing")
def test_what_is_no_count_goes_the_long_way(count: bytes) -> None:
    assert learnt(PLAIN, needs_task=False).count_in(PLAIN[:-1] + count) is None


@pytest.mark.parametrize(
    ("batches", "needs_task", "is_learnt"),
    [
        ([[count_of(7)]], False, True),
        ([as_lua([count_of(7)])], False, True),
        ([[{"Extra": 7, **count_of(7)}]], False, True),
        ([[NEWS], [count_of(7)]], False, True),
        ([[NEWS, count_of(7)]], False, True),
        ([[TASK], [count_of(7)]], True, True),
        ([[TASK, count_of(7)]], True, True),
        ([as_lua([TASK, count_of(7)])], True, True),
        ([[count_of(9), count_of(7)]], False, True),
        ([[count_of(7)], [TASK]], True, False),
        ([[count_of(7), TASK]], True, False),
        ([[{**count_of(7), "Extra": 8}]], False, False),
        ([[{**count_of(7), "Extra": 7}]], False, False),
        ([[{"Data": 7, "Object": "System", "Command": "Value", "Name": "UserCount"}]], False, False),
        ([[count_of(3), NEWS]], False, False),
        ([[count_of(7)], [TASK]], False, False),
        ([[count_of(7)], [count_of(7)]], False, False),
        ([[count_of(7)]], True, False),
    ],
)
def test_it_is_learnt_only_where_its_end_is_the_count(batches: list[Any], needs_task: bool, is_learnt: bool) -> None:
    data = packed(*batches)
    usual = UsualAnswer(needs_task=needs_task, limits=DEFAULT_LIMITS)
    usual.learn(data, the_long_way(data, needs_task=needs_task) or 7)
    assert usual.count_in(data) == (7 if is_learnt else None)


@pytest.mark.parametrize("head", [b"\xcc", b"\xcd\x00", b"\xce\x00\x00\x00", b"\xd0"], ids=bytes.hex)
def test_an_answer_that_writes_its_count_in_a_longer_way_is_not_learnt(head: bytes) -> None:
    data = PLAIN[:-1] + head + b"\x07"
    usual = learnt(data, needs_task=False)
    assert usual.count_in(data) is None
    usual.learn(PLAIN, 7)
    assert usual.count_in(PLAIN) == 7


@pytest.mark.parametrize("spare_bytes", range(9))
def test_no_count_makes_an_answer_longer_than_is_allowed(spare_bytes: int) -> None:
    limits = WireLimits(batch_bytes=len(PLAIN) + spare_bytes)
    usual = learnt(PLAIN, needs_task=False, limits=limits)
    for count in GOOD_COUNTS:
        data = PLAIN[:-1] + count
        assert usual.count_in(data) in (None, the_long_way(data, needs_task=False, limits=limits))


def test_an_answer_that_never_repeats_is_not_learnt_from_for_ever() -> None:
    """Decoding it once more for each try would cost more than it saves."""
    looked = 0

    class Limits:
        def __getattr__(self, name: str) -> int:
            nonlocal looked
            looked += 1
            return getattr(DEFAULT_LIMITS, name)

    usual = UsualAnswer(needs_task=False, limits=Limits())  # type: ignore[arg-type]
    for serial in range(1000):
        data = packed([{"Serial": serial, **count_of(7)}])
        assert usual.count_in(data) is None
        usual.learn(data, 7)
        if serial == 100:
            before = looked
            assert before
    assert looked == before


def test_whoever_repeats_now_and_then_is_learnt_from_again() -> None:
    usual = UsualAnswer(needs_task=False, limits=DEFAULT_LIMITS)
    for round_ in range(100):
        data = packed([{"Round": round_, **count_of(7)}])
        assert usual.count_in(data) is None
        usual.learn(data, 7)
        assert usual.count_in(data) == 7


# Properties.

texts = st.text("abDt", max_size=4)
values = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), texts, st.lists(st.integers(0, 3)))
counts = st.one_of(st.integers(0, 300), st.integers(0, MAX_COUNT - 1))


@st.composite
def messages(draw: st.DrawFn, kinds: Any) -> dict[str, Any]:
    message = dict(draw(kinds))
    items = [*message.items(), *draw(st.dictionaries(texts, values, max_size=2)).items()]
    return dict(draw(st.permutations(items))) if draw(st.booleans()) else dict(items)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Answers of all kinds, the usual ones often."""
    kinds = st.one_of(st.builds(count_of, counts), st.builds(count_of, values), st.just(TASK), st.just(NEWS))
    said = [draw(st.lists(messages(kinds), max_size=2)) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        said.insert(0, [TASK])
    if draw(st.booleans()):
        said.append([count_of(draw(counts))])
    return packed(*(as_lua(batch) if batch and draw(st.booleans()) else batch for batch in said))


@given(answers(), answers(), st.booleans(), st.data())
def test_what_is_read_the_short_way_is_what_the_long_way_reads(
    first: bytes, second: bytes, needs_task: bool, data: st.DataObject
) -> None:
    usual = learnt(first, needs_task=needs_task)
    known = usual._before_count
    endings = st.one_of(st.sampled_from(GOOD_COUNTS + BAD_COUNTS), st.binary(max_size=12), st.just(second))
    for said in (first, second, known + data.draw(endings), first + data.draw(endings)):
        count = usual.count_in(said)
        if count is not None:
            assert the_long_way(said, needs_task=needs_task) == count


@example(PLAIN[:-1] + b"\xd6\xff\x00\x00\x00\x01")
@given(st.binary(max_size=30).map(lambda end: PLAIN[:-1] + end))
def test_garbage_is_never_more_than_unusual(data: bytes) -> None:
    count = learnt(PLAIN, needs_task=False).count_in(data)
    assert count is None or the_long_way(data, needs_task=False) == count


@given(st.lists(st.sampled_from([[NEWS], [NEWS, NEWS], as_lua([NEWS]), []]), max_size=3), st.booleans(), counts)
def test_what_ends_with_its_count_is_learnt_at_once(news: list[Any], needs_task: bool, count: int) -> None:
    before = packed(*news, *[[TASK]] * needs_task)
    usual = learnt(before + packed([count_of(7)]), needs_task=needs_task)
    assert usual.count_in(before + packed([count_of(count)])) == count
