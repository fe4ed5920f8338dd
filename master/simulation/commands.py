"""`lambdamu simulate`: the simulations on the command line. Figures go to standard output, the bar to a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from master.core.choice import Policy

if TYPE_CHECKING:
    from master.simulation.masters import Progress as Tell
    from master.simulation.masters import Setting
    from master.simulation.watch import Watch

_EPILOG: Final = """
\b
Examples:
  lambdamu simulate queue --servers 100 --utilisation 0.9 --period 5
  lambdamu simulate sessions --backends 20 --joins-per-s 200 --period 30
  lambdamu simulate brooker --refresh 60 --policy two_choices
  lambdamu simulate capacity pool.toml --users 50000
  lambdamu simulate rush
  lambdamu simulate abandon --back 0.5
  lambdamu simulate day --screens 5
"""
Command = Callable[..., Any]
Option = Callable[[Command], Command]


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to work with")
    return value


def _number(name: str, default: float, least: float, most: float, text: str, *, above: bool = False) -> Option:
    kind = click.FloatRange(least, most, min_open=above)
    return click.option(name, type=kind, default=default, show_default=True, callback=_finite, help=text)


def _whole(name: str, default: int, least: int, most: int, text: str) -> Option:
    return click.option(name, type=click.IntRange(least, most), default=default, show_default=True, help=text)


def _common(command: Command) -> Command:
    """Give a command what all of them take: policy, masters, seed, and whether the figures are for programs."""
    options = (
        click.option(
            "--policy",
            type=click.Choice([policy.value for policy in Policy]),
            default=Policy.LEAST_LOAD.value,
            show_default=True,
            help="How a backend is chosen; all but least_load without a join cap.",
        ),
        _whole("--masters", 1, 1, 100, "So many masters, who do not know of each other."),
        _whole("--seed", 1, 0, 2**63 - 1, "Where chance begins."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(epilog=_EPILOG)
def simulate() -> None:
    """Run the pool, the queue or the cache in virtual time, and say in figures how well it does."""


@simulate.command()
@_whole("--servers", 100, 1, 10_000, "So many servers.")
@_number("--utilisation", 0.9, 0, 0.99, "Of each server.", above=True)
@_number("--period", 5.0, 0, 1000, "Seconds between two reports of all; 0: every count is fresh.")
@click.option(
    "--length",
    type=click.FloatRange(10, 1e6),
    callback=_finite,
    help="Seconds of the run, the first tenth not measured; by default 6000, less for many servers, more for random.",
)
@_common
def queue(**given: Any) -> int:
    """Servers that work off their queues, a client a second each; how long a client waits and is served."""
    from master.simulation.queue import QueueSetting, run_queue  # noqa: PLC0415 - other commands start faster

    # Queues that are filled by chance vary the most, and cost the least.
    usual = 15_000.0 if given["policy"] == Policy.RANDOM else 6000.0
    length = given["length"] or min(1.0, 100 / given["servers"]) * usual
    setting = QueueSetting(given["servers"], given["utilisation"], given["period"], length)
    with _bar("queue") as tell:
        figures = run_queue(setting, _setting(given), tell)
    return _show(figures, as_json=given["as_json"])


@simulate.command()
@_whole("--backends", 20, 1, 10_000, "So many backends.")
@_number("--joins-per-s", 200.0, 0, 10_000, "Clients that ask, in a second.", above=True)
@_number("--session-s", 600.0, 1, 86400, "How long a user stays, on the average.")
@_number("--period", 5.0, 0.1, 1000, "Seconds between two probes of a backend.")
@_number("--length", 1800.0, 60, 1e6, "Seconds of the run; at a third of it a backend crashes.")
@_common
def sessions(**given: Any) -> int:
    """Users who come, stay and go; one backend crashes and comes back empty."""
    from master.simulation.sessions import SessionsSetting, run_sessions  # noqa: PLC0415

    setting = SessionsSetting.of(*(given[key] for key in ("backends", "joins_per_s", "session_s", "period", "length")))
    with _bar("sessions") as tell:
        watch = run_sessions(setting, _setting(given), tell)
    figures = _sessions_figures(watch)
    if not given["as_json"]:
        figures |= {"returned_one_over_its_share": watch.most_over_share, "refused": watch.refused}
    return _show(figures, as_json=given["as_json"])


def _sessions_figures(watch: Watch) -> dict[str, Any]:
    return {
        "max_over_mean": watch.max_over_mean,
        "peak_joins_per_s": watch.peak,
        "peak_joins_per_s_after_return": watch.peak_after_return,
        "storm_bound_broken": watch.broken,
        "seconds_to_share": watch.seconds_to_share,
    }


@simulate.command()
@_whole("--refresh", 60, 1, 10_000, "Steps between two refreshes of the counts.")
@_whole("--length", 200_000, 1000, 10_000_000, "Steps of the run; the first tenth is not measured.")
@_common
def brooker(**given: Any) -> int:
    """Ten servers, a client a step, counts refreshed now and then; how many steps a client waits and is served."""
    from master.simulation.brooker import BrookerSetting, run_brooker  # noqa: PLC0415

    with _bar("brooker") as tell:
        figures = run_brooker(BrookerSetting(given["refresh"], given["length"]), _setting(given), tell)
    return _show(figures, as_json=given["as_json"])


@simulate.command()
@click.argument("file", metavar="FILE")
@click.option("--users", type=click.IntRange(1, 1_000_000), required=True, help="Users in the long run.")
@_number("--session-s", 600.0, 1, 86400, "How long a user stays, on the average.")
@_number("--length", 1800.0, 60, 1e6, "Seconds of the run; at a third of it the biggest backend crashes.")
@_whole("--seed", 1, 0, 2**63 - 1, "Where chance begins.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def capacity(file: str, users: int, session_s: float, length: float, seed: int, as_json: bool) -> int:
    """Whether the pool of FILE carries a population, also without its biggest backend, and how even it stays."""
    from master.config_file import ConfigError, load  # noqa: PLC0415
    from master.simulation.capacity import CapacitySetting, run_capacity  # noqa: PLC0415

    try:
        config = load(file)
    except ConfigError as exc:
        for fault in exc.faults:
            click.echo(str(fault), err=True)
        return 2
    with _bar("capacity") as tell:
        carried = run_capacity(config, CapacitySetting(users, session_s, length, seed), tell)
    return _show(carried.figures(), as_json=as_json)


def _seeded(command: Command) -> Command:
    """Give a command what all of the virtual queue take."""
    seed = _whole("--seed", 1, 0, 2**63 - 1, "Where chance begins.")
    return seed(click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command))


@simulate.command()
@_seeded
def loop(seed: int, as_json: bool) -> int:
    """The control loop of the queue on nodes that report late, of which one dies; and the same at a fixed rate."""
    from master.simulation.loop import Plant, run_loop  # noqa: PLC0415

    with _bar("loop") as tell:
        seen = run_loop(Plant(), seed, tell)
    figures: dict[str, Any] = {
        "peak_load": seen.peak,
        "seconds_over_target": seen.over_s,
        "idle_while_waiting_s": seen.idle_s,
    }
    if not as_json:
        fixed = run_loop(Plant(fixed_per_s=30.0), seed)
        figures |= {"peak_load_at_30_a_second": fixed.peak, "seconds_over_target_at_30_a_second": fixed.over_s}
    return _show(figures, as_json=as_json)


@simulate.command()
@_number("--back", 0.0, 0, 1, "The part of those who go that comes back within five minutes, and stays.")
@_seeded
def abandon(back: float, seed: int, as_json: bool) -> int:
    """10,000 join the queue, and nine in ten go without a word; how many of the others get in at 60 a minute."""
    from master.simulation.abandon import AbandonSetting, run_abandon  # noqa: PLC0415

    with _bar("abandon") as tell:
        turns = run_abandon(AbandonSetting(back=back), seed, tell)
    figures: dict[str, Any] = {"real_turns_per_minute": turns.per_minute, "last_served_minute": turns.last_minute}
    if back:
        figures |= {"back_in_time": turns.in_time, "lost_their_place": turns.lost_place}
    if not as_json:
        figures |= {
            "most_over_the_rate": turns.most_over,
            "called_out_of_order": turns.out_of_order,
            "estimates_within_90_point": turns.estimates_kept,
        }
    return _show(figures, as_json=as_json)


@simulate.command()
@_seeded
def rush(seed: int, as_json: bool) -> int:
    """3,000 come within 15 s to three small backends, of which one dies in the middle; how they wait and get in."""
    from master.simulation.rush import RushSetting, run_rush  # noqa: PLC0415

    with _bar("rush") as tell:
        rushed = run_rush(RushSetting(), seed, tell)
    return _show(rushed.figures(), as_json=as_json)


@simulate.command()
@_whole("--people", 1000, 1, 100_000, "So many clients, with a device each.")
@_number("--starts", 2.0, 0, 100, "Starts of the app by each in a day, in the mean.", above=True)
@_number("--screens", 12.0, 1, 1000, "Screens of a login, in the mean.")
@_number("--ttl", 900.0, 1, 86400, "Seconds for which data are good.")
@_number("--refresh", 60.0, 0, 43200, "Seconds before that at which they are renewed.")
@_number("--upstream", 0.2, 0, 60, "Seconds that a call of the upstream takes, in the median.", above=True)
@click.option("--no-warm-up", is_flag=True, help="Nothing is fetched before a login.")
@_seeded
def day(**given: Any) -> int:
    """The clients of a bank through a day: how often the upstream is called, and how long a first screen takes.

    Starts of the app follow the hours of a day, with a peak before work and one after; 85 of 100 lead to a login, 5 to
    20 s later, and 95 of 100 devices are known in the morning. A first screen shows five types of data. Those that
    follow come 20 s apart in the mean: three of ten show all types again, the others one. A session ends 600 s after
    its last question; 5 of 1,000 calls of the upstream fail.
    """
    from master.simulation.day import DaySetting, run_day  # noqa: PLC0415

    if given["refresh"] > given["ttl"] / 2:
        raise click.UsageError("--refresh must be at most half of --ttl")
    setting = DaySetting(
        people=given["people"],
        starts=given["starts"],
        screens=given["screens"],
        ttl_s=given["ttl"],
        refresh_s=given["refresh"],
        upstream_s=given["upstream"],
        warm_up=not given["no_warm_up"],
    )
    with _bar("day") as tell:
        seen = run_day(setting, given["seed"], tell)
    return _show(seen.figures(), as_json=given["as_json"])


def _setting(given: dict[str, Any]) -> Setting:
    from master.simulation.masters import Setting, textbook  # noqa: PLC0415

    return Setting(textbook(Policy(given["policy"])), given["masters"], given["seed"])


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Tell]:
    """Give what shows how far a run is: a bar where standard error is a terminal, and nothing elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - other commands start faster without it
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _part: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda part: progress.update(task, completed=part)


def _show(figures: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({key: None if _unknown(value) else value for key, value in figures.items()}))
    else:
        for key, value in figures.items():
            text = (
                "unknown" if value is None or _unknown(value) else f"{value:.6g}" if isinstance(value, float) else value
            )
            click.echo(f"{key.replace('_', ' ')}: {text}")
    sys.stdout.flush()
    return 0


def _unknown(value: object) -> bool:
    """Whether a figure came out as no number: JSON has no word for that."""
    return isinstance(value, float) and not math.isfinite(value)
