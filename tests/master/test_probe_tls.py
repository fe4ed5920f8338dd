"""A master that probes by TLS: from its files to whom it names, and what a reload changes of that."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from lambdamu.tcp_server import open_listeners
from lambdamu.testing import FakeBackend
from lambdamu.tls import TlsDoor, TlsPolicy
from master.config_file import ConfigError, load
from master.config_notes import describe
from master.core.pool import State
from master.reload import compare
from server_stub.backend import ServerOptions, serve
from tests.master.test_operations import HEAD, LOCAL, House, house

NAME = "chat.example"
TLS = HEAD + 'tls = true\nca_file = "ca.pem"\n'
NAMED = f'tls_name = "{NAME}"'

linux = pytest.mark.skipif(sys.platform != "linux", reason="the port under TLS is Linux's")


def trust(folder: Path, *authorities: trustme.CA) -> None:
    (folder / "ca.pem").write_bytes(b"".join(each.cert_pem.bytes() for each in authorities))


@asynccontextmanager
async def backend(folder: Path, authority: trustme.CA, name: str = NAME) -> AsyncIterator[FakeBackend]:
    """The stub of a backend under TLS; of it only its address is used."""
    certificate = authority.issue_cert(name)
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    door = TlsDoor(TlsPolicy(str(folder / "server.pem"), str(folder / "server.pem")))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        options = ServerOptions(LOCAL)
        [address] = await nursery.start(serve, options, open_listeners(LOCAL), stop, None, None, door)
        yield Place((address.host, address.port))  # type: ignore[misc]
        stop.set()


class Place:
    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address


async def until_out(home: House, name: str, why: str) -> None:
    """Wait until it does not work, and the log says last that it is for this."""

    def is_out() -> bool:
        told = home.events("backend_down")
        return home.node.pool[name].state(trio.current_time()) is not State.READY and told[-1:] != []

    with trio.fail_after(10):
        while not is_out():  # noqa: ASYNC110
            await trio.sleep(0.01)
    told = home.events("backend_down")[-1]
    assert (told["backend"], told["why"]) == (name, why)


@asynccontextmanager
async def begun(folder: Path, *backends: FakeBackend, head: str = TLS, keys: str = NAMED) -> AsyncIterator[House]:
    async with house(folder / "pool.toml", head=head) as home:
        home.write(*backends, head=head, keys=keys)
        assert not (await home.operations.reload("test")).faults
        yield home


@linux
@pytest.mark.parametrize("mode", ["hold", "reconnect"])
async def test_the_one_with_a_good_certificate_is_named(tmp_path: Path, mode: str) -> None:
    ours, stranger = trustme.CA(), trustme.CA()
    trust(tmp_path, ours)
    async with (
        backend(tmp_path, ours) as good,
        backend(tmp_path, stranger) as bad,
        begun(tmp_path, bad, good, head=TLS + f'mode = "{mode}"\n') as home,
    ):
        await home.until_ready("b1")
        await until_out(home, "b0", "certificate")
        assert {await home.ask() for _ in range(5)} == {good.address[1]}
        assert home.sample("probe_failures_total", backend="b1") == 0


@linux
async def test_whom_to_trust_changes_at_a_reload_and_the_backend_stays(tmp_path: Path) -> None:
    ours, stranger = trustme.CA(), trustme.CA()
    trust(tmp_path, ours)
    async with backend(tmp_path, ours) as good, begun(tmp_path, good) as home:
        await home.until_ready("b0")
        trust(tmp_path, stranger)
        reloaded = await home.operations.reload("test")
        assert reloaded.difference is not None
        assert reloaded.difference.lines() == ["~ [probe]: ca_file: the file is another one"]
        await until_out(home, "b0", "certificate")
        trust(tmp_path, stranger, ours)
        await home.operations.reload("test")
        await home.until_ready("b0")
        home.write(good, head=TLS, keys='tls_name = "other.example"')
        await home.operations.reload("test")
        await until_out(home, "b0", "certificate")
        home.write(good, head=HEAD)
        await home.operations.reload("test")
        with trio.fail_after(10):
            # It speaks TLS, and we do not.
            while home.events("backend_down")[-1]["why"] not in ("closed", "not_the_protocol"):  # noqa: ASYNC110
                await trio.sleep(0.01)
        home.write(good, head=TLS, keys=NAMED)
        await home.operations.reload("test")
        await home.until_ready("b0")


@linux
async def test_a_file_that_is_not_right_changes_nothing(tmp_path: Path) -> None:
    ours = trustme.CA()
    trust(tmp_path, ours)
    async with backend(tmp_path, ours) as good, begun(tmp_path, good) as home:
        await home.until_ready("b0")
        (tmp_path / "ca.pem").write_text("rubbish")
        home.write(good, head=TLS, keys='tls_name = "other.example"')
        reloaded = await home.operations.reload("test")
        path = tmp_path / "ca.pem"
        assert reloaded.faults == (
            f"{tmp_path / 'pool.toml'}: [probe]: ca_file: {path} has no certificate of an authority, or a damaged one",
        )
        await trio.sleep(0.5)
        assert home.node.pool["b0"].state(trio.current_time()) is State.READY
        assert not home.events("backend_down")


def test_without_a_file_the_authorities_of_the_system_count(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text("[probe]\ntls = true\n")
    config = load(tmp_path / "pool.toml")
    assert config.trust is not None
    assert config.trust.pem == ""
    assert any("the authorities of this system" in line for line in describe(config))


def test_the_same_authorities_are_no_difference(tmp_path: Path) -> None:
    trust(tmp_path, trustme.CA())
    (tmp_path / "pool.toml").write_text(TLS)
    first, second = load(tmp_path / "pool.toml"), load(tmp_path / "pool.toml")
    assert not compare(first, second)
    trust(tmp_path, trustme.CA())
    assert compare(first, load(tmp_path / "pool.toml"))


def test_a_file_that_is_not_there_is_named_and_none_is_looked_for_without_tls(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(TLS)
    with pytest.raises(ConfigError, match=r"\[probe\]: ca_file: .*ca.pem cannot be read: No such file"):
        load(tmp_path / "pool.toml")
    (tmp_path / "pool.toml").write_text(HEAD)
    assert load(tmp_path / "pool.toml").trust is None


@pytest.mark.parametrize("name", ["chat.example:9001", "*.example", "a b"])
def test_a_name_that_no_certificate_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "pool.toml").write_text(
        f'[probe]\ntls = true\n[[backend]]\nhost = "a"\nport = 1\ntls_name = "{name}"\n'
    )
    with pytest.raises(ConfigError, match="tls_name"):
        load(tmp_path / "pool.toml")
