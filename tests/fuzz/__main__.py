"""`python -m tests.fuzz [DOOR ...] --inputs N --seed S`: fuzzes doors, and says what came of it."""

from __future__ import annotations

import random
import time

import click
import trio

from tests.fuzz.inputs import SEEDS, mutate
from tests.fuzz.memory import make_doors
from tests.fuzz.sockets import DOORS, Growth, fuzz_sockets


@click.command()
@click.argument("names", nargs=-1)
@click.option("--inputs", type=click.IntRange(1), default=100_000, show_default=True, help="For each door.")
@click.option("--seed", default=1, show_default=True)
def main(names: tuple[str, ...], inputs: int, seed: int) -> None:
    """Fuzz doors in memory (clients, gateway, proxy, forwarded, pass, config) and over sockets (ports)."""
    for name, door in make_doors().items():
        if not names or name in names:
            fuzz_memory(name, door, inputs, seed)
    if not names or "ports" in names:
        began = time.monotonic()
        told = trio.run(fuzz_sockets, inputs, seed)
        click.echo(f"ports ({', '.join(DOORS)}): {told} in {time.monotonic() - began:.0f} s")


def fuzz_memory(name: str, door: object, inputs: int, seed: int) -> None:
    """Put inputs to one door; an input that it cannot bear is shown."""
    assert callable(door)
    rng, growth, began = random.Random(seed), Growth(), time.monotonic()
    for number in range(inputs):
        data = mutate(rng, SEEDS[name])
        try:
            door(data)
        except Exception:
            click.echo(f"{name}: input {number} of seed {seed}: {data!r}", err=True)
            raise
        if number == inputs // 2:
            growth = Growth()
    click.echo(f"{name}: {inputs:,} inputs in {time.monotonic() - began:.0f} s; in the second half {growth}")


if __name__ == "__main__":
    main(prog_name="python -m tests.fuzz")
