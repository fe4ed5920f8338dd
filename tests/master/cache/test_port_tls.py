"""The cache's port under TLS: who shows a certificate may ask, who shows none is told what to do."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trustme

from lambdamu.messages import Message
from lambdamu.objects import Peer
from lambdamu.port import PortLimits
from lambdamu.testing import memory_pair
from lambdamu.tls import TlsDoor, TlsPolicy
from master.cache.port import CachePort
from master.cache.service import Guard
from tests.master.cache.wire import BATCH_BYTES, Caller, make_service, question
from tests.papers import write_papers

SECRET = Message("Auth", "Set", "UserMail", "secret")
CREATE = question("Session.Create", {"Client": "c"})


@attrs.frozen
class Papers:
    door: TlsDoor
    authority: trustme.CA
    own: trustme.LeafCert

    def context(self, *, shown: bool) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if shown:
            self.own.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder, authority = tmp_path_factory.mktemp("papers"), trustme.CA()
    own = authority.issue_cert("localhost")
    files = write_papers(folder, authority, own)
    return Papers(TlsDoor(TlsPolicy(**files)), authority, own)


@asynccontextmanager
async def port_of(papers: Papers, guard: Guard) -> AsyncIterator[tuple[CachePort, Callable[..., Any]]]:
    """Serve; give the port, and what connects to it, with a certificate or without one."""
    service = make_service(guard=guard)
    port = CachePort(service, PortLimits(batch_bytes=BATCH_BYTES), 1000, tls=papers.door, knows=guard.lets_in)
    async with trio.open_nursery() as nursery:

        async def connect(*, shown: bool) -> Caller:
            ours, theirs = memory_pair()
            nursery.start_soon(port.serve_stream, theirs, Peer("192.0.2.1", 4))
            stream: Any = trio.SSLStream(
                ours, papers.context(shown=shown), server_hostname="localhost", https_compatible=True
            )
            await stream.do_handshake()
            return Caller(stream)

        yield port, connect
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("secret", "shown", "said", "code", "text"),
    [
        ("", True, [], None, ""),
        ("", False, [], "NotYours", "show a client certificate under TLS"),
        ("", False, [SECRET], "NotYours", "show a client certificate under TLS"),
        ("secret", True, [], None, ""),
        ("secret", False, [SECRET], None, ""),
        (
            "secret",
            False,
            [],
            "NotYours",
            "say the secret first, as Auth.Set UserName and UserMail, or show a client certificate under TLS",
        ),
        ("other", False, [SECRET], "NotYours", "this is not the secret"),
    ],
)
async def test_a_certificate_gives_the_right_to_ask_and_who_has_none_is_told_what_to_do(
    secret: str, shown: bool, said: list[Message], code: str | None, text: str, papers: Papers, autojump_clock: object
) -> None:
    async with port_of(papers, Guard(secret, certificates=True)) as (port, connect):
        caller = await connect(shown=shown)
        assert port.strangers == 1
        await caller.send(*said, CREATE)
        answer = await caller.hear()
        if code is None and said:
            answer = await caller.hear()
        assert answer is not None
        if code is None:
            assert answer.data["Session"]
            assert port.strangers == 0
        else:
            assert answer.data == {"Code": code, "Text": text}
            assert await caller.hear() is None


async def test_who_shakes_no_hands_is_put_out_by_those_who_come_after(papers: Papers, autojump_clock: object) -> None:
    async with port_of(papers, Guard(certificates=True)) as (port, connect):
        port.most_strangers = 3
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                _, theirs = memory_pair()
                nursery.start_soon(port.serve_stream, theirs, Peer("192.0.2.1", 4))
                await trio.testing.wait_all_tasks_blocked()
            caller = await connect(shown=True)
            await caller.send(CREATE)
            assert await caller.hear()
            assert (port.put_out, port.connections) == (1, 3)
            nursery.cancel_scope.cancel()
