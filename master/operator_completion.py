"""`lambdamu completion`: scripts that have a shell complete commands, options and the names of backends and queues."""

from __future__ import annotations

import os
from functools import partial
from typing import ClassVar, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from master.operator_client import CallError, get

_WITHIN_S: Final = 0.8
"""Whoever presses a key does not wait longer."""
_PROGRAM: Final = "lambdamu"
_BASH: Final = r"""
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" word="${COMP_WORDS[COMP_CWORD]}" begin="" typed type value
    # Bash takes what is typed apart at colons, and names of backends have some: what stands before stays as it is.
    typed="${line##*[[:space:]]}"
    if [[ $word != [\"\']* && $COMP_WORDBREAKS == *:* ]]; then
        begin="${typed%%"${typed##*:}"}"
    fi
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                value="${value#"$begin"}"
                [[ $word == [\"\']* ]] || printf -v value '%%q' "$value"
                COMPREPLY+=("$value")
                ;;
        esac
    done < <(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class LineComplete(BashComplete):
    """Bash, where words are what stands between spaces: click's own script has them taken apart at colons."""

    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        _, *words = split_arg_string(line)
        return (words, "") if not words or line[-1].isspace() else (words[:-1], words[-1])


add_completion_class(LineComplete, "bash")


def complete_name(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the backends whose names begin so, of the master that the command is for; none where it is silent."""
    return _complete(context, begun, "/api/v1/backends", "backends", "name")


def complete_queue(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the queues whose ids begin so, of those that a master tells of at once."""
    return _complete(context, begun, "/api/v1/queue", "queues", "queue")


def _complete(context: click.Context, begun: str, path: str, rows: str, key: str) -> list[CompletionItem]:
    import trio  # noqa: PLC0415 - takes a quarter of a second, and the other commands do without

    names = trio.run(_names, context.params.get("url", ""), path, rows, key)
    return [CompletionItem(name) for name in names if name.startswith(begun)]


async def _names(url: str, path: str, rows: str, key: str) -> list[str]:
    call = partial(get, url, path, within_s=_WITHIN_S)
    import trio  # noqa: PLC0415

    with trio.move_on_after(_WITHIN_S):
        try:
            # In a thread: a look-up of the master's name has no deadline of its own.
            got = await trio.to_thread.run_sync(call, abandon_on_cancel=True)
            return [row[key] for row in got[rows] if row[key].isprintable()]
        except (CallError, LookupError, TypeError, AttributeError):
            pass
    return []


@click.command(
    epilog="""
\b
Examples:
  eval "$(lambdamu completion bash)"    # in ~/.bashrc
  eval "$(lambdamu completion zsh)"     # in ~/.zshrc, after compinit
  lambdamu completion fish > ~/.config/fish/completions/lambdamu.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what has a SHELL complete commands, options, and the names of the backends of a master that runs."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all three
    click.echo(kind(context.find_root().command, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source())
    return 0
