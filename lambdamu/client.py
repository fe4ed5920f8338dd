"""What an application embeds: ask the masters, connect to the backend they name, log in; fail over where that fails.

async with lambdamu.connect(["192.0.2.1:7000"], user_name="ann", user_mail="ann@example.org") as connection:
    await connection.send(Message("System", Command.GET, "UserCount"))
    batch = await connection.receive(within_s=5.0)
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, Place
from lambdamu.caller import Caller, Login
from lambdamu.client_tls import Tls
from lambdamu.datapack import encode
from lambdamu.errors import LinkError
from lambdamu.identity import FailedPlace, Identity
from lambdamu.messages import Batch, LinkFault, Message
from lambdamu.passes import MOST_CHARACTERS
from lambdamu.peers import ClientObserver, ClientPolicy, Peers
from lambdamu.plan import Ask, GiveUp, Go, Pause, Plan

__all__ = ["Client", "ClientObserver", "ClientPolicy", "Connection", "Peers", "Place", "Tls", "connect"]

_ID_BYTES: Final = 128
"""The most that a master takes of an id, a device, a zone or the name of a queue."""
_RANDOM_BYTES: Final = 16
LEAVE_S: Final = 2.0
"""So long it takes at most to give a place up; where that fails, the master waits for its lease to end."""


@attrs.frozen
class Connection:
    """A connection to a backend on which the user is logged in, as the Task object `task`.

    `name`: what the master calls the backend, where it has said so. `resumed`: its session was still there, and nobody
    had to log in; `gone`: it was not, so the user has logged in anew and has another. `send` and `receive` raise
    LinkError when the backend is gone or the time is up, and RemoteProtocolError when it does not speak the wire; then
    connect anew.
    """

    task: str
    backend: Address
    name: str | None
    _login: Login = attrs.field(repr=False)
    _step_s: float = attrs.field(repr=False)
    _lost: Callable[[LinkError], None] = attrs.field(repr=False)

    @property
    def resumed(self) -> bool:
        return self._login.resumed

    @property
    def gone(self) -> bool:
        return self._login.gone

    async def send(self, *messages: Message, within_s: float | None = None) -> None:
        """Send messages as one batch, within `within_s` seconds; None: the `step_s` of the policy."""
        data = encode(list(messages))
        try:
            await self._login.client.send(data, within_s=self._step_s if within_s is None else within_s)
        except LinkError as exc:
            self._lost(exc)
            raise

    async def receive(self, *, within_s: float) -> Batch:
        """Return the next batch, when it is whole within `within_s` seconds."""
        try:
            return await self._login.client.receive(within_s=within_s)
        except LinkError as exc:
            self._lost(exc)
            raise


class Client:
    """One user of an application. It keeps its id, its place in a queue, and what it has learned of others, from
    connection to connection.

    `masters`: addresses, or texts such as "192.0.2.1:7000". `client_id`: the user's own id, at least 128 random bits;
    None: one is made up. `queue`: where it waits if it has to; None: in the default one. `pass_text`: the Pass, or the
    token, that the masters let it in by. `session`: the id of a session at the backends, of before; "": it wants one;
    None: it wants none, and says nothing of sessions. `peers`: shared by the clients of one process; None: made of
    `policy` and `observer`. Raise ValueError on values that mean nothing.
    """

    def __init__(  # noqa: PLR0913 - all but one by name
        self,
        masters: Sequence[Address | str],
        *,
        user_name: str,
        user_mail: str,
        client_id: str | None = None,
        device: str | None = None,
        zone: str | None = None,
        queue: str | None = None,
        pass_text: str | None = None,
        session: str | None = None,
        peers: Peers | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._masters = [each if isinstance(each, Address) else Address.parse(each) for each in masters]
        if not self._masters:
            raise ValueError("a client needs the address of at least one master")
        for what, text, most in (
            ("user_name", user_name, None),
            ("user_mail", user_mail, None),
            ("client_id", client_id, _ID_BYTES),
            ("device", device, _ID_BYTES),
            ("zone", zone, _ID_BYTES),
            ("queue", queue, _ID_BYTES),
            ("pass_text", pass_text, MOST_CHARACTERS),
            ("session", session or None, _ID_BYTES),
        ):
            _check(what, text, most)
        self._peers = peers or Peers()
        self._identity = Identity(client_id or secrets.token_hex(_RANDOM_BYTES), device, zone, queue, pass_text)
        self._identity.session = session
        self._caller = Caller(user_name, user_mail, self._peers.policy.step_s, self._peers.policy.tls)
        self._rng = rng or random.Random()
        self._turned = trio.Event()

    @property
    def session(self) -> str | None:
        """Its session, to be kept where the application can find it again; "" while it has none and wants one."""
        return self._identity.session

    @property
    def place(self) -> Place | None:
        """Where it stands in a queue, as it was told last; None when it does not wait."""
        return self._identity.place

    @property
    def away(self) -> bool:
        """Whether the application is in the background, where it may sleep: a queue then keeps its place for longer.

        To set it is all there is to do. A client that waits tells the master at once, not more than once a second; it
        is let in when it is back. In the background go on polling as long as the system lets you.
        """
        return self._identity.away

    @away.setter
    def away(self, away: bool) -> None:
        if away != self._identity.away:
            self._identity.away = away
            self._turned.set()
            self._turned = trio.Event()

    async def leave(self) -> bool:
        """Give up the place in a queue, after a wait that ended without a connection; whoever waits is cancelled.

        Return whether a master has heard of it, within 2 s; else the place lasts until its lease ends. It raises
        nothing, and does nothing where no place is held.
        """
        identity, heard = self._identity, False
        if identity.ticket is not None:
            masters = sorted(self._masters, key=lambda master: master != identity.master)
            data = identity.data() | {"Leave": True}
            with trio.move_on_after(LEAVE_S):
                for master in masters:
                    if heard := isinstance(await self._caller.ask(master, data), Answer):
                        break
            identity.forget_place()
        return heard

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """Connect; the connection lasts until the end of the block.

        Raise DeniedError, NoServerError or UnreachableError, all of them ConnectError, within `policy.within_s`. While
        a queue holds the client it waits, `policy.wait_s` at most; to be cancelled then gives the place up, which takes
        2 s at most.
        """
        connection = await self._open()
        try:
            yield connection
        finally:
            await connection._login.client.aclose()

    async def _open(self) -> Connection:
        plan = Plan(trio.current_time(), self._identity, self._masters, self._peers, self._rng)
        try:
            with trio.CancelScope(deadline=plan.deadline) as scope:
                return await self._follow(plan, scope)
        except (trio.Cancelled, KeyboardInterrupt):
            if plan.in_line:
                with trio.CancelScope(shield=True):
                    await self.leave()
            raise
        error = plan.timed_out()
        self._peers.observer.gave_up(error)
        raise error

    async def _follow(self, plan: Plan, scope: trio.CancelScope) -> Connection:
        while True:
            scope.deadline = plan.deadline
            match plan.next(trio.current_time()):
                case Ask() as step:
                    await self._ask(plan, step)
                case Go() as step:
                    connection = await self._go(plan, step)
                    if connection is not None:
                        return connection
                case Pause(for_s):
                    self._peers.observer.paused(for_s)
                    with trio.move_on_after(for_s):
                        await self._turned.wait()
                case GiveUp(error):
                    self._peers.observer.gave_up(error)
                    raise error

    async def _ask(self, plan: Plan, step: Ask) -> None:
        began = trio.current_time()
        try:
            answer = await self._caller.ask(step.master, step.data)
            now = trio.current_time()
            if isinstance(answer, Failure):
                plan.ask_failed(now, step, answer)
                self._peers.observer.ask_failed(step.master, answer.why, now - began)
            else:
                plan.answered(now, step, answer)
                self._peers.observer.answered(step.master, answer.result, now - began)
                if answer.place is not None:
                    self._peers.observer.waits(answer.place)
        finally:
            step.permit.ignored(trio.current_time())

    async def _go(self, plan: Plan, step: Go) -> Connection | None:
        began = trio.current_time()
        try:
            login = await self._caller.log_in(step.backend, step.turn, self._identity.session)
            now = trio.current_time()
            if isinstance(login, Failure):
                plan.login_failed(now, step, login)
                self._peers.observer.login_failed(step.backend, login.why, now - began)
                return None
            plan.logged_in(now, step)
            if login.session is not None or login.gone:
                self._identity.session = login.session or ""
            self._peers.observer.connected(step.backend, now - began)
            lost = partial(self._lose, step.backend)
            return Connection(login.task, step.backend, step.name, login, self._peers.policy.step_s, lost)
        finally:
            step.permit.ignored(trio.current_time())

    def _lose(self, backend: Address, why: LinkError) -> None:
        """Tell the next master that is asked of a backend that has ended a connection; one that is slow may do well."""
        if why.why == LinkFault.CLOSED:
            self._identity.failed.append(FailedPlace(backend.host, backend.port, why.why, trio.current_time()))


def connect(
    masters: Sequence[Address | str],
    *,
    user_name: str,
    user_mail: str,
    client_id: str | None = None,
    pass_text: str | None = None,
    policy: ClientPolicy | None = None,
    observer: ClientObserver | None = None,
) -> AbstractAsyncContextManager[Connection]:
    """Connect once, as a Client that is made for it; whoever connects again and again keeps a Client."""
    client = Client(
        masters,
        user_name=user_name,
        user_mail=user_mail,
        client_id=client_id,
        pass_text=pass_text,
        peers=Peers(policy, observer),
    )
    return client.connect()


def _check(what: str, text: str | None, most_bytes: int | None) -> None:
    if text is None:
        return
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"'{what}' is not valid UTF-8") from None
    if not size:
        raise ValueError(f"'{what}' must not be empty")
    if most_bytes is not None and size > most_bytes:
        raise ValueError(f"'{what}' must be at most {most_bytes} bytes long")
