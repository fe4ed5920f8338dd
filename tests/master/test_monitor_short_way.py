"""A monitor that reads usual answers the short way finds, tells and does the same as one that never does."""

from __future__ import annotations

import random
from typing import Any

import attrs
import msgpack
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lambdamu.address import Address
from lambdamu.datapack import DEFAULT_LIMITS
from lambdamu.errors import LinkError
from lambdamu.link import LinkUser
from lambdamu.messages import LinkFault
from lambdamu.poller import TrioPoller
from lambdamu.testing import run_virtual
from master.config import Mode, ProbePolicy
from master.core.backend import Backend
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool, State
from master.monitor import Monitor
from master.probe import Questions
from master.probing import ProbeObserver, Probing
from master.usual_answer import UsualAnswer

QUESTIONS = Questions.of("lambdamu-master", "master@localhost")
TASK = {"Object": "Auth", "Command": "Value", "Name": "TaskObject", "Data": "Task-1"}
NEWS = {"Object": "Chat", "Command": "Value", "Name": "News", "Data": "hello"}
ERROR = {"Object": "System", "Command": "Error", "Name": "UserCount", "Data": {"Code": "Full", "Text": "no"}}

Log = list[tuple[Any, ...]]


def count_of(count: Any) -> dict[str, Any]:
    return {"Object": "System", "Command": "Value", "Name": "UserCount", "Data": count}


@attrs.frozen
class Answer:
    """What a backend says to a question. `pauses_s` come before its pieces, which end at `cuts`."""

    auth: bytes
    count: bytes
    cuts: tuple[int, ...] = ()
    pauses_s: tuple[float, ...] = ()
    swapped: bool = False
    then_closes: bool = False

    def pieces(self, question: bytes) -> list[bytes]:
        both = [self.auth, self.count] if question == QUESTIONS.all else [self.count]
        data = b"".join(reversed(both) if self.swapped else both)
        ends = sorted({min(cut, len(data)) for cut in self.cuts} | {len(data)})
        return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if begin < end]


class Peer:
    """The link and the backend behind it: it follows a script, again from its start when it comes to its end."""

    user: LinkUser

    def __init__(self, nursery: trio.Nursery, answers: list[Answer], opens: list[str], log: Log) -> None:
        self.address: Address | None = None
        self._nursery = nursery
        self._answers = answers
        self._opens = opens
        self._log = log
        self._asked = self._opened = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        await trio.sleep_forever()

    def open(self, now: float, deadline: float) -> bool:
        self._log.append((now, "open", deadline))
        how = self._opens[self._opened % len(self._opens)]
        self._opened += 1
        if how == "refuses":
            raise LinkError(LinkFault.REFUSED, "refused")
        self._scope = trio.CancelScope()
        if how == "at once":
            self.address = Address("127.0.0.1", 9001)
        elif how == "later":
            self._nursery.start_soon(self._connect, self._scope)
        return how == "at once"

    def send(self, data: bytes) -> None:
        self._log.append((trio.current_time(), "send", data))
        answer = self._answers[self._asked % len(self._answers)]
        self._asked += 1
        # No two answers are ever equally fast: of two at one moment chance would choose the first.
        self._nursery.start_soon(self._answer, self._scope, answer, data, 0.00113 + 0.0000171 * self._asked)

    def close(self) -> None:
        self._log.append((trio.current_time(), "close"))
        self.address = None
        self._scope.cancel()

    def why_not_connected(self) -> LinkError:
        return LinkError(LinkFault.CONNECT_TIMEOUT, "not connected in time")

    async def _connect(self, scope: trio.CancelScope) -> None:
        await trio.sleep(0.0137)
        if not scope.cancel_called:
            self.address = Address("127.0.0.1", 9001)
            self.user.connected(trio.current_time())

    async def _answer(self, scope: trio.CancelScope, answer: Answer, question: bytes, delay_s: float) -> None:
        for number, piece in enumerate(answer.pieces(question)):
            await trio.sleep(delay_s)
            if number < len(answer.pauses_s):
                await trio.sleep(answer.pauses_s[number])
            if scope.cancel_called:
                return
            self.user.received(trio.current_time(), piece)
        if answer.then_closes and not scope.cancel_called:
            self.close()
            self.user.broken(trio.current_time(), LinkError(LinkFault.CLOSED, "closed"))


class Seen(ProbeObserver):
    def __init__(self, log: Log) -> None:
        self._log = log

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        self._log.append((trio.current_time(), "probed", failure and (failure.why, str(failure))))

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        self._log.append((trio.current_time(), "became", state, why and (why.why, str(why))))


class Reports(Pool):
    """A pool that writes down what it is told."""

    log: Log

    def record_report(self, now: float, rng: random.Random, *report: Any) -> State:
        state = super().record_report(now, rng, *report)
        self.log.append((now, "report", *report, state))
        return state

    def record_failure(self, now: float, name: str) -> State:
        state = super().record_failure(now, name)
        self.log.append((now, "failure", state))
        return state

    def record_lost(self, now: float, name: str) -> State:
        state = super().record_lost(now, name)
        self.log.append((now, "lost", state))
        return state


