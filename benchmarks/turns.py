"""Measures that take turns in one run, what follows from pairing them, and the tables that show it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Samples = dict[str, list[float]]


def take_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> Samples:
    """Call every measure once a round, each round beginning with another one; return the samples of each."""
    names = list(measures)
    samples: Samples = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(measures[name]())
    return samples


def paired(samples: Samples, name: str, other: str, relation: Callable[[float, float], float]) -> float:
    """Return the median over the rounds of a relation between two measures."""
    return statistics.median(map(relation, samples[name], samples[other]))


def difference(one: float, other: float) -> float:
    """Return how much more ``one`` is."""
    return one - other


def ratio(one: float, other: float) -> float:
    """Return how many times as much ``one`` is."""
    return one / other


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their heads, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ", "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
