"""How far a pair's figure is off, by the length of its slices.

Each pair is two fresh processes of the same code on one CPU. They take up one workload after another, and measure each
with slices of every length, each pair beginning with another one. How far a length's figure is from what the other
lengths found, each in its longest time, is the error of its slices. How far that is from 0 is the difference of the two
processes, which no slices can change, and what is left of the slices' errors. Prints Markdown::

    python benchmarks/pair_figures.py                    # about five minutes
    python benchmarks/pair_figures.py --only gae,sac     # some of the workloads
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Any, NamedTuple

import torch
from shared import print_table, tell

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.reference import PPO, SAC, ReplayBuffer, compute_gae, make_vec_env
from pytest_rlperf.components.replay import replay_workload
from pytest_rlperf.components.sac import sac_workload
from pytest_rlperf.components.thunk import thunk_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.measure.figures import by_wall
from pytest_rlperf.measure.pairs import Block, LogRatios
from pytest_rlperf.measure.placement import place, usable_cpus
from pytest_rlperf.measure.rounds import TURN_S, Clocks, slice_shape
from pytest_rlperf.measure.slices import Meter
from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Workload
from pytest_rlperf.suite.work import ACT_DIM, OBS_DIM, random_transitions

CPUS = usable_cpus()
SLICES_S = (2 * TURN_S, TURN_S, TURN_S / 2)
LENGTHS_S = (0.2, 0.4, 0.8, 1.6)  # of a pair
SLICES_LEAST = 12
WARM_UP_S = 0.2
PADDING_MOST = 4096  # bytes of environment, so that stacks begin at different addresses

# --------------------------------------------------------------------------- workloads


def _loop() -> Workload:
    def spin() -> int:
        state = 1
        for _ in repeat(None, 2000):
            state = (48271 * state) % 2147483647
        return state

    return thunk_workload(spin, items=2000, unit="step", setup=None, check=None)


def _buffer(rows: int) -> ReplayBuffer:
    buffer = ReplayBuffer(rows, OBS_DIM, ACT_DIM)
    buffer.add(*random_transitions(rows))
    return buffer


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "loop": _loop,
    "gae": lambda: gae_workload(compute_gae, n_steps=128, n_envs=8, backend="numpy"),
    "vecenv": lambda: vecenv_workload(make_vec_env("CartPole-v1", 8)),
    "replay": lambda: replay_workload(_buffer(100_000), batch_size=256),
    "sac": lambda: sac_workload(SAC(OBS_DIM, ACT_DIM, _buffer(10_000)), batch_size=256),
    "ppo": lambda: ppo_workload(PPO(make_vec_env("CartPole-v1", 8)), n_steps=128, items=None),
}

# --------------------------------------------------------------------------- in a process of a pair

_meters: list[Meter] = []  # one at the most


def prepare(name: str, cpu: int) -> None:
    """Make a workload in place of the last one, and run it once, on one CPU from then on."""
    while _meters:
        _meters.pop().thaw()
    torch.set_num_threads(1)
    _meters.append(Meter(WORKLOADS[name](), lambda: {}))
    _meters[0].check()
    place([cpu])


def warm_up(shape: Shape | None, limit_s: float) -> float:
    """Warm up, without kernels, and return the seconds of a call."""
    return _meters[0].warm_up(shape, limit_s, kernels=False).call_s


def take() -> SliceRecord:
    """Take a slice."""
    return _meters[0].take(SliceKind.PLAIN)


@contextlib.contextmanager
def fresh_process() -> Iterator[ProcessPoolExecutor]:
    """Start a process with its own hash seed and its own memory layout, which does what it is given in turn."""
    os.environ["PADDING"] = "." * random.randrange(PADDING_MOST)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(usable_cpus).result()  # it starts here, with this environment
        yield process


# --------------------------------------------------------------------------- pairs

Processes = tuple[ProcessPoolExecutor, ProcessPoolExecutor]  # base and head


class Turn(NamedTuple):
    """A slice, whose it is, and when it ended, in seconds since the first one began."""

    is_head: bool
    record: SliceRecord
    end_s: float


def in_both(processes: Processes, work: Callable[..., Any], *arguments: object) -> list[Any]:
    """Have both processes do something at once, and wait for both."""
    return [future.result() for future in [process.submit(work, *arguments) for process in processes]]


def take_pair(processes: Processes, *, head_first: bool) -> list[Turn]:
    """Take slices strictly in turn, for as long as the longest pair."""
    turns: list[Turn] = []
    start_s = time.monotonic()
    while not turns or turns[-1].end_s < LENGTHS_S[-1]:
        is_head = (len(turns) % 2 == 0) is head_first
        record = processes[is_head].submit(take).result()
        turns.append(Turn(is_head, record, time.monotonic() - start_s))
    return turns


def figure(turns: Sequence[Turn]) -> float:
    """Return the figure of every two slices that follow each other, as a live comparison makes it."""
    two = [turns[start : start + 2] for start in range(0, len(turns) - 1, 2)]
    blocks = [Block(*(turn.record for turn in sorted(pair, key=lambda turn: turn.is_head))) for pair in two]
    return LogRatios.of(blocks, by_wall, head_first=turns[0].is_head).figure()


Figures = dict[tuple[float, float], dict[int, float]]  # by the lengths of slices and of a pair: by pair


def measure(processes: Processes, index: int, name: str, calls_s: dict[str, float], found: Figures) -> None:
    """Measure a workload with slices of every length, in a pair of processes."""
    in_both(processes, prepare, name, CPUS[index % len(CPUS)])
    seconds = in_both(processes, warm_up, None, WARM_UP_S)
    call_s = calls_s.setdefault(name, seconds[1])  # the first pair's head sizes the slices of all
    first = index % len(SLICES_S)
    for slice_s in (*SLICES_S[first:], *SLICES_S[:first]):
        shape = slice_shape(call_s, Clocks.host().floor_ns, single=False, slice_s=slice_s)
        in_both(processes, warm_up, shape, 0.0)
        turns = take_pair(processes, head_first=index % 2 == 0)
        for length_s in LENGTHS_S:
            seen = [turn for turn in turns if turn.end_s <= length_s]
            if len(seen) >= SLICES_LEAST:
                found.setdefault((slice_s, length_s), {})[index] = figure(seen)


def rows(results: dict[str, Figures]) -> Iterator[list[str]]:
    """Yield how far figures are off, in percent, by workload, and by the lengths of slices and of a pair."""
    for name, found in results.items():
        for slice_s in SLICES_S:
            others = truths(found, [other for other in SLICES_S if other != slice_s])
            cells = []
            for length_s in LENGTHS_S:
                figures = found.get((slice_s, length_s), {})
                cells.append(off([figures[index] - truth for index, truth in others.items() if index in figures]))
            yield [name, f"{1e3 * slice_s:.1f} ms", *cells]


def truths(found: Figures, slices_s: Sequence[float]) -> dict[int, float]:
    """Return what slices of these lengths found in their longest time, averaged, by pair; without those too short."""
    longest = [found.get((slice_s, LENGTHS_S[-1]), {}) for slice_s in slices_s]
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
    parser.add_argument("--only", default=",".join(WORKLOADS), metavar="NAME,...", help="workloads (%(default)s)")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of processes (%(default)s)")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(unknown)} (there are {', '.join(WORKLOADS)})")
    results: dict[str, Figures] = {name: {} for name in names}
    calls_s: dict[str, float] = {}
    for index in range(options.pairs):
        with fresh_process() as base, fresh_process() as head:
            for name in names:
                measure((base, head), index, name, calls_s, results[name])
                tell(f"pair {index + 1} of {options.pairs}: {name}")
    print_table(["workload", "slices", *(f"{length_s:g} s" for length_s in LENGTHS_S)], rows(results))
    differences = (f"{name} {off(list(truths(found, SLICES_S).values()))}" for name, found in results.items())
    print(f"The processes of a pair seem to differ by: {', '.join(differences)}.")


if __name__ == "__main__":
    main()
