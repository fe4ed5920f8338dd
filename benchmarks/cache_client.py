"""A client of the cache service; run as a module with what it is to do, as JSON. Prints {figure: value}.

It makes its sessions, says that it is ready, and begins at a line on standard input. Tests call its jobs, too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import attrs

from benchmarks.cache_line import Answer, Hear, Line, Lines, Question, word_of
from benchmarks.tally import Tally, point

_VALUE: Final = bytes(range(100))
_TYPES: Final = (1, 2, 3, 4, 5)
_AT_ONCE: Final = 500
_WARMED_AT_ONCE: Final = 60
"""Clients, with five fetches each."""
_SETTLE_S: Final = 5.0
_LOGIN_S: Final = 1.0
"""From the start of an app to its first screen. People take longer."""
_WARM_S: Final = 0.5
_WELL_BEFORE_S: Final = 0.5
"""What was asked so long before a silence had its answer before it."""

Figures = dict[str, Any]
Begin = Callable[[], object]
"""Is called when all is ready; the job goes on when it returns."""


def main() -> None:
    given = json.loads(sys.argv[1])
    job = _JOBS[given.pop("job")]
    print(json.dumps(job(given.pop("port"), _wait_for_word, **given)), flush=True)


def storm(port: int, begin: Begin, lines: int, window: int, sessions: int, whole: bool, seconds: float) -> Figures:
    """Set and get sessions of 100 bytes, `window` questions unanswered on each line.

    `whole`: the next ones go out when all of a window are answered; else as answers come.
    """
    rng = random.Random(1)
    with Lines(port, lines) as talk:
        ids = _log_in(talk, sessions)
        sets = [Question("Session", "Set", {"Session": each, "Value": _VALUE}) for each in ids]
        gets = [Question("Session", "Get", {"Session": each}) for each in ids]
        tally = Tally()

        def pairs() -> Iterator[Question]:
            while True:
                for i in rng.choices(range(sessions), k=1000):
                    yield sets[i]
                    yield gets[i]

        asks = pairs()

        hear = _into(tally)

        def ask_for(within_s: float) -> None:
            end = time.perf_counter() + within_s
            while (now := time.perf_counter()) < end:
                for line in talk.all:
                    if whole and line.owed:
                        continue
                    for _ in range(window - len(line.owed)):
                        line.ask(next(asks), hear, now)
                talk.turn(end - now)

        ask_for(_WARM_S)
        talk.settle(_SETTLE_S)
        begin()
        tally.begin()
        ask_for(seconds)
        unanswered = talk.settle(_SETTLE_S)
        return tally.figures(tally.seconds, unanswered)


def steady(port: int, begin: Begin, rate: float, fetched: float, sessions: int, seconds: float) -> Figures:
    """Ask `rate` a second by the clock: sessions are read and written, and of warm data the share `fetched` of all
    questions is of such as are not there. An answer counts from when its question was due.
    """
    rng, versions, tally = random.Random(1), count(1), Tally()
    with Lines(port, 10) as talk:
        ids = _log_in(talk, sessions)
        _warm(talk, ids)

        hear = _into(tally)

        def question() -> Question:
            session = rng.choice(ids)
            if rng.random() < fetched:
                return _cold(rng, session, next(versions))
            kind = rng.random()
            if kind < 0.5:
                return Question("Warm", "Get", {"Session": session, "Type": rng.choice(_TYPES)})
            if kind < 0.75:
                return Question("Session", "Get", {"Session": session})
            return Question("Session", "Set", {"Session": session, "Value": _VALUE})

        begin()
        tally.begin()
        _by_the_clock(talk, rate, seconds, lambda at, line: line.ask(question(), hear, at))
        asked_s = tally.seconds
        return tally.figures(asked_s, talk.settle(_SETTLE_S))


def screens(port: int, begin: Begin, people: int) -> Figures:
    """Look at first screens of five types: at once after a login, and after the app was started a second before it."""
    with Lines(port, 1) as talk:
        ids = _log_in(talk, people)
        talk.ask_all([Question("Device", "Bind", {"Session": each, "Device": f"phone {each}"}) for each in ids])
        begin()
        cold = [_screen(talk, each, 1) for each in ids]
        for each in ids:
            talk.all[0].tell(Question("Warm", "AppStart", {"Device": f"phone {each}", "Version": 2}))
        talk.turn(0.0)
        time.sleep(_LOGIN_S + 5 * people / 200)  # what AppStarts fetch is bounded
        warm = [_screen(talk, each, 2) for each in ids]
    return {
        "cold_p50_ms": 1000 * point(cold, 0.5),
        "cold_p99_ms": 1000 * point(cold, 0.99),
        "warm_p50_ms": 1000 * point(warm, 0.5),
        "warm_p99_ms": 1000 * point(warm, 0.99),
        "faster": point(cold, 0.5) / point(warm, 0.5),
    }


@attrs.frozen
class Silence:
    """`rate` asks a second for data that are not there, each answered within `lifetime_s`; all is well for `well_s`,
    the upstream is silent for `silent_s`, and then all is well for a lifetime and `after_s`.
    """

    rate: float
    lifetime_s: float
    well_s: float
    silent_s: float
    after_s: float


def accident(port: int, begin: Begin, upstream: int, **course: float) -> Figures:
    """Ask while the upstream, a process id, is stopped and goes on; `course` as in `Silence`."""

    def fall_silent(silent: bool) -> None:
        os.kill(upstream, signal.SIGSTOP if silent else signal.SIGCONT)

    return ask_through(port, begin, Silence(**course), fall_silent)


def ask_through(port: int, begin: Begin, course: Silence, fall_silent: Callable[[bool], object]) -> Figures:
    """Ask, and have the upstream fall silent and come back meanwhile; return what the askers saw of it."""
    rng, versions = random.Random(1), count(1)
    asked: list[tuple[float, float, str]] = []

    def ask(at: float, line: Line) -> None:
        question = _cold(rng, rng.choice(ids), next(versions))
        line.ask(question, lambda took_s, answer: asked.append((at, took_s, word_of(answer))), at)

    with Lines(port, 10) as talk:
        ids = _log_in(talk, 200)
        begin()
        began = time.perf_counter()
        _by_the_clock(talk, course.rate, course.well_s, ask)
        fall_silent(True)
        stopped = time.perf_counter()
        try:
            _by_the_clock(talk, course.rate, course.silent_s, ask)
        finally:
            fall_silent(False)
        back = time.perf_counter()
        _by_the_clock(talk, course.rate, course.lifetime_s + course.after_s, ask)
        unanswered = talk.settle(course.lifetime_s + _SETTLE_S)
    words = Counter(word for at, _, word in asked if stopped <= at < back)
    late = [at for at, _, word in asked if at >= back and word != "data"]
    return {
        "asks": len(asked) + unanswered,
        "unanswered": unanswered,
        "longest_s": max(took_s for _, took_s, _ in asked),
        "well_not_data": sum(word != "data" for at, _, word in asked if at < stopped - _WELL_BEFORE_S),
        "silent": sum(words.values()),
        **{f"silent_{word.lower()}": words[word] for word in ("data", "Upstream", "Expired", "Full")},
        "silent_other": sum(n for word, n in words.items() if word not in ("data", "Upstream", "Expired", "Full")),
        "recovered_s": max(late, default=back) - back,
        "not_data_after": sum(at >= back + course.lifetime_s for at in late),
        "lasted_s": time.perf_counter() - began,
    }


_JOBS: Final[dict[str, Callable[..., Figures]]] = {
    "storm": storm,
    "steady": steady,
    "screens": screens,
    "accident": accident,
}


def _into(tally: Tally) -> Hear:
    return lambda took_s, answer: tally.add(took_s, wrong=word_of(answer) != "data")


def _wait_for_word() -> None:
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def _by_the_clock(talk: Lines, rate: float, seconds: float, ask: Callable[[float, Line], None]) -> None:
    """Ask each when it is due, on one line after the other."""
    began = time.perf_counter()
    for number in range(round(rate * seconds)):
        due = began + number / rate
        while (left := due - time.perf_counter()) > 0:
            talk.turn(left)
        ask(due, talk.all[number % len(talk.all)])
    talk.turn(0.0)


def _screen(talk: Lines, session: str, version: int) -> float:
    """Ask for all types at once; return how long it took until all were there."""
    began = time.perf_counter()
    answers = talk.ask_all(
        [Question("Warm", "Get", {"Session": session, "Type": kind, "Version": version}) for kind in _TYPES]
    )
    took_s = time.perf_counter() - began
    for answer in answers:
        _check(answer)
    return took_s


def _check(answer: Answer) -> None:
    if word_of(answer) != "data":
        raise ValueError(f"there are no data: {answer}")


def _cold(rng: random.Random, session: str, version: int) -> Question:
    """Ask for what nobody has asked for: a version of data that no other front server has."""
    return Question("Warm", "Get", {"Session": session, "Type": rng.choice(_TYPES), "Version": version})


def _log_in(talk: Lines, sessions: int) -> list[str]:
    """Return so many new sessions, each of a client of its own."""
    ids = []
    for first in range(0, sessions, _AT_ONCE):
        clients = range(first, min(first + _AT_ONCE, sessions))
        answers = talk.ask_all(
            [Question("Session", "Create", {"Client": f"client {each}", "Value": _VALUE}) for each in clients]
        )
        ids += [answer["Data"]["Session"] for answer in answers]
    return ids


def _warm(talk: Lines, ids: list[str]) -> None:
    """Have the data of all of them fetched, as many at once as there are workers for."""
    for first in range(0, len(ids), _WARMED_AT_ONCE):
        some = ids[first : first + _WARMED_AT_ONCE]
        asked = [Question("Warm", "Get", {"Session": each, "Type": kind}) for each in some for kind in _TYPES]
        for answer in talk.ask_all(asked):
            _check(answer)


if __name__ == "__main__":
    main()
