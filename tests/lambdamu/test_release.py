"""Which release this is: the installed one, and no error where none is."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from lambdamu.release import find_version

ROOT = Path(__file__).parents[2]


def test_the_installed_version_is_told() -> None:
    assert find_version() == version("lambdamu")


def test_code_that_is_not_installed_runs_all_the_same() -> None:
    # -S and -I: nothing that is installed is seen, so only this folder is.
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); from lambdamu.release import find_version; print(find_version())"
    )
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "unknown\n"
