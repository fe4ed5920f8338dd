"""Whom to believe of those who say that a backend failed them, and whom not to send anybody to because of it.

The file is long because each rule that stands in the way of an ejection has its tests here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from master.core.ejection import EjectionPolicy, Ejections, Sendings, Verdict, network_of

RNG = random.Random(0)
HOSTS = ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8:1::1", "2001:db8:2::1"]


def anyone(_out: frozenset[str]) -> bool:
    return True


def make(**policy: Any) -> Ejections:
    return Ejections(EjectionPolicy(**{"max_ejected_share": 1.0, "together_share": 1.0, **policy}))


def accuse(
    ejections: Ejections,
    name: str,
    *,
    now: float = 0.0,
    hosts: list[str] = HOSTS[:3],
    backends: int = 10,
    carries: Callable[[frozenset[str]], bool] = anyone,
) -> list[Verdict]:
    """Send a client from each host to `name`, and have each say that it failed there."""
    verdicts = []
    for i, host in enumerate(hosts):
        client = f"{name}-{now}-{i}"
        ejections.sent(now, RNG, name, client)
        verdicts.append(ejections.report(now, RNG, client, host, name, backends, carries))
    return verdicts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.255", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("::ffff:192.0.2.1", "192.0.2.9", True),
        ("2001:db8:1::1", "2001:db8:1:ffff::2", True),
        ("2001:db8:1::1", "2001:db8:2::1", False),
        ("::192.0.2.1", "192.0.2.1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_a_network_is_a_voter(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


def test_clients_of_three_networks_eject() -> None:
    ejections = make()
    assert accuse(ejections, "a") == [Verdict.COUNTED, Verdict.COUNTED, Verdict.EJECTED]
    assert ejections.out(0.0) == {"a"}
    assert ejections.barred_s(0.0, "a") > 0
    assert ejections.barred_s(0.0, "b") == 0
    assert accuse(ejections, "a", hosts=HOSTS) == [Verdict.ALREADY_OUT] * 5


def test_one_network_has_one_vote_however_many_clients_it_has() -> None:
    ejections = make()
    hosts = [f"192.0.2.{i}" for i in range(250)] + [f"::ffff:192.0.2.{i}" for i in range(9)] + ["198.51.100.1"]
    assert set(accuse(ejections, "a", hosts=hosts)) == {Verdict.COUNTED}
    assert ejections.idle


def test_votes_that_are_old_do_not_count() -> None:
    ejections = make(window_s=30.0)
    accuse(ejections, "a", now=0.0, hosts=HOSTS[:1])
    accuse(ejections, "a", now=15.0, hosts=HOSTS[1:2])
    assert accuse(ejections, "a", now=30.0, hosts=HOSTS[2:3]) == [Verdict.COUNTED]
    assert accuse(ejections, "a", now=44.9, hosts=HOSTS[3:4]) == [Verdict.EJECTED]


def test_votes_from_before_an_ejection_are_spent() -> None:
    ejections = make(open_s=1.0, reservation_s=1.0)
    accuse(ejections, "a")
    ejections.sent(1.0, RNG, "a", "trial")
    assert ejections.barred_s(2.0, "a") == 0
    assert accuse(ejections, "a", now=2.0, hosts=HOSTS[3:4]) == [Verdict.COUNTED]


def test_no_more_votes_are_kept_than_it_takes() -> None:
    ejections = make(networks=3)
    accuse(ejections, "a", hosts=[f"10.{i}.0.1" for i in range(250)], carries=lambda out: False)
    assert len(ejections._votes["a"]) == 3


@pytest.mark.parametrize("stranger", [None, "unknown", "elsewhere", "late"])
def test_only_a_client_that_was_sent_there_is_heard(stranger: str | None) -> None:
    ejections = make(networks=1, reservation_s=15.0)
    ejections.sent(0.0, RNG, "a", "late")
    ejections.sent(1.0, RNG, "b", "elsewhere")
    assert ejections.report(15.0, RNG, stranger, HOSTS[0], "a", 10, anyone) is Verdict.NOT_SENT
    assert ejections.idle


def test_a_client_is_heard_once_for_each_sending() -> None:
    ejections = make()
    ejections.sent(0.0, RNG, "a", "ann")
    reports = [ejections.report(0.0, RNG, "ann", host, "a", 10, anyone) for host in HOSTS]
    assert reports == [Verdict.COUNTED] + [Verdict.NOT_SENT] * 4


def test_a_client_is_heard_on_its_alternates_too() -> None:
    ejections = make(networks=1)
    ejections.sent(0.0, RNG, "a", "ann", ["b", "c"])
    assert ejections.report(1.0, RNG, "ann", HOSTS[0], "c", 10, anyone) is Verdict.EJECTED
    assert ejections.sent_to(1.0, "ann") == "a"
    assert ejections.report(1.0, RNG, "ann", HOSTS[0], "a", 10, anyone) is Verdict.EJECTED
    assert ejections.sent_to(1.0, "ann") is None


def test_a_client_is_sent_to_the_same_backend_for_a_while() -> None:
    ejections = make(reservation_s=15.0)
    ejections.sent(0.0, RNG, "a", "ann")
    assert [ejections.sent_to(now, "ann") for now in (0.0, 14.9, 15.0)] == ["a", "a", None]
    assert ejections.sent_to(0.0, "bob") is None


def test_a_client_without_an_id_leaves_no_trace() -> None:
    ejections = make()
    for _ in range(100):
        ejections.sent(0.0, RNG, "a", None)
    assert len(ejections._sendings) == 0


def test_what_is_known_of_clients_is_bounded_and_expires() -> None:
    sendings = Sendings(15.0, 100)
    for i in range(1000):
        sendings.note(i / 1000, f"client-{i}", "a", ())
        assert len(sendings) <= 100
    assert (sendings.of(1.0, "client-899"), sendings.of(1.0, "client-900")) == (None, "a")
    sendings.of(15.95, "nobody")
    assert len(sendings) == 49
    sendings.note(16.0, "client-999", "b", ())
    sendings.of(30.9, "nobody")
    assert (len(sendings), sendings.of(30.9, "client-999")) == (1, "b")


def test_a_client_that_is_sent_again_is_the_newest() -> None:
    sendings = Sendings(15.0, 100)
    sendings.note(0.0, "ann", "a", ())
    sendings.note(1.0, "bob", "a", ())
    sendings.note(10.0, "ann", "b", ())
    assert (sendings.of(16.5, "bob"), sendings.of(16.5, "ann")) == (None, "b")


@pytest.mark.parametrize("backends", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.29, 0.5, 0.67, 1.0])
def test_at_most_the_share_is_ejected_and_never_the_last_one(backends: int, share: float) -> None:
    ejections = make(max_ejected_share=share)
    for i in range(backends):
        accuse(ejections, f"b{i}", backends=backends)
    most = min(round(share * 100) * backends // 100, backends - 1)
    assert len(ejections.out(0.0)) == most
    assert accuse(ejections, f"b{backends - 1}", backends=backends)[-1] in (Verdict.LIMIT, Verdict.ALREADY_OUT)


def test_a_backend_that_the_others_could_not_spare_stays() -> None:
    ejections = make()
    asked = []

    def carries(out: frozenset[str]) -> bool:
        asked.append(out)
        return len(out) < 2

    assert accuse(ejections, "a", carries=carries)[-1] is Verdict.EJECTED
    assert accuse(ejections, "b", carries=carries)[-1] is Verdict.NEEDED
    assert asked == [{"a"}, {"a", "b"}]
    assert ejections.out(0.0) == {"a"}


def test_when_most_fail_together_nobody_is_out_for_a_while() -> None:
    ejections = make(together_share=0.5, open_s=300.0, window_s=30.0)
    verdicts = [accuse(ejections, name, backends=4)[-1] for name in "abcd"]
    assert verdicts == [Verdict.EJECTED, Verdict.EJECTED, Verdict.TOGETHER, Verdict.TOGETHER]
    assert ejections.out(1.0) == frozenset()
    assert all(ejections.barred_s(1.0, name) == 0 for name in "abcd")
    assert ejections.out(30.0) == {"a", "b"}
    assert ejections.barred_s(30.0, "a") > 0


def test_one_goes_on_trial_when_the_time_is_over() -> None:
    ejections = make(open_s=30.0, reservation_s=15.0)
    accuse(ejections, "a")
    now = ejections.barred_s(0.0, "a")
    assert 24.0 <= now <= 30.0
    assert ejections.barred_s(now, "a") == 0
    ejections.sent(now, RNG, "a", "ann")
    assert ejections.barred_s(now, "a") == pytest.approx(15.0)
    assert ejections.barred_s(now + 14.0, "a") == pytest.approx(1.0)
    assert ejections.out(now + 14.0) == {"a"}
    assert ejections.barred_s(now + 15.0, "a") == 0
    assert ejections.idle
    assert ejections.out(now + 15.0) == frozenset()


def test_a_trial_that_fails_puts_it_out_for_twice_as_long() -> None:
    ejections = make(open_s=30.0)
    accuse(ejections, "a")
    ejections.sent(30.0, RNG, "a", "ann")
    assert ejections.report(31.0, RNG, "ann", HOSTS[0], "a", 10, anyone) is Verdict.TRIAL_FAILED
    assert 48.0 <= ejections.barred_s(31.0, "a") <= 60.0


def test_those_who_were_sent_before_the_ejection_end_no_trial() -> None:
    ejections = make(open_s=10.0, reservation_s=60.0)
    ejections.sent(0.0, RNG, "a", "early")
    accuse(ejections, "a", now=1.0)
    ejections.sent(11.0, RNG, "a", "trial")
    assert ejections.report(12.0, RNG, "early", HOSTS[4], "a", 10, anyone) is Verdict.ALREADY_OUT
    assert ejections.barred_s(12.0, "a") == pytest.approx(59.0)


def test_a_client_without_an_id_may_be_the_trial() -> None:
    ejections = make(open_s=30.0, reservation_s=15.0)
    accuse(ejections, "a")
    ejections.sent(30.0, RNG, "a", None)
    assert ejections.barred_s(31.0, "a") > 0
    assert ejections.barred_s(1000.0, "a") == 0
    assert ejections.idle


def test_a_backend_that_left_the_pool_is_forgotten() -> None:
    ejections = make()
    accuse(ejections, "a")
    accuse(ejections, "b", hosts=HOSTS[:2])
    ejections.keep(["c"])
    assert ejections.idle
    assert accuse(ejections, "b", hosts=HOSTS[2:3]) == [Verdict.COUNTED]


@pytest.mark.parametrize("wrong", [{"networks": 0}, {"max_ejected_share": 1.1}, {"window_s": 0.0}, {"open_s": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'"):
        EjectionPolicy(**wrong)


class Voting(RuleBasedStateMachine):
    """Clients of a few networks are sent, complain and lie, in any order; a book beside it knows whom to believe."""

    @initialize(backends=st.integers(1, 5), share=st.sampled_from([0.1, 0.3, 0.5, 0.67, 1.0]), seed=st.integers(0, 99))
    def begin(self, backends: int, share: float, seed: int) -> None:
        self.policy = EjectionPolicy(
            max_ejected_share=share, reservation_s=5.0, window_s=8.0, open_s=4.0, max_open_s=16.0
        )
        self.ejections = Ejections(self.policy, records=6)
        self.names = [f"b{i}" for i in range(backends)]
        self.rng = random.Random(seed)
        self.now = 50.0
        self.sent: dict[str, tuple[str, float]] = {}
        self.voted: list[tuple[str, tuple[int, int], float]] = []
        self.out_until: dict[str, float] = {}
        """When each that is out may come back at the earliest."""
        self.nobody_until = 0.0

    @rule(dt=st.sampled_from([0.0, 0.1, 1.0, 3.0, 9.0]))
    def time_passes(self, dt: float) -> None:
        self.now += dt

    @rule(client=st.sampled_from("uvwxyz"), data=st.data())
    def one_is_sent(self, client: str, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names))
        if self.ejections.barred_s(self.now, name) == 0:
            self.send(client, name)

    def send(self, client: str, name: str) -> None:
        on_trial = name in self.ejections.out(self.now)
        self.ejections.sent(self.now, self.rng, name, client)
        self.sent[client] = (name, self.now)
        assert (self.ejections.barred_s(self.now, name) > 0) is on_trial

    @rule(data=st.data(), spare=st.booleans())
    def many_fail(self, data: st.DataObject, spare: bool) -> None:
        """Three clients of three networks are sent to one backend, as far as anybody may be, and fail there."""
        name = data.draw(st.sampled_from(self.names))
        for client, host in zip("uvw", HOSTS, strict=False):
            if self.ejections.barred_s(self.now, name) == 0:
                self.send(client, name)
                self.complain(client, host, name, spare)

    @rule(client=st.sampled_from("uvwxyz"), host=st.sampled_from(HOSTS), data=st.data(), spare=st.booleans())
    def one_complains(self, client: str, host: str, data: st.DataObject, spare: bool) -> None:
        self.complain(client, host, data.draw(st.sampled_from(self.names)), spare)

    def complain(self, client: str, host: str, name: str, spare: bool) -> None:
        was_there, at = self.sent.get(client, ("", 0.0))
        honest = was_there == name and self.now < at + self.policy.reservation_s
        count = len(self.names)
        verdict = self.ejections.report(self.now, self.rng, client, host, name, count, lambda out: spare)
        assert honest or verdict is Verdict.NOT_SENT
        if verdict is Verdict.NOT_SENT:
            return
        del self.sent[client]
        if verdict not in (Verdict.ALREADY_OUT, Verdict.TRIAL_FAILED):
            self.voted.append((name, network_of(host), self.now))
        if verdict is Verdict.EJECTED:
            assert spare
            self.out_until[name] = self.now + 0.8 * self.policy.open_s
            since = self.now - self.policy.window_s
            assert len({network for voted, network, at in self.voted if voted == name and at > since}) >= 3

        if verdict is Verdict.TRIAL_FAILED:
            self.out_until[name] = self.now + 0.8 * 2 * self.policy.open_s
        if verdict is Verdict.TOGETHER:
            self.nobody_until = self.now + self.policy.window_s

    def teardown(self) -> None:
        """Nobody is out for ever: with its time over it is tried, and with no complaint it is back."""
        if not hasattr(self, "names"):
            return
        self.now = max(self.now, self.nobody_until)
        for name in self.names:
            while (wait_s := self.ejections.barred_s(self.now, name)) > 0:
                self.now += wait_s
            self.ejections.sent(self.now, self.rng, name, None)
            self.now += self.policy.reservation_s + 0.001
            assert name not in self.ejections.out(self.now)

    @invariant()
    def who_is_out_stays_out_for_its_time(self) -> None:
        for name, until in self.out_until.items():
            waits = self.nobody_until <= self.now < until
            assert not waits or self.ejections.barred_s(self.now, name) > 0

    @invariant()
    def enough_stay(self) -> None:
        out = self.ejections.out(self.now)
        assert len(out) <= int(len(self.names) * self.policy.max_ejected_share + 1e-9)
        assert len(out) < len(self.names)

    @invariant()
    def nobody_is_barred_for_longer_than_the_longest_time(self) -> None:
        for name in self.names:
            assert 0 <= self.ejections.barred_s(self.now, name) <= self.policy.max_open_s
            assert name in self.ejections.out(self.now) or self.ejections.barred_s(self.now, name) == 0


TestVoting = Voting.TestCase
TestVoting.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(hosts=st.lists(st.ip_addresses(), max_size=30))
def test_fewer_than_three_networks_never_eject(hosts: list[Any]) -> None:
    ejections = make()
    verdicts = accuse(ejections, "a", hosts=[str(host) for host in hosts])
    assert (Verdict.EJECTED in verdicts) == (len({network_of(str(host)) for host in hosts}) >= 3)
