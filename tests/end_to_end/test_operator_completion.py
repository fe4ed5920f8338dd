"""What `lambdamu completion` prints, in a real bash: what is there after a press of the tabulator."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Stage, free_port, wait_for_port

NAMES = ("b1", "b2", "[::1]:9001", "my box", "$(touch x)")
ASK = r"""
eval "$1"
shift
for line; do
    COMP_LINE="$line" COMP_POINT=${#line}
    read -r -a COMP_WORDS <<< "${line//:/ : }"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _lambdamu_completion lambdamu
    printf '%s\n' "${COMPREPLY[@]}" =
done
"""
"""Calls what was registered as bash does, which takes a line apart at colons as well."""
FOUND = {
    "lambdamu dr": ["drain"],
    "lambdamu drain b": ["b1", "b2"],
    "lambdamu maint ": ["b1", "b2", r"\[::1\]:9001", r"my\ box", r"\$\(touch\ x\)"],
    "lambdamu ready --reason x [::1]:9": ["9001"],
    "lambdamu top --sort l": ["load"],
    "lambdamu queue --mode h": ["hold"],
    "lambdamu cache d": ["device"],
}
CommandLine = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    stage = Stage(tmp_path_factory.mktemp("completion"))
    http = free_port()
    backends = [f'[[backend]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {free_port()}\n' for name in NAMES]
    text = f'[http]\nlisten = "127.0.0.1:{http}"\n' + "".join(backends)
    master, _ = stage.master(text="[master]\n" + text)
    wait_for_port(http, master)
    yield f"http://127.0.0.1:{http}"
    stage.end()


def complete(script: str, url: str, *lines: str) -> list[list[str]]:
    """Return what bash would put at the end of each line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", ASK, "bash", script, *lines],
        env=os.environ | {"PATH": path, "LAMBDAMU_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [part.split("\n")[:-1] for part in done.stdout.removesuffix("=\n").split("=\n")]


def test_bash_completes_commands_and_names(url: str, command_line: CommandLine) -> None:
    _, script, complaint = command_line("completion", "bash")
    assert complaint == ""
    assert dict(zip(FOUND, complete(script, url, *FOUND), strict=True)) == FOUND


def test_a_master_that_is_silent_or_not_there_holds_nobody_up(command_line: CommandLine) -> None:
    _, script, _ = command_line("completion", "bash")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lines = (f"lambdamu drain --url {url} b", "lambdamu drain b")
        assert complete(script, f"http://127.0.0.1:{free_port()}", *lines) == [[], []]
        silent.settimeout(5)
        silent.accept()[0].close()  # it has been asked


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_their_scripts(command_line: CommandLine, shell: str) -> None:
    code, said, complaint = command_line("completion", shell)
    assert (code, complaint) == (0, "")
    assert f"_LAMBDAMU_COMPLETE={shell}_complete" in said
