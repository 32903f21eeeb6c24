"""Where the two workers of a live pair should sit, measured on equal sides beside a neighbour that comes and goes.

Both workers of a pair run the same code, so whatever their times differ by is error. Each pair is two fresh processes,
which take up one workload after another and measure each in every mode, as a live comparison does. A spinning neighbour
is on for about 4 s and off for about 6 s all the while. Prints Markdown tables and judges nothing::

    python benchmarks/placement.py                    # about twelve minutes
    python benchmarks/placement.py --only gae,loop    # some of the workloads
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import psutil
from placement_workers import CPUS, WORKLOADS, Worker, ask_both, processes

from pytest_rlperf.measure.figures import Clock, by_cpu, by_wall, never_waits, trimmed_mean
from pytest_rlperf.measure.one_side import BLOCKS_LEAST
from pytest_rlperf.measure.pairs import Block, Pair, slices_of
from pytest_rlperf.model.measured import Shape, SliceKind, Warm
from pytest_rlperf.units import seconds as in_words

WARM_UP_S = 0.2
LOOK_S = 0.2  # how long the CPUs are watched before the idlest is chosen; their clocks tick every 10 ms
RESAMPLES = 5000
PAIRS_LEAST = 5
ALONE_SHARE = 0.9
SINGLE_SHARE = 0.9  # of a workload's pairs: two threads on a busy machine look like one now and then
NEIGHBOUR = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + random.uniform(3, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(5, 7))
"""

# --------------------------------------------------------------------------- modes


def sit(pair: Pair, base: Collection[int], head: Collection[int]) -> None:
    """Keep both workers of a pair on the CPUs given."""
    pair.base.place(base)
    pair.head.place(head)


def kernel_chooses(pair: Pair, index: int, block: int) -> None:
    """Let both sides run wherever the kernel likes."""
    if block == 0:
        sit(pair, CPUS, CPUS)


def one_cpu(pair: Pair, index: int, block: int) -> None:
    """Keep both sides on one CPU, another per pair."""
    if block == 0:
        sit(pair, [CPUS[index % len(CPUS)]], [CPUS[index % len(CPUS)]])


def idlest_cpu(pair: Pair, index: int, block: int) -> None:
    """Keep both sides on the CPU that would have been the idlest without them just before."""
    if block:
        return
    sit(pair, CPUS, CPUS)
    before = psutil.cpu_times(percpu=True)
    own_s = dict.fromkeys(CPUS, 0.0)
    end_s = time.monotonic() + LOOK_S
    while time.monotonic() < end_s:
        taken = Block.take(pair, SliceKind.PLAIN)
        for record in taken:
            own_s[record.cpu] += record.cpu_s
    after = psutil.cpu_times(percpu=True)
    free_s = {cpu: own_s[cpu] + after[cpu].idle - before[cpu].idle for cpu in CPUS}
    cpu = max(free_s, key=lambda cpu: free_s[cpu])
    sit(pair, [cpu], [cpu])


def swapped_cpus(pair: Pair, index: int, block: int) -> None:
    """Give each side a CPU of its own, and the other's in the next block."""
    seats = [CPUS[index % len(CPUS)]], [CPUS[(index + 1) % len(CPUS)]]
    sit(pair, *(reversed(seats) if block % 2 else seats))


@dataclass(frozen=True)
class Mode:
    """A way to place the workers before each block; ``span`` blocks together, averaged, have each side everywhere."""

    title: str
    seat: Callable[[Pair, int, int], None]
    span: int = 1


MODES = {
    "kernel": Mode("as the kernel likes", kernel_chooses),
    "one": Mode("both on one CPU, another per pair", one_cpu),
    "idlest": Mode("both on the idlest CPU", idlest_cpu),
    "swapped": Mode("a CPU each, swapped every block", swapped_cpus, span=2),
}

# --------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Found:
    """What a pair found in a mode: its log-ratio by either clock, and the median slice's seconds per call.

    ``single`` says that warming up saw one thread at work and no children; ``alone`` that CPU time may stand in.
    """

    wall: float
    cpu: float
    alone: bool
    single: bool
    call_s: float
    blocks: int

    def __str__(self) -> str:
        clocks = f"wall {100 * self.wall:+.2f} %, CPU {100 * self.cpu:+.2f} %"
        return f"{clocks}, {in_words(self.call_s)}, {self.blocks} blocks{', alone' if self.alone else ''}"


def block_log_ratios(blocks: Sequence[Block], clock: Clock) -> list[float]:
    """Return the logarithm of head's time over base's in every block."""
    return [math.log(clock(block.head) / clock(block.base)) for block in blocks]


def measure(pair: Pair, warm: Sequence[Warm], mode: Mode, index: int, seconds: float) -> Found:
    """Take a pair's blocks in a mode, for about so many seconds."""
    blocks: list[Block] = []
    mode.seat(pair, index, 0)
    end_s = time.monotonic() + seconds
    while len(blocks) < BLOCKS_LEAST or len(blocks) % mode.span or time.monotonic() < end_s:
        if blocks:
            mode.seat(pair, index, len(blocks))
        blocks.append(Block.take(pair, SliceKind.PLAIN))
    sides = [slices_of(blocks, side) for side in ("base", "head")]
    wall, cpu = (
        trimmed_mean(np.reshape(block_log_ratios(blocks, clock), (-1, mode.span)).mean(axis=1).tolist())
        for clock in (by_wall, by_cpu)
    )
    call_s = statistics.median(record.call_s for side in sides for record in side)
    single = all(side.single for side in warm)
    alone = single and warm[0].shape.long and all(map(never_waits, sides))
    return Found(wall, cpu, alone, single, call_s, len(blocks))


