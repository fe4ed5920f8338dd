"""Each backend is asked for its users once an interval, whatever else is switched on and whatever happens."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
import structlog
import trio

from lambdamu.tcp_server import open_listeners
from lambdamu.testing import FakeBackend, Script
from master.config import Mode
from master.config_file import load
from master.core.admin import Admin, Wish
from master.entrances import Entrance
from master.store import open_store
from master.web.operations_controls import OperationsControls
from master.web.run import Web
from master.web.server import open_http_listeners
from tests.master.test_monitor import autojump_clock, watched
from tests.master.test_monitor_orders import adopt, want
from tests.master.test_operations import LOCAL, House, write

__all__ = ["autojump_clock"]

SWITCHES = {
    "load": ("false", "true"),
    "mode": ("hold", "reconnect"),
    "zone": ("", "x"),
    "http": ("", '[http]\nlisten = "127.0.0.1:0"\n'),
    "state": ("", '[state]\nfile = "{folder}/state.sqlite"\n'),
    "breaker": ("", "[breaker]\nmax_ejected_share = 0\n"),
    "slow start": ("slow_start_s = 0\n", "slow_start_s = 60\n"),
    "panic": ('panic = "refuse"\n', 'panic = "last_known"\npanic_threshold = 0.5\n'),
    "file": ("", "reload_on_change = true\n"),
}


def pairwise(switches: dict[str, tuple[str, str]]) -> list[dict[str, str]]:
    """Return settings of which any two switches have each of their four pairs in some."""
    # The columns of a table of counts in binary differ in each pair, and so do they and their opposites.
    bits = range(len(switches).bit_length())
    tables = [[(i >> bit & 1) ^ flip for i in range(1, len(switches) + 1)] for bit in bits for flip in (0, 1)]
    tables += [[side] * len(switches) for side in (0, 1)]
    return [{name: both[side] for (name, both), side in zip(switches.items(), table, strict=True)} for table in tables]


def test_any_two_switches_meet_in_each_position() -> None:
    for one, other in itertools.combinations(SWITCHES, 2):
        assert len({(row[one], row[other]) for row in pairwise(SWITCHES)}) == 4


async def probed(row: dict[str, str], file: Path, interval_s: float) -> None:
    """Run a master as `row` says, and see that it takes in what its backend says anew, at its period."""
    probe = f"interval_s = {interval_s}\ntimeout_s = {interval_s}\nstale_after_s = 5.0\n"
    head = f'[master]\n{row["file"]}[probe]\nmode = "{row["mode"]}"\n{probe}[choice]\n{row["slow start"]}{row["panic"]}'
    head += row["http"] + row["state"].format(folder=file.with_suffix("")) + row["breaker"]
    async with FakeBackend(Script(users=1)) as backend, trio.open_nursery() as nursery:
        write(file, backend, head=head, keys=f'load = {row["load"]}\nzone = "{row["zone"]}"\n')
        config = load(file)
        home = House(file, open_store(config.state.file))
        await nursery.start(home.node.run, {Entrance.CLIENTS: open_listeners(LOCAL)})
        nursery.start_soon(home.keeper.run)
        nursery.start_soon(home.operations.watch)
        if config.http.listen is not None:
            controls = OperationsControls(home.node, home.operations)
            web = Web(home.node, config.http, structlog.get_logger(), controls)
            await nursery.start(web.run, open_http_listeners(config.http.listen))
        with trio.fail_after(20):
            for users in (5, 9):
                backend.script(users=users)
                while (report := home.node.pool["b0"].report) is None or report.count != users:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            seen = len(backend.stats().asked_at)
            stats = await backend.until(lambda stats: len(stats.asked_at) > seen + 8)
        gaps = [b - a for a, b in itertools.pairwise(stats.asked_at[seen:])]
        assert 0.5 < statistics.median(gaps) / interval_s < 1.5, row
        nursery.cancel_scope.cancel()


async def test_whatever_is_switched_on_the_users_are_asked_for_at_the_period(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        for number, row in enumerate(pairwise(SWITCHES)):
            (tmp_path / str(number)).mkdir()
            nursery.start_soon(probed, row, tmp_path / f"{number}.toml", 0.2)


@pytest.mark.parametrize("talks", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
async def test_the_period_is_the_same_without_clients_with_them_after_a_return_and_after_a_reload(
    mode: Mode, talks: bool, autojump_clock: object
) -> None:
    async with watched(mode=mode, load=talks) as scene:

        async def gaps_are_right(asks_each_s: int = 0) -> None:
            began = len(scene.backend.asked_at)
            for _ in range(20):
                for _ in range(asks_each_s):
                    scene.named()
                await trio.sleep(1.0)
            asked = scene.backend.asked_at[began:]
            assert len(asked) >= 19
            assert all(0.9 < b - a < 1.001 for a, b in itertools.pairwise(asked))

        await gaps_are_right()
        await gaps_are_right(asks_each_s=100)
        scene.backend.alive = False
        await scene.backend.close_all()
        await trio.sleep(30.0)
        assert not scene.named()
        scene.backend.alive = True
        await trio.sleep(1.5)
        assert scene.named()
        await gaps_are_right(asks_each_s=10)
        adopt(scene, mail="other@localhost")
        await trio.sleep(1.5)
        await gaps_are_right()
        want(scene, Admin(Wish.DRAIN))
        await gaps_are_right()
