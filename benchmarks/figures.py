"""Figures of several rounds into medians and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable, Mapping, Sequence

import attrs


@attrs.frozen
class Sample:
    """What one measurement gave: figures by key. `ours`: who is compared with the others of the same case.

    `failed`: why there are no figures.
    """

    case: str
    who: str
    figures: Mapping[str, float]
    ours: bool = False
    failed: str = ""


Samples = Generator[Sample, None, None]
"""The samples of one round, each when it is taken; closing it ends what it has started."""


@attrs.frozen
class Row:
    """The medians over the rounds of one of those compared, in one case."""

    case: str
    who: str
    ours: bool
    rounds: int
    figures: Mapping[str, float]


@attrs.frozen
class Ratio:
    """Ours divided by the other's, round by round, and the median of that: a busy minute hits both."""

    case: str
    ours: str
    other: str
    key: str
    median: float
    least: float
    most: float


def medians(samples: Iterable[Sample]) -> list[Row]:
    """Return a row for each (case, who), in the order in which they came first."""
    rows = []
    for (case, who), group in _grouped(samples).items():
        keys = dict.fromkeys(key for sample in group for key in sample.figures)
        figures = {key: statistics.median(s.figures[key] for s in group if key in s.figures) for key in keys}
        rows.append(Row(case, who, group[0].ours, sum(not sample.failed for sample in group), figures))
    return rows


def ratios(samples: Iterable[Sample], key: str) -> list[Ratio]:
    """Return how ours compares with each other of the same case, by the figure `key`."""
    groups = _grouped(sample for sample in samples if key in sample.figures)
    return [
        _ratio(case, key, mine, groups[case, other])
        for (case, _), mine in groups.items()
        if mine[0].ours
        for other_case, other in groups
        if other_case == case and not groups[case, other][0].ours
        if any(sample.figures[key] > 0 for sample in groups[case, other])
    ]


def _ratio(case: str, key: str, mine: Sequence[Sample], others: Sequence[Sample]) -> Ratio:
    pairs = zip(mine, others, strict=False)  # a round that was broken off has fewer of the later ones
    by_round = [a.figures[key] / b.figures[key] for a, b in pairs if b.figures[key] > 0]
    median, least, most = statistics.median(by_round), min(by_round), max(by_round)
    return Ratio(case, mine[0].who, others[0].who, key, median, least, most)


def _grouped(samples: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.case, sample.who), []).append(sample)
    return groups