def ready(
    workers: tuple[Worker, Worker], index: int, name: str, shapes: dict[str, Shape]
) -> tuple[Pair, Sequence[Warm]]:
    """Have both workers make, check and warm up a workload; the first pair's head sizes the slices of all."""
    base, head = workers
    for order in (("prepare", name), ("check",)):
        ask_both(workers, *order)
    if name not in shapes:
        shapes[name] = head.warm_up(None, WARM_UP_S).shape
    # Both at once, where a live comparison has one after the other: it takes half the time.
    return Pair(index, base, head, 0.0, 0.0), ask_both(workers, "warm_up", shapes[name], WARM_UP_S)


Results: TypeAlias = Mapping[str, Mapping[str, list[Found]]]


def run(names: Sequence[str], pairs: int, seconds: float) -> Results:
    """Measure every workload in every mode with so many pairs, each pair beginning with another mode."""
    results: dict[str, dict[str, list[Found]]] = {name: {mode: [] for mode in MODES} for name in names}
    shapes: dict[str, Shape] = {}
    started_s = time.monotonic()
    for index in range(pairs):
        with processes(index) as workers:
            for number, name in enumerate(names):
                pair, warm = ready(workers, index, name, shapes)
                first = (index + number) % len(MODES)
                for mode in [*MODES, *MODES][first : first + len(MODES)]:
                    found = measure(pair, warm, MODES[mode], index, seconds)
                    results[name][mode].append(found)
                    elapsed_s = time.monotonic() - started_s
                    say(f"{elapsed_s:4.0f} s, pair {index + 1} of {pairs}: {name:8} {mode:8} {found}")
    return results


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Run the neighbour beside the body."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


# --------------------------------------------------------------------------- tables


def log_ratios(found: Mapping[str, list[Found]], mode: str) -> list[float]:
    """Return a workload's log-ratios in a mode: of CPU time where the workload was alone but for a stray pair."""
    return [pair.cpu if is_alone(found) else pair.wall for pair in found[mode]]


def is_alone(found: Mapping[str, list[Found]]) -> bool:
    """Whether CPU time may stand in for a workload, in all modes alike."""
    return statistics.fmean(pair.alone for pairs in found.values() for pair in pairs) >= ALONE_SHARE


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print()
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")


def show_spreads(results: Results) -> None:
    """Print each mode's spread of a pair, and its median call."""
    rows = []
    for name, found in results.items():
        cells = []
        for mode, pairs in found.items():
            ratios = log_ratios(found, mode)
            call_s = statistics.median(pair.call_s for pair in pairs)
            largest = max(map(abs, ratios))
            cells.append(f"{100 * statistics.stdev(ratios):.2f} ({100 * largest:.1f}) {in_words(call_s)}")
        singles = [pair.single for pair in found["one"]]
        clock = "CPU" if is_alone(found) else "wall"
        rows.append([WORKLOADS[name][0], clock, f"{sum(singles)} of {len(singles)}", *cells])
    print_table(
        ["SD of a pair in % (largest), call", "clock", "single", *(mode.title for mode in MODES.values())], rows
    )


def show_ratios(results: Results) -> None:
    """Print the modes' spreads as multiples of those on one CPU."""
    single = [
        name
        for name, found in results.items()
        if statistics.fmean(pair.single for pair in found["one"]) >= SINGLE_SHARE
    ]
    groups = {WORKLOADS[name][0]: [name] for name in results} | {"geometric mean of the single-threaded": single}
    others = [mode for mode in MODES if mode != "one"]
    rows = [
        [title, *(spread_ratio([results[name] for name in names], mode) for mode in others)]
        for title, names in groups.items()
        if names
    ]
    print_table(["SD over that on one CPU [95 %]", *(MODES[mode].title for mode in others)], rows)


def spread_ratio(workloads: Sequence[Mapping[str, list[Found]]], mode: str) -> str:
    """Write the mean ratio of a mode's spreads to those on one CPU, with its bootstrap interval.

    A pair of processes measures all workloads in all modes, so pairs are what is drawn anew, with all they found.
    """
    samples = [np.array([log_ratios(found, each) for found in workloads]) for each in (mode, "one")]
    count = samples[0].shape[1]
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    spreads = [np.log(sample[:, draws].std(axis=-1)).mean(axis=0) for sample in samples]
    low, high = np.exp(np.percentile(spreads[0] - spreads[1], (2.5, 97.5)))
    ratio = math.exp(float(np.mean(np.log(samples[0].std(axis=1)) - np.log(samples[1].std(axis=1)))))
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="pairs of processes")
    parser.add_argument("--seconds", type=float, default=0.6, help="measuring time of a pair in a mode")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, parted by commas")
    options = parser.parse_args()
    names = [name for name in WORKLOADS if name in options.only.split(",")]
    if unknown := set(options.only.split(",")) - set(WORKLOADS):
        parser.error(f"--only={options.only}: {', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    if options.pairs < PAIRS_LEAST:
        parser.error(f"--pairs={options.pairs}: an interval needs {PAIRS_LEAST} at the least")
    if len(CPUS) < 2:
        parser.error("there is but one CPU to use")
    with neighbour():
        results = run(names, options.pairs, options.seconds)
    show_spreads(results)
    show_ratios(results)
    print(f"\n{len(CPUS)} CPUs, load average {os.getloadavg()[2]:.1f} over the last 15 minutes")


if __name__ == "__main__":
    main()
