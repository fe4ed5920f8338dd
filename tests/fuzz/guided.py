"""`python -m tests.fuzz.guided DOOR [-runs=N ...]`: the doors in memory by atheris, which looks for new paths itself.

It has to be installed beside the project: `pip install atheris`. The options behind the door are those of libFuzzer.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found, unused-ignore]

with atheris.instrument_imports(include=["lambdamu", "master"]):
    from tests.fuzz.inputs import SEEDS
    from tests.fuzz.memory import make_doors


def main() -> None:
    name, *options = sys.argv[1:]
    door = make_doors()[name]
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(SEEDS[name]):
            Path(folder, str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, folder], door)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
