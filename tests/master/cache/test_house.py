"""A node with `[cache]`: alone it has no port for clients; what is asked at its port, over real sockets."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio

from lambdamu.datapack import Decoder, encode_alone
from lambdamu.messages import Message
from lambdamu.objects import Peer
from lambdamu.port import PortObserver
from lambdamu.testing import memory_pair
from master.cache.house import CacheHouse
from master.config_file import ConfigError, load, parse
from master.entrances import Entrance, open_sockets
from master.node import Node
from master.observer import CacheObserver
from master.reload import compare
from tests.master.cache.wire import question

ALONE = '[cache]\nlisten = "127.0.0.1:0"\n'
POOL = '[[backend]]\nhost = "127.0.0.1"\nport = 9\n[master]\nlisten = "127.0.0.1:0"\n'


@pytest.mark.parametrize(("more", "entrances"), [("", {"cache"}), (POOL, {"cache", "clients"})])
async def test_a_node_serves_the_cache_alone_or_beside_a_pool(more: str, entrances: set[str]) -> None:
    config = parse(ALONE + more)
    log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    node = Node(config, rng=random.Random(1), log=log)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(node.run, open_sockets(config))
            assert {str(each) for each in addresses} == entrances
            (address,) = addresses[Entrance.CACHE]
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(encode_alone(question("Session.Create", {"Client": "c"})))
                (batch,) = Decoder().feed(bytes(await stream.receive_some()))
                assert len(batch[0].data["Session"]) == 22
                await stream.send_all(encode_alone(Message("Master", "Event", "DoSendServer", None, {"Request": "r"})))
                (batch,) = Decoder().feed(bytes(await stream.receive_some()))
                assert batch[0].data["Code"] == "UnknownObject"
            node.stop()
            await node.finished.wait()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[cache]\nlisten = "0.0.0.0:7100"',
            "secret_file: is missing, and so is client_certificates, and other machines",
        ),
        ("[cache]\nclient_certificates = true", "client_certificates: needs tls = true"),
        ("[cache]\ntls = true", "certificate: is missing, and [cache] tls needs it"),
        ('[cache]\nupstream = ["h"]', "upstream: "),
        ('[cache]\nupstream = ["h:1", "h:1"]', 'upstream: holds "h:1" more than once'),
        ("[cache]\nwarm = 5", "must be an array of tables, each under [[cache.warm]]"),
        ("[[cache.warm]]", "type: is missing"),
        ("[cache]\nwarn = []", "warn: is not known; did you mean warm?"),
        ('[cache]\nfile = "./a"\n[state]\nfile = "a"', "file: is that of [state] too, and each needs its own"),
        (2 * '[[cache.warm]]\ntype = 1\nobject = "o"\nname = "n"\n', "type: 1 is the type of [[cache.warm]] 1 already"),
        ('[[cache.warm]]\ntype=1\nobject="o"\nname="n"\nrefresh_s=200', "refresh_s + refresh_s: must not exceed ttl_s"),
        ('[master]\nlisten = "127.0.0.1:7100"\n[cache]', "listen: is the same place as that of [master]"),
    ],
)
def test_what_cannot_be_is_told_by_name(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert line in str(caught.value)


def test_no_more_is_fetched_than_a_value_has() -> None:
    config = parse('[cache]\nupstream = ["h:1"]\nbatch_bytes = 65536')
    assert config.cache is not None
    upstream = CacheHouse(config.cache, config.limits, random.Random(1)).upstream
    assert upstream is not None
    assert upstream.value_bytes == 65536 - 4096


def test_the_port_knows_a_stranger_where_there_is_a_secret() -> None:
    config = parse("[cache]")
    assert config.cache is not None
    for secret, known in [("", True), ("secret", False)]:
        house = CacheHouse(config.cache, config.limits, random.Random(1), secret)
        port = house.make_port(None, PortObserver())
        assert port.knows(Peer("127.0.0.1", 4)) is known
        assert (b"say the secret first" in port.last_word) is not known


def test_the_secret_comes_from_a_file_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[cache]\nlisten = "0.0.0.0:0"\nsecret_file = "secret"\n')
    with pytest.raises(ConfigError, match="secret_file"):
        load(tmp_path / "f.toml")
    (tmp_path / "secret").write_text("open sesame 123\n")
    with pytest.raises(ConfigError, match=r"secret_file: .*secret: the line must be from 16 to 256 bytes long"):
        load(tmp_path / "f.toml")
    (tmp_path / "secret").write_text("open sesame 1234\n")
    config = load(tmp_path / "f.toml")
    assert config.cache is not None
    assert config.cache.secret_file == str(tmp_path / "secret")
    assert "sesame" not in repr(config)


def test_nothing_of_the_cache_changes_without_a_restart() -> None:
    warm = '[[cache.warm]]\ntype = 1\nobject = "o"\nname = "n"\n'
    old, new = (
        parse(ALONE + warm),
        parse("[cache]\nasks = 5\n" + warm + "ttl_s = 60\n" + warm.replace("= 1", "= 2") + POOL),
    )
    difference = compare(old, new)
    assert difference.config.cache == old.cache
    assert difference.config.alone
    text = "\n".join(difference.lines())
    for line in (
        "! [cache]: asks: 1000 -> 5 (needs a restart)",
        "! [cache]: warm: [1] -> [1, 2] (needs a restart)",
        "! [[cache.warm]] 1: ttl_s: 300 -> 60 (needs a restart)",
        "! [master]: there is one now (needs a restart)",
    ):
        assert line in text


async def test_connections_that_are_turned_away_are_counted_at_the_port_of_the_cache_alone() -> None:
    config = parse(ALONE + "connections = 1\n" + POOL)
    log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    node = Node(config, rng=random.Random(1), log=log)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            (address,) = (await nursery.start(node.run, open_sockets(config)))[Entrance.CACHE]
            async with await trio.open_tcp_stream(address.host, address.port) as first:
                await first.send_all(encode_alone(question("Session.Create", {"Client": "c"})))
                await first.receive_some()
                async with await trio.open_tcp_stream(address.host, address.port) as second:
                    (batch,) = Decoder().feed(bytes(await second.receive_some()))
                    assert batch[0].data["Code"] == "Limit"
            sample = node.metrics.registry.get_sample_value
            assert sample("lambdamu_cache_connections_refused_total") == 1
            assert sample("lambdamu_connections_refused_total", {"why": "limit"}) == 0
            node.stop()
            await node.finished.wait()


async def test_who_would_shake_hands_where_too_many_do_is_counted_too() -> None:
    config = parse(ALONE)
    assert config.cache is not None
    house = CacheHouse(config.cache, config.limits, random.Random(1))
    tls: Any = SimpleNamespace(policy=SimpleNamespace(handshakes=3))
    port = house.make_port(tls, CacheObserver(PortObserver(), house))
    port.entering = 3
    _, theirs = memory_pair()
    await port.serve_stream(theirs, Peer("127.0.0.1", 4))
    assert house.turned_away == 1


def test_types_that_ask_the_same_of_the_upstream_share_its_workers() -> None:
    warm = '[[cache.warm]]\nobject = "o"\nname = "n"\n'
    config = parse(f"[cache]\nupstream = ['127.0.0.1:9']\n{warm}type = 1\nworkers = 3\n{warm}type = 2\nworkers = 4")
    assert config.cache is not None
    house = CacheHouse(config.cache, config.limits, random.Random(1))
    assert house.broker.core.policy.per_kind == {"o.n": 4}


@pytest.mark.parametrize(("peers", "calls"), [(1, 400), (2, 320)])
def test_one_upstream_may_have_all_workers_and_one_of_several_leaves_some_to_the_others(peers: int, calls: int) -> None:
    config = parse(f"[cache]\nworkers = 400\nupstream = {[f'h:{port}' for port in range(1, peers + 1)]}")
    assert config.cache is not None
    upstream = CacheHouse(config.cache, config.limits, random.Random(1)).upstream
    assert upstream is not None
    assert {peer.breaker.policy.full_at for peer in upstream.peers} == {calls}


@pytest.mark.parametrize("lifetime_s", [0.01, 2.0, 10.0, 600.0])
def test_an_upstream_that_is_back_is_noticed_within_the_time_of_an_answer(lifetime_s: float) -> None:
    warm = "[[cache.warm]]\nobject = 'o'\nname = 'n'\n"
    text = f"[cache]\nupstream = ['h:1']\n{warm}type = 1\nlifetime_s = {lifetime_s}\n{warm}type = 2\nlifetime_s = 600"
    config = parse(text)
    assert config.cache is not None
    upstream = CacheHouse(config.cache, config.limits, random.Random(1)).upstream
    assert upstream is not None
    policy = upstream.peers[0].breaker.policy
    assert policy.max_open_s + lifetime_s / 2 < lifetime_s
    assert policy.max_open_s <= 5.0
    assert policy.lease_s > 600
