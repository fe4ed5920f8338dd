"""What a configuration says of itself: warnings, and what the pool is."""

from __future__ import annotations

import pytest

from lambdamu.address import Address
from master.config import AlertsPolicy, BackendConfig, ChoiceConfig, Config, HttpPolicy, MasterPolicy, Mode, ProbePolicy
from master.config_notes import describe, warn
from master.core.choice import Panic
from master.webhook_url import WebhookURL

HONEST = BackendConfig("b", "10.0.0.1", 9001)
OPEN = MasterPolicy(listen=Address("::", 7000))
LOCAL = '"localhost:1", "[fe80::1%lo]:1", "127.0.0.9:1"'


def at(host: str, port: int = 1, *advertise: Address) -> BackendConfig:
    return BackendConfig(str(Address(host, port)), host, port, advertise)


@pytest.mark.parametrize(
    ("config", "beginnings"),
    [
        (Config(backends=(HONEST,)), []),
        (Config(), ["there is no [[backend]]: every client will be told NoServer"]),
        (
            Config(backends=(BackendConfig("a", "a", 1, weight=0), BackendConfig("b", "b", 1, capacity=0))),
            ["every [[backend]] has weight 0 or capacity 0: every client will be told NoServer"],
        ),
        (
            Config(MasterPolicy(reservation_s=2.5), backends=(HONEST,)),
            ["[master] reservation_s (2.5) is less than connect_s + [probe] interval_s (3): assignments are forgotten"],
        ),
        (Config(MasterPolicy(reservation_s=3), backends=(HONEST,)), []),
        (
            Config(probe=ProbePolicy(fall=4), backends=(HONEST,)),
            ["[probe] fall x interval_s (4) is more than stale_after_s (3): a backend is out for its age"],
        ),
        (Config(probe=ProbePolicy(interval_s=0.1, fall=3, stale_after_s=0.3), backends=(HONEST,)), []),
        (
            Config(choice=ChoiceConfig(session_s=0.5), backends=(HONEST,)),
            ["[choice] session_s (0.5) is less than [probe] interval_s (1): most of what a report tells is over"],
        ),
        (Config(choice=ChoiceConfig(session_s=1), backends=(HONEST,)), []),
        (Config(backends=(at("localhost"),)), []),
        (
            Config(OPEN, backends=(at("localhost"), at("fe80::1%lo"), at("127.0.0.9"), at("::1", 2))),
            ["clients on other machines cannot reach what they are told of " + LOCAL + " and 1 more: set advertise"],
        ),
        (Config(OPEN, backends=(at("::1", 1, Address("10.0.0.1", 1)), at("chat.example"))), []),
        (
            Config(backends=(at("10.0.0.1", 1, Address("10.0.0.9", 1)), at("10.0.0.9"))),
            ['clients are told one and the same address for "10.0.0.1:1", "10.0.0.9:1"'],
        ),
    ],
)
def test_what_looks_like_a_mistake_is_a_warning(config: Config, beginnings: list[str]) -> None:
    lines = list(warn(config))
    assert [line[: len(start)] for line, start in zip(lines, beginnings, strict=True)] == beginnings


@pytest.mark.parametrize(
    ("http", "said"),
    [
        (HttpPolicy(), []),
        (HttpPolicy(Address("127.0.0.1", 7080)), ["operators: http://127.0.0.1:7080, whoever is on this machine"]),
        (HttpPolicy(Address("::", 7080), "tokens"), ["operators: http://[::]:7080, by token"]),
    ],
)
def test_who_may_watch_is_described(http: HttpPolicy, said: list[str]) -> None:
    assert [line for line in describe(Config(http=http)) if line.startswith("operators")] == said


def test_where_alerts_go_is_described_without_what_may_be_a_secret() -> None:
    config = Config(alerts=AlertsPolicy(WebhookURL.parse("https://hooks.example/hush")))
    (said,) = [line for line in describe(config) if line.startswith("alerts")]
    assert said == "alerts: https://hooks.example/..., at most one post in 10 s"


def test_a_pool_is_described() -> None:
    backends = (
        BackendConfig("a", "a", 1, weight=2.5, capacity=500, zone="a"),
        BackendConfig("b", "b", 1, zone="a"),
        BackendConfig("c", "c", 1, capacity=0),
    )
    assert describe(Config(backends=backends)) == [
        "listens on 127.0.0.1:7000",
        "3 backends, 2 of which may be sent clients",
        "weight in all: 3.5",
        "capacity in all: 500 users, and no limit for 1 backend",
        'zones: none (1), "a" (2)',
        "choice: least_load, mean session time learned, 1 master",
        "a backend is given at most 3 times its share of the clients, a tenth of that at first, rising for 60 s",
        "probe: mode hold, every 1 s, timeout 1 s",
        "up after 1 good probe, down after 2 failed probes in a row",
        "a death is noticed at once when the connection closes, after at most 3 s when the backend falls silent",
    ]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (Config(), "no backends"),
        (Config(backends=(HONEST,)), "capacity in all: no limit"),
        (Config(backends=(BackendConfig("a", "a", 1, capacity=1),)), "capacity in all: 1 user"),
        (Config(backends=(BackendConfig("a", "a", 1, weight=0),)), "capacity in all: 0 users"),
        (
            Config(choice=ChoiceConfig(session_s=90, masters=3)),
            "choice: least_load, mean session time 90 s, 3 masters",
        ),
        (
            Config(choice=ChoiceConfig(panic_threshold=0.5)),
            "when fewer than 50 % work, clients are told NoServer",
        ),
        (
            Config(choice=ChoiceConfig(panic=Panic.LAST_KNOWN)),
            "when none works, the last good reports are taken for true",
        ),
        (
            Config(backends=(HONEST, BackendConfig("c", "c", 1, priority=1))),
            "priorities: 0 (1), 1 (1)",
        ),
        (Config(probe=ProbePolicy(mode=Mode.RECONNECT, stale_after_s=2.5)), "a death is noticed after at most 2.5 s"),
    ],
)
def test_a_description_says(config: Config, line: str) -> None:
    assert line in describe(config)
