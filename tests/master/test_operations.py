"""What an operator does to a master that runs: real sockets, real files, one process.

The file is long because each change of a file while the master runs is one test.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from lambdamu.address import Address
from lambdamu.datapack import Decoder, encode
from lambdamu.keys import Signer
from lambdamu.messages import Message
from lambdamu.passes import Pass, make_pass
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import FakeBackend, Script
from master.cache.rows import Row, Table
from master.config_file import load
from master.core.pool import State, Wish
from master.entrances import Entrance
from master.keeper import Keeper
from master.node import Node
from master.operations import MOST_ORDERS, Operations, OrderError
from master.queue.policy import Mode
from master.store import MemoryStore, Store
from master.tokens import Tokens, TokensFile
from master.waiting.orders import WHOLE, Order
from master.web.controls import ControlError
from master.web.operations_controls import OperationsControls

LOCAL = Address("127.0.0.1", 0)
ASK = encode([Message("Master", "Event", "DoSendServer")])
HEAD = "[probe]\ninterval_s = 0.1\ntimeout_s = 0.1\nstale_after_s = 2.0\n"


class House:
    """A master with its file, and what an operator has."""

    def __init__(self, file: Path, store: Store | None = None) -> None:
        self.file = file
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.node = Node(load(file), rng=random.Random(1), log=log)
        self.keeper = Keeper(store or MemoryStore(), self.node, log)
        self.tokens_file = TokensFile(self.node.config.http.tokens_file)
        self.operations = Operations(self.node, self.keeper, log, str(file), tokens_file=self.tokens_file)
        self.address = LOCAL

    def write(self, *backends: FakeBackend, head: str = HEAD, keys: str = "") -> None:
        write(self.file, *backends, head=head, keys=keys)

    def events(self, name: str) -> list[Any]:
        return [entry for entry in self.capture.entries if entry["event"] == name]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.node.metrics.registry.get_sample_value(f"lambdamu_{name}", labels)

    async def until_ready(self, *names: str) -> None:
        with trio.fail_after(10):
            while not all(self.node.pool[name].state(trio.current_time()) is State.READY for name in names):  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def ask(self, data: Any = None) -> Any:
        """Return the port that is answered, else the Reason or the Result."""
        async with await trio.open_tcp_stream(self.address.host, self.address.port) as stream:
            await stream.send_all(encode([Message("Master", "Event", "DoSendServer", data)]))
            ((answer,),) = Decoder().feed(bytes(await stream.receive_some(65536)))
            said = answer.data["Data"]
            return said.get("Port", said.get("Reason", answer.data["Result"]))


def write(file: Path, *backends: FakeBackend, head: str = HEAD, keys: str = "") -> None:
    tables = [
        f'[[backend]]\nname = "b{i}"\nhost = "127.0.0.1"\nport = {backend.address[1]}\n{keys}\n'
        for i, backend in enumerate(backends)
    ]
    file.write_text(head + "".join(tables))


@asynccontextmanager
async def house(file: Path, *backends: FakeBackend, head: str = HEAD) -> AsyncIterator[House]:
    write(file, *backends, head=head)
    house = House(file)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(house.node.run, {Entrance.CLIENTS: open_listeners(LOCAL)})
        [house.address] = addresses[Entrance.CLIENTS]
        await house.until_ready(*(f"b{i}" for i in range(len(backends))))
        yield house
        house.node.stop()
        await house.node.finished.wait()


@asynccontextmanager
async def fleet(count: int) -> AsyncIterator[list[FakeBackend]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeBackend(Script(users=i))) for i in range(count)]


async def test_fifty_reloads_under_a_storm_of_asks_fail_none_and_restart_no_probe(tmp_path: Path) -> None:
    answers: list[Any] = []
    async with fleet(3) as backends, house(tmp_path / "pool.toml", *backends[:2]) as home:
        tasks = len(trio.lowlevel.current_root_task().child_nurseries)
        members = [home.node.pool[name] for name in ("b0", "b1")]
        monitors = list(home.node.servers)
        over = trio.Event()

        async def storm() -> None:
            while not over.is_set():
                answers.append(await home.ask())

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(storm)
            for i in range(50):
                # The same, one more, the same, other weights: b0 and b1 stay all the time.
                home.write(*backends[: 2 + (i // 2) % 2], keys=f"weight = {1 + i % 4 // 3}.0\n")
                assert not (await home.operations.reload("test")).faults
                await trio.sleep(0.02)
            over.set()
        assert len(answers) > 500
        assert set(answers) <= {backend.address[1] for backend in backends}
        assert [home.node.pool[name] for name in ("b0", "b1")] == members
        assert list(home.node.servers)[:2] == monitors
        assert [backend.stats().opened for backend in backends[:2]] == [1, 1]
        assert len(trio.lowlevel.current_root_task().child_nurseries) == tasks
        assert home.sample("probe_failures_total", backend="b0") == 0
        assert len(home.events("backend_up")) >= 2
        assert not home.events("backend_down")


async def test_one_wrong_character_changes_nothing_and_one_line_says_where(tmp_path: Path) -> None:
    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends[:1]) as home:
        config, member = home.node.config, home.node.pool["b0"]
        assert home.sample("reload_success") == 1
        assert home.sample("reload_timestamp_seconds") is None
        same_port = f'[[backend]]\nname = "b9"\nhost = "127.0.0.1"\nport = {backends[0].address[1]}\n'
        same_name = '[[backend]]\nname = "b1"\nhost = "127.0.0.1"\nport = 1\n'
        for broken in ('weight = "1"\n', "weight = 1.0.0\n", "[[backend]]\nport = 70000\n", same_port, same_name):
            # What comes before is right, and another.
            home.write(*backends, head=HEAD.replace("0.1", "0.2"), keys="capacity = 7\n" + broken)
            reloaded = await home.operations.reload("SIGHUP")
            assert home.node.config is config
            assert config.probe.interval_s == 0.1
            assert [home.node.pool["b0"]] == list(home.node.pool) == [member]
            assert len(home.node.servers) == 1
            (entry,) = home.events("reload_refused")
            assert entry["fault"] == reloaded.faults[0]
            assert str(home.file) in entry["fault"]
            assert "[[backend]]" in entry["fault"] or "line 10" in entry["fault"]
            assert home.sample("reload_success") == 0
            assert (home.sample("reload_timestamp_seconds") or 0) == reloaded.at > 1e9
            home.capture.entries.clear()
        home.file.unlink()
        assert "cannot be read" in (await home.operations.reload("SIGHUP")).faults[0]
        home.write(*backends)
        assert not (await home.operations.reload("SIGHUP")).faults
        assert home.sample("reload_success") == 1
        await home.until_ready("b0", "b1")


@pytest.mark.parametrize("text", ["", HEAD])
async def test_a_file_that_names_nobody_does_not_empty_the_pool(tmp_path: Path, text: str) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends) as home:
        home.file.write_text(text)
        [fault] = (await home.operations.reload("SIGHUP")).faults
        assert fault.startswith(f"{home.file}: [[backend]]")
        assert "names no backend any more" in fault
        await home.until_ready("b0")
        home.write(*backends)
        assert not (await home.operations.reload("SIGHUP")).faults


async def test_a_reload_that_was_refused_and_one_that_was_good_are_events(tmp_path: Path) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends) as home:
        home.file.write_text("[probe]\ninterval_s = true\nfall = 0\n")
        await home.operations.reload("ann")
        home.write(*backends)
        await home.operations.reload("ann")
        refused, good = (event for event in home.node.events.last(99) if event.kind.startswith("reload"))
        assert (refused.kind, refused.text.count("[probe]: interval_s"), refused.text[-13:]) == (
            "reload_refused",
            1,
            " (and 1 more)",
        )
        assert (good.kind, good.text) == ("reloaded", "by ann; differences: 0")


OLD, NEW = "an-old-token-of-ann", "a-new-token-of-ann"


@pytest.mark.parametrize("named", ["tokens", "others"])
async def test_configuration_and_tokens_are_taken_in_together_or_neither(tmp_path: Path, named: str) -> None:
    """`named`: which file of tokens the new configuration names; another one counts after a restart."""
    tokens, others = tmp_path / "tokens", tmp_path / "others"
    tokens.write_text(f"ann: {OLD}: write")
    others.write_text(f"bob: {OLD}: write")
    head = HEAD + '[http]\ntokens_file = "{}"\n'

    def at_work(home: House) -> list[str]:
        return [token for token in (OLD, NEW) if (home.tokens_file.at_work or Tokens([])).find(token)]

    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends[:1], head=head.format("tokens")) as home:
        config = home.node.config
        home.write(*backends, head=head.format(named))
        for broken in {"tokens", named}:
            right = (tmp_path / broken).read_text()
            (tmp_path / broken).write_text(f"ann: {NEW}: write\nbob: {NEW}1: wrote")
            [fault] = (await home.operations.reload("SIGHUP")).faults
            assert f"{tmp_path / broken}: line 2" in fault
            assert NEW not in fault
            assert home.node.config is config
            assert len(home.node.pool) == 1
            assert at_work(home) == [OLD]
            assert home.node.events.last(1)[0].text == f"by SIGHUP, nothing changes: {fault}"
            (tmp_path / broken).write_text(right)
        tokens.write_text(f"ann: {NEW}: write")
        home.write(head=head.format(named) + "nonsense = 1\n")
        assert (await home.operations.reload("SIGHUP")).faults
        assert at_work(home) == [OLD]
        home.write(*backends, head=head.format(named))
        assert not (await home.operations.reload("SIGHUP")).faults
        assert at_work(home) == [NEW]
        await home.until_ready("b1")


async def test_keys_and_revocations_count_from_a_reload_on_and_a_fault_in_any_changes_none(tmp_path: Path) -> None:
    old, new = Signer.generate("old"), Signer.generate("new")
    texts = [make_pass(key, Pass("p1", "ann", ("access",), 2**52)) for key in (old, new)]
    keys, revoked, mail = tmp_path / "keys", tmp_path / "revoked", tmp_path / "mail"
    keys.write_text(old.verifier().line())
    revoked.write_text("")
    mail.write_text("the-first-secret")
    head = HEAD + 'user_mail_file = "mail"\n[access]\nkeys_file = "keys"\nrevoked_file = "revoked"\n'

    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends, head=head) as home:

        async def told() -> list[Any]:
            return [await home.ask({"Pass": text}) for text in texts]

        port = backends[0].address[1]
        assert await told() == [port, "PassForeign"]
        assert await home.ask() == "PassMissing"
        assert backends[0].stats().user_mail == "the-first-secret"
        for broken, good in ((revoked, ""), (mail, "the-first-secret")):
            keys.write_text(new.verifier().line())
            broken.write_text("x" * 300)
            assert len((await home.operations.reload("test")).faults) == 1
            assert await told() == [port, "PassForeign"]
            broken.write_text(good)
        keys.write_text(f"{old.verifier().line()}\n{new.verifier().line()}")
        mail.write_text("the-second-secret")
        assert not (await home.operations.reload("test")).faults
        assert await told() == [port, port]
        with trio.fail_after(5):
            await backends[0].until(lambda stats: stats.user_mail == "the-second-secret")
        revoked.write_text("p1")
        assert not (await home.operations.reload("test")).faults
        assert await told() == ["PassRevoked", "PassRevoked"]
        assert home.sample("asks_total", result="Denied") == 6
        assert home.sample("denied_total", reason="PassRevoked") == 2
        assert home.sample("bound_ratio", bound="passes") is not None
        assert not [secret for secret in ("the-first-", "the-second-") if secret in str(home.capture.entries)]


async def test_one_that_is_removed_leaves_no_series_no_task_and_no_connection(tmp_path: Path) -> None:
    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends) as home:
        assert home.sample("probes_total", backend="b1") is not None
        home.write(backends[0])
        await home.operations.reload("test")
        with trio.fail_after(5):
            await backends[1].until(lambda stats: stats.open_now == 0)
        left = [sample for family in home.node.metrics.registry.collect() for sample in family.samples]
        assert not [sample for sample in left if sample.labels.get("backend") == "b1"]
        assert [monitor.name for monitor in home.node.servers] == ["b0"]
        probes = len(backends[1].stats().asked_at)
        await trio.sleep(0.3)
        assert len(backends[1].stats().asked_at) == probes
        assert {await home.ask() for _ in range(5)} == {backends[0].address[1]}


async def test_one_that_moves_is_probed_and_named_where_it_is_now_and_its_old_count_is_gone(tmp_path: Path) -> None:
    async with fleet(3) as backends, house(tmp_path / "pool.toml", *backends[:2]) as home:
        backends[2].script(users=700)
        home.operations.set_admin("b1", Wish.DRAIN, who="ann", why="it moves")
        home.write(backends[2], backends[1])
        await home.operations.reload("test")
        assert home.node.pool["b0"].report is None
        assert await home.ask() == "NoServer"
        await home.until_ready("b0")
        assert home.node.pool["b0"].users(trio.current_time()) == 700
        assert await home.ask() == backends[2].address[1]
        with trio.fail_after(5):
            await backends[0].until(lambda stats: stats.open_now == 0)
        assert home.node.pool["b1"].admin.why == "it moves"


async def test_other_credentials_and_another_interval_are_used_within_a_cycle(tmp_path: Path) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends) as home:
        head = HEAD.replace("interval_s = 0.1", "interval_s = 0.5") + 'user_mail = "other@host"\nrise = 3\n'
        home.write(*backends, head=head)
        assert not (await home.operations.reload("test")).faults
        assert home.node.pool["b0"].state(trio.current_time()) is State.READY
        assert home.node.pool["b0"].health.policy.rise == 3
        with trio.fail_after(5):
            stats = await backends[0].until(lambda stats: stats.user_mail == "other@host")
        assert stats.opened == 2
        asked = len(backends[0].stats().asked_at)
        await trio.sleep(2.2)
        assert 3 <= len(backends[0].stats().asked_at) - asked <= 6
        assert home.sample("probe_failures_total", backend="b0") == 0


async def test_what_cannot_change_live_is_named_and_the_rest_is_done(tmp_path: Path) -> None:
    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends[:1]) as home:
        for _ in range(2):
            home.write(*backends, head="[limits]\nconnections = 7\n" + HEAD)
            await home.operations.reload("test")
        (first, second) = home.events("needs_restart")
        assert first["message"] == second["message"] == "[limits]: connections: 10000 -> 7"
        await home.until_ready("b1")


async def test_maintenance_closes_the_connection_at_once(tmp_path: Path) -> None:
    head = HEAD.replace("= 0.1", "= 1.5").replace("2.0", "30.0")
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends, head=head) as home:
        home.operations.set_admin("b0", Wish.MAINT, who="ann", why="a new disk")
        with trio.fail_after(1.0):
            await backends[0].until(lambda stats: stats.open_now == 0)


async def test_maintenance_ends_the_probes_and_ready_brings_them_back(tmp_path: Path) -> None:
    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends) as home:
        state = home.operations.set_admin("b1", Wish.MAINT, who="ann", why="a new disk")
        assert state is State.MAINT
        with trio.fail_after(5):
            await backends[1].until(lambda stats: stats.open_now == 0)
        probes = len(backends[1].stats().asked_at)
        await trio.sleep(0.3)
        assert len(backends[1].stats().asked_at) == probes
        assert home.sample("backends_wanted", admin="maint") == 1
        home.operations.set_admin("b1", Wish.READY, who="ann", why="done")
        await home.until_ready("b1")
        assert [entry["admin"] for entry in home.events("admin")] == ["maint", "ready"]


async def test_a_reload_leaves_what_the_operator_wants(tmp_path: Path) -> None:
    async with fleet(3) as backends, house(tmp_path / "pool.toml", *backends[:2]) as home:
        home.operations.set_admin("b0", Wish.DRAIN, who="ann", why="a new release", for_s=60.0)
        home.operations.set_admin("b1", Wish.MAINT, who="ann", why="a new disk")
        home.write(*backends, keys="weight = 2.0\n")
        await home.operations.reload("test")
        await home.until_ready("b2")
        assert {await home.ask() for _ in range(10)} == {backends[2].address[1]}
        now = trio.current_time()
        assert [home.node.pool[name].state(now) for name in ("b0", "b1")] == [State.DRAIN, State.MAINT]


async def test_a_reload_has_one_asked_for_its_load_over_the_connection_that_is_there(tmp_path: Path) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends) as home:
        home.write(*backends, keys="load = true\n")
        reloaded = await home.operations.reload("test")
        assert reloaded.difference is not None
        assert reloaded.difference.lines() == ['~ [[backend]] "b0": load: false -> true']
        with trio.fail_after(5):
            await backends[0].until(lambda stats: b"Load" in stats.last_question)
        await trio.sleep(0.5)
        assert home.node.pool["b0"].state(trio.current_time()) is State.READY
        assert home.sample("probe_failures_total", backend="b0") == 0


async def test_what_is_wanted_of_the_queue_is_done_logged_and_outlives_a_reload(tmp_path: Path) -> None:
    head = HEAD + "[queue]\nper_minute = 60.0\n"
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends, head=head) as home:
        controls, room = OperationsControls(home.node, home.operations), home.node.waiting
        assert room is not None
        told: list[object] = []
        room.on_changed = lambda: told.append(dict(room.orders))
        controls.order_queue(WHOLE, Order("ann", "a fire", 1.0, mode=Mode.HOLD), who="ann", reason="a fire")
        assert (room.policy.mode, room.policy.per_minute) == (Mode.HOLD, 60.0)
        home.write(*backends, head=head.replace("60.0", "90.0"))
        assert not (await home.operations.reload("test")).faults
        assert (room.policy.mode, room.policy.per_minute) == (Mode.HOLD, 90.0)
        controls.order_queue(WHOLE, None, who="bob", reason="it is out")
        assert (room.policy.mode, room.orders) == (Mode.AUTO, {})
        assert len(told) == 2
        wanted = [(each["queue"], each["wanted"], each["who"], each["why"]) for each in home.events("queue_order")]
        assert wanted == [("", "mode hold", "ann", "a fire"), ("", "as configured", "bob", "it is out")]


async def test_who_looks_sessions_up_or_ends_one_stands_in_the_log_and_no_id_does(tmp_path: Path) -> None:
    (tmp_path / "cache.toml").write_text('[cache]\nlisten = "127.0.0.1:0"\n')
    home = House(tmp_path / "cache.toml")
    controls, cache = OperationsControls(home.node, home.operations), home.node.cache
    assert cache is not None
    cache.store.put(0.0, Row(Table.SESSION, ("secret id",), b"", "ann", "secret id", 1, 0, 0.0, 1e9))
    controls.note_look_up("session", "0123", who="ann", values=True)
    assert controls.end_session("secret id", who="bob", reason="stolen")
    assert not controls.end_session("secret id", who="bob", reason="stolen")
    [looked] = home.events("cache_look_up")
    assert (looked["what"], looked["known"], looked["who"], looked["values"]) == ("session", "0123", "ann", True)
    ended = [(each["who"], each["why"], each["ended"]) for each in home.events("session_ended")]
    assert ended == [("bob", "stolen", True), ("bob", "stolen", False)]
    assert "secret id" not in str(home.capture.entries)


async def test_of_a_queue_that_is_not_there_nothing_can_be_wanted(tmp_path: Path) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends) as home:
        controls = OperationsControls(home.node, home.operations)
        with pytest.raises(ControlError, match=r"its configuration has no \[queue\]"):
            controls.order_queue(WHOLE, Order("ann", "x", 1.0, mode=Mode.HOLD), who="ann", reason="x")


async def test_something_can_be_wanted_of_so_many_queues_and_no_more(tmp_path: Path) -> None:
    async with fleet(1) as backends, house(tmp_path / "pool.toml", *backends, head=HEAD + "[queue]\n") as home:
        order = Order("ann", "x", 1.0, per_minute=5.0)
        for number in range(MOST_ORDERS):
            home.operations.order_queue(f"q{number}", order, who="ann", why="x")
        with pytest.raises(OrderError, match="reset some of them first"):
            home.operations.order_queue("more", order, who="ann", why="x")
        assert home.node.waiting is not None
        assert "more" not in home.node.waiting.orders
        home.operations.order_queue("q0", order, who="ann", why="again")
        home.operations.order_queue("q0", None, who="ann", why="x")
        home.operations.order_queue("more", order, who="ann", why="x")
