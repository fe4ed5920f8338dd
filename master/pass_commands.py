"""`lambdamu pass key`, `make` and `show`: the keys of passes, and passes."""

from __future__ import annotations

import re
import secrets
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from lambdamu.address import printable
from lambdamu.line_file import LineFileError
from lambdamu.passes import ACCESS, MOST_CHARACTERS, SKEW_S, Pass, PassFault, PassVerifier, make_pass, read_pass

if TYPE_CHECKING:
    from lambdamu.keys import Keys

_SPAN: Final = re.compile(r"(?P<number>[1-9][0-9]{0,8})(?P<unit>[smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BAD_CONFIGURATION: Final = 2


def span(text: str) -> int:
    """Read a span of time such as 30d, in seconds."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{printable(text)} is not a number with s, m, h or d, as 30d is")
    return int(match["number"]) * _SECONDS[match["unit"]]


@click.group("pass")
def passes() -> None:
    """Make the passes that clients are let in by, and the keys that passes are signed with."""


@passes.command(
    epilog="\b\nExamples:\n  (umask 077; lambdamu pass key > pass.keys)\n  lambdamu pass key --public-of pass.keys"
)
@click.option("--id", "key_id", default="", help="What passes call the key by; one of chance when left out.")
@click.option("--public-of", "path", metavar="FILE", help="Print the public lines of the keys in FILE; make none.")
def key(key_id: str, path: str | None) -> int:
    """Make a new key: one line for a key file, which is a secret. The first private key of a file signs."""
    from lambdamu.keys import Signer  # noqa: PLC0415 - takes 60 ms to import

    if path is not None:
        for verifier in _load(path).verifiers.values():
            click.echo(verifier.line())
        return 0
    try:
        click.echo(Signer.generate(key_id).line())
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--id") from exc
    return 0


@passes.command(epilog="\b\nExample:\n  lambdamu pass make --keys pass.keys --subject ann --right access --for 30d")
@click.option("--keys", "path", required=True, metavar="FILE", help="The key file; its first private key signs.")
@click.option("--subject", required=True, help="Whose it is; shown and logged.")
@click.option(
    "--right", "rights", multiple=True, default=(ACCESS,), show_default=True, help="What it gives; again for more."
)
@click.option("--for", "for_s", type=span, required=True, metavar="SPAN", help="How long it holds: 90s, 15m, 12h, 30d.")
@click.option("--id", "pass_id", help="By which it can be revoked; one of chance when left out.")
def make(path: str, subject: str, rights: tuple[str, ...], for_s: int, pass_id: str | None) -> int:
    """Make a pass and print its text, to be sent as `Pass`. Whoever has the text has the rights."""
    signer = _load(path).signer
    if signer is None:
        click.echo(f"{path} holds no private key to sign with", err=True)
        return _BAD_CONFIGURATION
    try:
        says = Pass(pass_id or secrets.token_hex(6), subject, tuple(sorted(set(rights))), int(time.time()) + for_s)
        click.echo(make_pass(signer, says))
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return 0


@passes.command(epilog="\b\nExample:\n  lambdamu pass show - --keys pass.keys < pass.txt")
@click.argument("text")
@click.option("--keys", "path", metavar="FILE", help="Verify it by the keys in FILE.")
def show(text: str, path: str | None) -> int:
    """Say what the pass TEXT says; `-` reads it from standard input. Exit code 1: it lets nobody in."""
    if text == "-":
        text = sys.stdin.read(2 * MOST_CHARACTERS).strip()
    signed = read_pass(text)
    if signed is None:
        click.echo(f"this is no pass: {PassFault.MALFORMED.value}", err=True)
        return 1
    says, now = signed.says, time.time()
    click.echo(
        f"id: {says.id}\nsubject: {printable(says.subject)}\nrights: {', '.join(says.rights)}\nkey: {signed.key_id}"
    )
    click.echo(f"ends: {_moment(says.expires)}")
    fault = PassVerifier(_load(path).verifiers).judge(now, text, says.rights[0]) if path is not None else None
    if isinstance(fault, PassFault):
        click.echo(f"it lets nobody in: {fault.value}", err=True)
        return 1
    if now >= says.expires + SKEW_S:
        click.echo(f"it lets nobody in: {PassFault.EXPIRED.value}", err=True)
        return 1
    click.echo("signature: not checked, for want of --keys" if path is None else "signature: good")
    return 0


def _moment(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{unix_s} seconds after 1970"


def _load(path: str) -> Keys:
    from lambdamu.keys import load_keys  # noqa: PLC0415 - takes 60 ms to import

    try:
        return load_keys(path)
    except LineFileError as exc:
        click.echo(str(exc), err=True)
        sys.exit(_BAD_CONFIGURATION)
