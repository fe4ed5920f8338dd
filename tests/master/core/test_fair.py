"""GCRA: never more than the burst and the rate, in a table that does not grow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.fair import FairPolicy, NetworkRates

A, B = b"\x0a\0\0\1", b"\x0a\0\0\2"


def v6(number: int) -> bytes:
    """Return the /64 of that number below 2001:db8::/32."""
    return b"\x20\x01\x0d\xb8" + number.to_bytes(4) + bytes(8)


def make(per_s: float = 1.0, burst: int = 3, most: int = 65536, cells: int = 4096) -> NetworkRates:
    return NetworkRates(FairPolicy(per_s, burst), most, cells)


def test_a_burst_at_once_then_one_each_period() -> None:
    rates = make()
    assert [rates.wait_s(0.0, A) for _ in range(5)] == [0, 0, 0, 1.0, 1.0]
    assert rates.wait_s(0.75, A) == 0.25
    assert [rates.wait_s(1.0, A) for _ in range(2)] == [0, 1.0]
    assert rates.wait_s(1.0, B) == 0
    assert [rates.wait_s(100.0, A) for _ in range(4)] == [0, 0, 0, 1.0]


@pytest.mark.parametrize("values", [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_policy_that_lets_nobody_in_is_none(values: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FairPolicy(*values)


STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=120)
"""Quarters of a second that pass, and whose ask comes then."""


@given(STEPS, st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]), st.integers(1, 6), st.sampled_from([0, 1, 2, 65536]))
def test_it_is_a_bucket_that_leaks_and_a_full_table_is_only_stricter(
    steps: list[tuple[int, int]], per_s: float, burst: int, most: int
) -> None:
    rates, now = make(per_s, burst, most, cells=2), 0.0
    level, at = dict.fromkeys(range(4), 0.0), dict.fromkeys(range(4), 0.0)
    let_in: dict[int, list[float]] = {who: [] for who in range(4)}
    for quarters, who in steps:
        now += quarters / 4
        level[who] = max(0.0, level[who] - (now - at[who]) * per_s)
        at[who] = now
        wait_s = rates.wait_s(now, v6(who << 20))
        if most > 4:
            assert (wait_s == 0) == (level[who] + 1 <= burst)
            assert wait_s == max(0.0, (level[who] + 1 - burst) / per_s)
        if wait_s == 0:
            level[who] += 1
            let_in[who].append(now)
        assert len(rates) <= most
    for moments in let_in.values():
        for i, first in enumerate(moments):
            for j, last in enumerate(moments[i:], 1):
                assert j <= burst + per_s * (last - first)


@given(st.integers(0, 2**32), st.floats(0.01, 100), st.integers(1, 50))
def test_whoever_waits_as_long_as_told_is_let_in(seed: int, per_s: float, burst: int) -> None:
    rng, rates, now = random.Random(seed), make(per_s, burst), 0.0
    for _ in range(200):
        now += rng.expovariate(2 * per_s)
        wait_s = rates.wait_s(now, A)
        if wait_s:
            assert wait_s <= 1 / per_s + 1e-9
            assert rates.wait_s(now + wait_s * 1.001, A) == 0
            now += wait_s * 1.001


def test_a_million_networks_take_no_more_room_and_push_nobody_out() -> None:
    rates = make(per_s=0.001, burst=1, most=4096)
    assert rates.wait_s(0.0, A) == 0
    for number in range(1_000_000):
        rates.wait_s(number * 1e-5, v6(number))
        if not number % 50_000:
            assert rates.wait_s(number * 1e-5, A) > 0
    assert len(rates) == 4096
    assert rates.used == 1.0
    assert rates.wait_s(20.0, A) > 0


def test_a_newcomer_gains_nothing_by_a_full_table_nor_when_there_is_room_again() -> None:
    rates = make(per_s=1.0, burst=3, most=2)
    for number in (1, 2):
        assert [rates.wait_s(0.0, v6(number << 20)) for _ in range(3)] == [0, 0, 0]
    assert [rates.wait_s(0.0, A) for _ in range(4)] == [0, 0, 0, 1.0]
    assert [rates.wait_s(2.5, v6(number << 20)) for number in (1, 2)] == [0, 0]  # still there
    assert [rates.wait_s(2.5, A) for _ in range(3)] == [0, 0, 0.5]
    # At 4.6 the entry of the first has faded; what the newcomer was counted for in the cell, 5.0, goes with it.
    assert [rates.wait_s(4.6, A) for _ in range(3)] == [0, 0, pytest.approx(0.4)]
    assert A in rates._tats


def test_networks_of_one_site_share_where_the_table_is_full_and_others_do_not_notice() -> None:
    rates = make(per_s=0.001, burst=1, most=1, cells=1 << 20)
    assert rates.wait_s(0.0, A) == 0
    site = [rates.wait_s(0.0, v6(number)) for number in range(100)]
    assert site[0] == 0
    assert all(wait_s > 0 for wait_s in site[1:])
    assert rates.wait_s(0.0, v6(1 << 20)) == 0


def test_idle_networks_fade() -> None:
    rates = make(per_s=10.0, burst=5)
    for number in range(1000):
        rates.wait_s(0.0, v6(number))
    assert len(rates) == 1000
    for number in range(1000, 2100):
        rates.wait_s(10.0 + number, v6(number))
    assert len(rates) <= 2
