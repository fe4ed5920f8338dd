"""docs/protocol.md on turns: its example is what is signed, and its sample judges as we do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lambdamu import keys
from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.line_file import LineFile
from lambdamu.turns import Signer, TurnFault, Verifier, client_hash

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
SECTION = DOC[DOC.index("### Turns") :]
KEY = keys.Signer("2026a", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
CLIENT = "b5c1f0a49d3e4c6f8a7720d1e6943b58"
END = 1_800_000_060
TEXT = Signer(KEY).sign(1000007, client_hash(CLIENT), "b2", END)


def sample() -> Any:
    [source] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "docs/protocol.md", "exec"), names)
    line = KEY.verifier().line()
    return names["Turns"]("b2", {"2026a": from_base64url(line.rpartition(" ")[2])})


def ours() -> Any:
    judges = Verifier(keys.parse_keys(LineFile("keys", KEY.verifier().line())).verifiers, "b2")

    def use(text: Any, now: float) -> str | None:
        turn = judges.check(now, text)
        fault = turn if isinstance(turn, TurnFault) else judges.spend(now, turn)
        return None if fault is None else fault.code.value

    return use


def test_the_example_is_what_is_signed() -> None:
    assert f'"{TEXT}"' in SECTION
    assert f"`{KEY.verifier().line()}`" in SECTION
    assert f"`{client_hash(CLIENT).hex()}`" in SECTION
    assert all(f"| {value} |" in SECTION for value in ("1000007", END))


FLIPPED = [
    to_base64url(bytes(byte ^ (1 << at % 8 if place == at // 8 else 0) for place, byte in enumerate(data)))
    for data in [from_base64url(TEXT) or b""]
    for at in range(0, 8 * len(data), 5)
    if at // 8 < 49 or at // 8 > 56
]


@pytest.mark.parametrize(
    "steps",
    [
        [(TEXT, 0), (TEXT, 1)],
        [(TEXT, END + 29), (TEXT, END + 29.9), (TEXT, END + 30)],
        [(TEXT, END + 30)],
        [(TEXT, 0), (Signer(KEY).sign(1, bytes(16), "b2", END + 100), END + 40), (TEXT, 0)],
        [(Signer(KEY).sign(1, bytes(16), "b3", END), 0)],
        [(None, 0), ("", 0), ("é", 0), ("A" * 162, 0), (TEXT + "=", 0), (TEXT + "A", 0), (TEXT[:-1] + "h", 0), (7, 0)],
        [(text, 0) for text in FLIPPED],
    ],
)
def test_the_sample_judges_as_we_do(steps: list[tuple[Any, float]]) -> None:
    theirs, mine = sample(), ours()
    assert [theirs.use(text, now) for text, now in steps] == [mine(text, now) for text, now in steps]
