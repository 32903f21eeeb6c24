"""How far a pair's figure is off, by the length of its slices, whose turn it is, and how the slices are compared.

Each pair is two fresh processes of the same code on one CPU. They take up one workload after another and measure each
by every scheme, each pair beginning with another one. How far a scheme's figure is from what the other schemes found,
each in its longest time, is the error of its slices. How far that is from 0 is the difference of the two processes,
which no scheme can change, and what is left of the slices' errors. Prints Markdown::

    python benchmarks/pair_figures.py                    # about eight minutes
    python benchmarks/pair_figures.py --only gae,sac     # some of the workloads
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from placement_workers import CPUS, WORKLOADS, Worker, ask_both, processes

from pytest_rlperf.measure.figures import by_wall, mean_log, trimmed_mean
from pytest_rlperf.measure.pairs import Block, LogRatios
from pytest_rlperf.measure.rounds import SLICE_S, TURN_S, Clocks, slice_shape
from pytest_rlperf.model.measured import SliceKind, SliceRecord

NAMES = ("loop", "gae", "vecenv", "replay", "sac", "ppo")
LENGTHS_S = (0.2, 0.4, 0.8, 1.6)  # of a pair
WARM_UP_S = 0.2


class Turn(NamedTuple):
    """A slice, whose it is, and when it ended, in seconds since the first one began."""

    is_head: bool
    record: SliceRecord
    end_s: float


def of_blocks(turns: Sequence[Turn]) -> float:
    """Return the trimmed mean over blocks of four slices, in each of which both sides are averaged first."""
    blocks = [turns[start : start + 4] for start in range(0, len(turns) - 3, 4)]
    sides = [[[turn.record for turn in block if turn.is_head is head] for head in (False, True)] for block in blocks]
    return trimmed_mean([mean_log(head, by_wall) - mean_log(base, by_wall) for base, head in sides])


def of_neighbours(turns: Sequence[Turn]) -> float:
    """Return the trimmed mean over every two slices that follow each other, as a live comparison does."""
    two = [turns[start : start + 2] for start in range(0, len(turns) - 1, 2)]
    blocks = [Block(*(turn.record for turn in sorted(pair, key=lambda turn: turn.is_head))) for pair in two]
    return LogRatios.of(blocks, by_wall, head_first=turns[0].is_head).figure()


@dataclass(frozen=True)
class Scheme:
    """A way to take a pair's slices, of ``slice_s`` seconds each, and to make one figure of them."""

    title: str
    order: str
    slice_s: float
    figure: Callable[[Sequence[Turn]], float]


SCHEMES = (
    Scheme("15 ms, ABBA BAAB, blocks", "ABBABAAB", SLICE_S, of_blocks),
    Scheme("15 ms, ABAB, neighbours", "AB", SLICE_S, of_neighbours),
    Scheme("7.5 ms, ABBA BAAB, blocks", "ABBABAAB", TURN_S, of_blocks),
    Scheme("7.5 ms, ABAB, neighbours", "AB", TURN_S, of_neighbours),
    Scheme("3.8 ms, ABAB, neighbours", "AB", TURN_S / 2, of_neighbours),
)

Figures = dict[tuple[str, float], dict[int, float]]  # by scheme and length of a pair: by pair


def take(workers: tuple[Worker, Worker], order: str, *, head_first: bool) -> list[Turn]:
    """Take turns for as long as the longest pair; ``order`` has A for who begins."""
    turns: list[Turn] = []
    start_s = time.monotonic()
    while not turns or turns[-1].end_s < LENGTHS_S[-1]:
        is_head = (order[len(turns) % len(order)] == "A") is head_first
        record = workers[is_head].take(SliceKind.PLAIN)
        turns.append(Turn(is_head, record, time.monotonic() - start_s))
    return turns


def measure(workers: tuple[Worker, Worker], index: int, name: str, calls_s: dict[str, float], found: Figures) -> None:
    """Measure a workload by every scheme, in a pair of processes."""
    for order in (("prepare", name), ("check",)):
        ask_both(workers, *order)
    for worker in workers:
        worker.place([CPUS[index % len(CPUS)]])
    if name not in calls_s:
        calls_s[name] = workers[1].warm_up(None, WARM_UP_S).call_s
    ask_both(workers, "warm_up", None, WARM_UP_S)
    first = index % len(SCHEMES)
    for scheme in (*SCHEMES[first:], *SCHEMES[:first]):
        shape = slice_shape(calls_s[name], Clocks.host().floor_ns, single=False, slice_s=scheme.slice_s)
        ask_both(workers, "warm_up", shape, 0.0)
        turns = take(workers, scheme.order, head_first=index % 2 == 0)
        for length_s in LENGTHS_S:
            seen = [turn for turn in turns if turn.end_s <= length_s]
            if len(seen) >= 12:
                found.setdefault((scheme.title, length_s), {})[index] = scheme.figure(seen)


def show(results: dict[str, Figures]) -> None:
    """Print how far figures are off, in percent, by scheme and length of a pair, and how far processes differ."""
    columns = [f"{length_s:g} s" for length_s in LENGTHS_S]
    print(f"| workload | slices | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for name, found in results.items():
        for scheme in SCHEMES:
            others = truths(found, [other for other in SCHEMES if other is not scheme])
            cells = []
            for length_s in LENGTHS_S:
                figures = found.get((scheme.title, length_s), {})
                cells.append(off([figures[index] - truth for index, truth in others.items() if index in figures]))
            print(f"| {name} | {scheme.title} | {' | '.join(cells)} |")
    differences = {name: off(list(truths(found, SCHEMES).values())) for name, found in results.items()}
    listed = ", ".join(f"{name} {cell}" for name, cell in differences.items())
    print(f"\nThe processes of a pair seem to differ by: {listed}.")


def truths(found: Figures, schemes: Sequence[Scheme]) -> dict[int, float]:
    """Return what ``schemes`` found in their longest time, averaged, by pair; without those too short."""
    longest = [found.get((scheme.title, LENGTHS_S[-1]), {}) for scheme in schemes]
    pairs = set.intersection(*(set(figures) for figures in longest))
    return {index: statistics.fmean(figures[index] for figures in longest) for index in sorted(pairs)}


def off(errors: Sequence[float]) -> str:
    """Return the root mean square in percent, and the largest; nothing where hardly a pair was long enough."""
    if len(errors) < 2:
        return ""
    rms = math.sqrt(statistics.fmean(error**2 for error in errors))
    return f"{100 * rms:.2f} ({100 * max(map(abs, errors)):.1f})"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,...", help="workloads (%(default)s)")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of processes (%(default)s)")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)} (there are {', '.join(WORKLOADS)})")
    results: dict[str, Figures] = {name: {} for name in names}
    calls_s: dict[str, float] = {}
    for index in range(options.pairs):
        with processes(index) as workers:
            for name in names:
                measure(workers, index, name, calls_s, results[name])
                print(f"pair {index + 1} of {options.pairs}: {name}", file=sys.stderr, flush=True)
    show(results)


if __name__ == "__main__":
    main()
