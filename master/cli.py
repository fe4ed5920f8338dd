"""The one command line. Exit codes: 0 ok, 1 failed, 2 bad usage or configuration, 3 no backend, 4 late, 5 different.

It is long because options stand one to a line, and all who start processes stand here.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from lambdamu.address import Address
from lambdamu.tls import TlsError
from master.operator_cache import cache
from master.operator_changes import CHANGES
from master.operator_commands import COMMANDS
from master.operator_completion import completion
from master.operator_queue import queue
from master.operator_top import top
from master.pass_commands import passes
from master.simulation.commands import simulate

if TYPE_CHECKING:
    from master.config import Config

_ADDRESS: Final = "HOST:PORT"
_EPILOG: Final = """
\b
Examples:
  lambdamu demo
  lambdamu check pool.toml
  lambdamu simulate sessions --period 5
  lambdamu master --config pool.toml
  lambdamu status
  lambdamu why 203.0.113.7
  lambdamu queue
  lambdamu cache
  lambdamu server --listen 127.0.0.1:9001 --users 10
  lambdamu client --master 127.0.0.1:7000
  lambdamu client --master 127.0.0.1:7000 --clients 500 --rate 100
"""


def address(text: str) -> Address:
    """Read one address of the command line."""
    try:
        return Address.parse(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def addresses(text: str) -> tuple[Address, ...]:
    """Read several, with commas between."""
    return tuple(address(item.strip()) for item in text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    """Read several whole numbers from 0, with commas between."""
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdecimal() and len(item) < 10 for item in items):
        raise click.BadParameter(f"{text!r} must be whole numbers with commas between")
    return tuple(dict.fromkeys(map(int, items)))


def finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Refuse `nan` and `inf`, which pass for numbers in any range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to work with")
    return value


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lambdamu", prog_name="lambdamu")
def cli() -> None:
    """The front door of mobile backends: tells each client which live backend has the most room."""


@cli.command(epilog="\b\nExample:\n  lambdamu master --config pool.toml")
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="The configuration, a TOML file.")
@click.option(
    "--log-level",
    "level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is less than this is not logged; at debug, some of the asks are.",
)
def master(path: str | None, level: str) -> int:
    """Run a master until SIGTERM or Ctrl-C. The log goes to standard error, as JSON unless that is a terminal.

    Variables such as LAMBDAMU_MASTER__LISTEN and LAMBDAMU_BACKEND__0__HOST beat the file, or do without one.
    """
    from master.log import make_logger, standard_error  # noqa: PLC0415 - other commands start faster without it
    from master.process import run_master  # noqa: PLC0415

    sink = standard_error()
    log = make_logger(sink, json=sys.stderr is None or not sys.stderr.isatty(), level=level)
    return _run_in_trio(run_master, _load(path, "--config FILE"), log, sink, path)


@cli.command(
    epilog="\b\nExamples:\n  lambdamu check pool.toml\n  lambdamu check pool.toml --diff http://127.0.0.1:7080"
)
@click.argument("path", type=click.Path(), metavar="[FILE]", required=False)
@click.option("--diff", "url", metavar="URL", help="Say what a reload with FILE would change at this master.")
@click.option("--json", "as_json", is_flag=True, help="Print the difference as one JSON object.")
def check(path: str | None, url: str | None, as_json: bool) -> int:
    """Read a configuration, file and environment, and say what it means, or name every fault in it.

    Exit code with --diff: 0 when nothing would change, 5 when something would. A token, where one is needed, comes from
    the variable LAMBDAMU_TOKEN.
    """
    if as_json and url is None:
        raise click.UsageError("--json goes with --diff")
    from master.store.look import fault_of_cache, fault_of_state  # noqa: PLC0415

    config = _load(path, "FILE")
    kept = {"[state] file": fault_of_state(config.state.file) if config.state.file else ""}
    if config.cache is not None and config.cache.file:
        kept["[cache] file"] = fault_of_cache(config.cache.file)
    unkept = [f"{key}: {fault}; a master runs, and keeps nothing there" for key, fault in kept.items() if fault]
    for warning in (*config.warnings, *unkept):
        click.echo(f"warning: {warning}", err=True)
    if url is not None:
        from master.operator_diff import show_difference  # noqa: PLC0415

        return show_difference(config, url, as_json=as_json)
    from master.config_environment import variables  # noqa: PLC0415
    from master.config_notes import describe  # noqa: PLC0415

    for line in describe(config):
        click.echo(line)
    for name in variables(os.environ):
        click.echo(f"from the environment: {name}")
    return 0


@cli.command(epilog="\b\nExample:\n  lambdamu server --listen 127.0.0.1:9001 --users 10")
@click.option(
    "--listen", type=address, metavar=_ADDRESS, required=True, help="Where to listen; port 0 is any free port."
)
@click.option("--name", default="", help="A name for the log, and the one that turns are for; HOST:PORT if left out.")
@click.option("--users", type=click.IntRange(0, 2**53 - 1), default=0, help="Users it has from the start.")
@click.option("--capacity", type=click.IntRange(0, 2**53 - 1), help="The most users it lets in.")
@click.option("--probe-mail", default="master@localhost", show_default=True, help="Who says this is no user.")
@click.option(
    "--require-turns",
    "turn_keys",
    type=click.Path(),
    metavar="KEYS",
    help="Let in only those with a turn that a key of this file has signed; SIGHUP has it read again.",
)
@click.option("--load", is_flag=True, help="Answer System.Get Load; SIGUSR1 has it drain, and again end that.")
@click.option(
    "--fault",
    metavar="KIND",
    help="What goes wrong: hang-auth, hang-count, no-count, garbage, close, half, slow:SECONDS, count:VALUE.",
)
@click.option(
    "--products",
    "products_s",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    help="Answer Products.Get, as an upstream of the cache, so late.",
)
@click.option("--products-fault", metavar="KIND", help="What goes wrong there: silent, error, empty, number.")
@click.option("--cache", type=address, metavar=_ADDRESS, help="Keep the sessions of users there, in the cache service.")
@click.option(
    "--cache-secret-file", type=click.Path(), metavar="FILE", help="What the cache wants to be shown, on one line."
)
@click.option(
    "--screen-types",
    type=numbers,
    default="1,2,3,4,5",
    show_default=True,
    metavar="N[,...]",
    help="The warm data of the first screen, with --cache.",
)
@click.option(
    "--tls", type=click.Path(), nargs=2, metavar="CERT KEY", help="Serve under TLS, on Linux: two files, PEM."
)
def server(  # noqa: PLR0913 - click gives all options by name
    *,
    listen: Address,
    name: str,
    users: int,
    capacity: int | None,
    probe_mail: str,
    turn_keys: str | None,
    load: bool,
    fault: str | None,
    products_s: float | None,
    products_fault: str | None,
    cache: Address | None,
    cache_secret_file: str | None,
    screen_types: tuple[int, ...],
    tls: tuple[str, str] | None,
) -> int:
    """Run a backend with its business logic cut out: it lets users in and counts them."""
    from server_stub.backend import ServerOptions, parse_fault, run_server  # noqa: PLC0415
    from server_stub.products import parse_products_fault  # noqa: PLC0415

    try:
        kind = parse_fault(fault) if fault is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--fault") from exc
    try:
        products_kind = parse_products_fault(products_fault) if products_fault is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--products-fault") from exc
    if products_s is not None and not math.isfinite(products_s):
        raise click.BadParameter("it must be a number of seconds", param_hint="--products")
    if products_kind is not None and products_s is None:
        raise click.UsageError("--products-fault goes with --products")
    if cache_secret_file is not None and cache is None:
        raise click.UsageError("--cache-secret-file goes with --cache")
    if (
        cache is None
        and click.get_current_context().get_parameter_source("screen_types") is not ParameterSource.DEFAULT
    ):
        raise click.UsageError("--screen-types goes with --cache")
    if tls is not None and sys.platform != "linux":
        raise click.UsageError("--tls needs Linux")
    options = ServerOptions(
        listen=listen,
        name=name,
        users=users,
        capacity=capacity,
        fault=kind,
        probe_mail=probe_mail,
        load=load,
        turn_keys=turn_keys,
        tls=tls,
        products_s=products_s,
        products_fault=products_kind,
        cache=cache,
        cache_secret="" if cache_secret_file is None else _secret(cache_secret_file),
        screen_types=screen_types,
    )

    async def run() -> int:
        return await run_server(options, say=_say, complain=_complain)

    return _run_in_trio(run)


@cli.command(
    epilog="\b\nExamples:\n  lambdamu client --master 127.0.0.1:7000 --clients 500 --rate 100\n"
    "  lambdamu client --master 127.0.0.1:7000 --clients 5000 --rate 300 --connections 50 --stay 60"
)
@click.option(
    "--master",
    "masters",
    type=addresses,
    metavar=f"{_ADDRESS}[,...]",
    required=True,
    help="Masters, tried in any order.",
)
@click.option("--json", is_flag=True, help="Print one JSON object.")
@click.option("--ask-only", is_flag=True, help="Ask where to connect, and do not connect.")
@click.option("--turn", is_flag=True, help="Ask for a turn, and hand it on to a backend that demands one.")
@click.option("--plain", is_flag=True, help="Ask as old clients do, who say nothing of themselves.")
@click.option("--queue", metavar="NAME", help="The queue to wait in.  [default: the default one]")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    metavar="SECONDS",
    help="Leave a queue when it takes longer.  [default: wait as long as it takes]",
)
@click.option(
    "--away",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    metavar="SECONDS",
    help="Go to the background for so long once there is a place in a queue.",
)
@click.option("--clients", type=click.IntRange(min=1), default=1, help="So many clients, and figures at the end.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), callback=finite, help="New clients a second.")
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    help="The clients are a crowd that waits in a queue, and asks over so many connections.",
)
@click.option(
    "--stay",
    type=click.FloatRange(min=0),
    callback=finite,
    metavar="SECONDS",
    help="Each of a crowd goes to its backend and stays so long.  [default: it is only counted]",
)
@click.option("--user", "user_name", default="client", show_default=True, metavar="NAME", help="Who logs in.")
@click.option(
    "--session", is_flag=True, help="Log in with a session, and go on with it at another backend if one dies."
)
@click.option("--resume", metavar="ID", help="The session of before, to go on with; --json shows it.")
@click.option(
    "--device", metavar="ID", help="The device it runs on: the first screen of the app is shown, with its time."
)
@click.option(
    "--pass",
    "pass_text",
    metavar="TEXT",
    help="The Pass to be let in by; or set LAMBDAMU_PASS.",
    envvar="LAMBDAMU_PASS",
)
@click.option(
    "--hold", type=click.FloatRange(min=0), default=0.0, callback=finite, help="Stay connected for so many seconds."
)
@click.option("--tls", is_flag=True, help="Ask masters under TLS; their certificates are checked.")
@click.option(
    "--ca", type=click.Path(), default="", help="The authorities, a PEM file.  [default: those of the system]"
)
@click.option("--tls-name", default="", metavar="NAME", help="Whose their certificates are.  [default: their HOST]")
@click.option("--cert", type=click.Path(), default="", help="The client's own certificate, a PEM file.")
@click.option("--key", type=click.Path(), default="", help="Its key, a PEM file without a passphrase.")
def client(plain: bool, tls: bool, ca: str, tls_name: str, cert: str, key: str, **given: Any) -> int:
    """Ask a master where to connect, connect there, and say which Task object was given.

    Where a queue holds it, it waits and shows its place; Ctrl-C leaves the queue.
    """
    from client_stub.client import ClientOptions, run_client, tls_of  # noqa: PLC0415

    try:
        asked_under = tls_of(tls=tls, ca=ca, tls_name=tls_name, cert=cert, key=key)
        options = ClientOptions(waits=not plain, tls=asked_under, **given)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    except TlsError as exc:
        _complain(f"lambdamu client: {exc}")
        return 2
    return _run_in_trio(run_client, options)


@cli.command(
    epilog="\b\nExamples:\n  lambdamu demo --seconds 15 --backends 3\n  lambdamu demo --rush\n"
    "  lambdamu demo --sessions"
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=6),
    callback=finite,
    help="How long it takes; 15 if left out, with --rush 60 and 20 at least, with --sessions 20 and 10 at least.",
)
@click.option("--backends", type=click.IntRange(2, 20), help="How many backends; 3 if left out.")
@click.option("--rush", is_flag=True, help="Thousands come at once to three small backends, and wait in order.")
@click.option(
    "--sessions", is_flag=True, help="Sessions outlive a backend, and data are there before they are asked for."
)
def demo(seconds: float | None, backends: int | None, rush: bool, sessions: bool) -> int:
    """Show it all with real processes: backends, a master, clients, and a backend that is killed and comes back.

    With --rush it is the queue: a crowd that waits in order, and a backend that dies in the middle. With --sessions it
    is the cache: apps that start cold and warm, and a backend that dies under its clients.
    """
    if sessions:
        if rush or backends is not None or (seconds is not None and seconds < 10):
            raise click.UsageError("--sessions has three backends, takes 10 seconds at least, and goes without --rush")
        from master.demo_sessions import run_sessions  # noqa: PLC0415

        return _run_in_trio(run_sessions, seconds or 20.0)
    if rush:
        if backends is not None or (seconds is not None and seconds < 20):
            raise click.UsageError("--rush has three backends, and takes 20 seconds at least")
        from master.demo_rush import run_rush  # noqa: PLC0415

        return _run_in_trio(run_rush, seconds or 60.0)
    from master.demo import run_demo  # noqa: PLC0415

    return _run_in_trio(run_demo, seconds or 15.0, backends or 3)


cli.add_command(simulate)
cli.add_command(passes)
for _command in (*COMMANDS, top, queue, cache, *CHANGES, completion):
    cli.add_command(_command)


def _run_in_trio(task: Callable[..., Awaitable[int]], *arguments: Any) -> int:
    import trio  # noqa: PLC0415 - takes a quarter of a second, and what asks a master by HTTP does without

    return trio.run(task, *arguments)


def _secret(path: str) -> str:
    """Return the one line of a file."""
    from lambdamu.line_file import LineFileError  # noqa: PLC0415 - few commands need it
    from master.config_secrets import read_mail  # noqa: PLC0415

    try:
        secret, warnings = read_mail(path)
    except LineFileError as exc:
        raise click.BadParameter(str(exc), param_hint="--cache-secret-file") from exc
    for warning in warnings:
        _complain(f"warning: {warning}")
    return secret


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


def _complain(line: str) -> None:
    click.echo(line, err=True)


def _load(path: str | None, how: str) -> Config:
    """Return the configuration; `how`: how the command is told the file."""
    from master.config_environment import misspelt, variables  # noqa: PLC0415 - most commands need no configuration
    from master.config_file import ConfigError, load  # noqa: PLC0415

    if path is None and not variables(os.environ):
        usage = f"give the configuration: {how}, or variables as LAMBDAMU_BACKEND__0__HOST"
        raise click.UsageError("\n".join((usage, *misspelt(os.environ))))
    try:
        return load(path, os.environ)
    except ConfigError as exc:
        for fault in exc.faults:
            click.echo(str(fault), err=True)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; end the process with its exit code."""
    if os.getpid() == 1:
        # The kernel keeps a signal that nobody handles from the first process of a container. Others end by it at once.
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as exc:
        # What is left in the buffer cannot be written either; without this the interpreter would try, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if exc.errno != errno.EPIPE:  # a reader that has read enough, such as `head`, is no failure to tell of
            click.echo(f"lambdamu: {exc.strerror or exc}", err=True)
        code = 1
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        return cli.main(arguments, standalone_mode=False) or 0
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 1
    except BaseExceptionGroup as group:
        # What ends a program on purpose comes out of a nursery in a group. All else in it is a bug: let it be seen.
        ends, bugs = group.split((KeyboardInterrupt, SystemExit, OSError))
        if bugs is not None or ends is None:
            raise
        failed = ends.subgroup(OSError)
        if failed is not None:
            raise _first(failed) from None
        return 1


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