class ShortWay(UsualAnswer):
    """Counts how often it is taken, if `open`."""

    def __init__(self, *, needs_task: bool, is_open: bool) -> None:
        super().__init__(needs_task=needs_task, limits=DEFAULT_LIMITS)
        self.is_open = is_open
        self.taken = 0

    def count_in(self, data: bytes) -> int | None:
        count = super().count_in(data) if self.is_open else None
        self.taken += count is not None
        return count


async def watch(answers: list[Answer], opens: list[str], mode: Mode, is_open: bool) -> tuple[Log, int]:
    """Return all that happens in half a minute, and how often the short way was taken."""
    log: Log = []
    policy = ProbePolicy(mode=mode, renew_s=7.0)
    pool = Reports([Backend("a")], HealthPolicy(policy.rise, policy.fall, policy.stale_after_s), LoadPolicy())
    pool.log = log
    async with trio.open_nursery() as nursery:
        poller = TrioPoller()
        await nursery.start(poller.run)
        probing = Probing(
            policy=policy,
            questions=QUESTIONS,
            limits=DEFAULT_LIMITS,
            pool=pool,
            poller=poller,
            rng=random.Random(3),
            observer=Seen(log),
        )
        monitor = Monitor("a", Peer(nursery, answers, opens, log), first_s=0.5, probing=probing)
        ways = {needs_task: ShortWay(needs_task=needs_task, is_open=is_open) for needs_task in (True, False)}
        monitor._usual = dict(ways)
        nursery.start_soon(monitor.run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    return log, sum(way.taken for way in ways.values())


USUAL = Answer(msgpack.packb([TASK]), msgpack.packb([count_of(5)]))
BEGUN_NEWS = msgpack.packb([NEWS]).removesuffix(msgpack.packb("hello"))


def test_the_short_way_is_taken_by_most_answers() -> None:
    log, taken = run_virtual(watch, [USUAL], ["at once"], Mode.HOLD, True)
    reports = [entry for entry in log if entry[1] == "report"]
    assert 29 <= len(reports) <= 31
    assert taken == len(reports) - 2  # it is learnt once for a new connection, and once for an old one


def packed(*batches: Any) -> st.SearchStrategy[bytes]:
    return st.just(b"".join(msgpack.packb(batch) for batch in batches))


good_counts = st.integers(0, 300).map(lambda count: msgpack.packb([count_of(count)]))
auths = st.one_of(
    packed([TASK]),
    packed([TASK]),
    packed([TASK, NEWS]),
    packed({1: TASK}),
    packed([TASK | {"Data": ""}]),
    packed([TASK], [count_of(9)]),
    packed(),
)
counts = st.one_of(
    good_counts,
    good_counts,
    good_counts,
    packed([count_of(5)], [count_of(6)]),
    packed([count_of(5)], [NEWS]),
    packed([NEWS], [count_of(5)]),
    packed([count_of(5), NEWS]),
    packed([count_of(5) | {"Extra": 5}]),
    packed({1: count_of(5)}),
    st.sampled_from([True, 5.0, -1, "5", None, 2**53]).map(lambda bad: msgpack.packb([count_of(bad)])),
    packed([count_of(5)]).map(lambda data: data[:-1] + b"\xcd\x00\x07"),
    packed([count_of(5)]).map(lambda data: data + b"\x07"),
    packed([count_of(5)]).map(lambda data: data + data[:10]),
    packed([ERROR]),
    packed([]),
    packed(),
    st.binary(max_size=8),
)
answers = st.builds(
    Answer,
    auth=auths,
    count=counts,
    cuts=st.one_of(st.just(()), st.lists(st.integers(0, 120), max_size=3).map(tuple)),
    pauses_s=st.lists(st.sampled_from([0.0, 0.0171, 0.4937, 1.1371]), max_size=3).map(tuple),
    swapped=st.booleans(),
    then_closes=st.sampled_from([False, False, False, True]),
)
plain = st.builds(Answer, auth=packed([TASK]), count=good_counts)
opens = st.lists(st.sampled_from(["at once", "at once", "later", "refuses", "hangs"]), min_size=1, max_size=4)


NEWS_LIKE_AN_ANSWER = Answer(USUAL.auth, BEGUN_NEWS + USUAL.count, cuts=(len(BEGUN_NEWS),))
"""A usual answer stands where the rest of the news is due: it is what they say."""


COUNT_BEFORE_AN_ANSWER = Answer(USUAL.auth + USUAL.count, USUAL.count, cuts=(len(USUAL.count),), swapped=True)
"""A count has come already when the rest looks like a usual answer: the first count is the one that counts."""


@example([USUAL, USUAL, USUAL, NEWS_LIKE_AN_ANSWER], ["at once"], Mode.HOLD)
@example([USUAL, attrs.evolve(COUNT_BEFORE_AN_ANSWER, count=msgpack.packb([count_of(7)]))], ["at once"], Mode.RECONNECT)
@settings(deadline=None, max_examples=60)
@given(st.lists(plain | answers, min_size=1, max_size=8), opens, st.sampled_from(Mode))
def test_the_short_way_changes_nothing(script: list[Answer], opens: list[str], mode: Mode) -> None:
    short, _ = run_virtual(watch, script, opens, mode, True)
    long, taken = run_virtual(watch, script, opens, mode, False)
    assert taken == 0
    assert short == long
