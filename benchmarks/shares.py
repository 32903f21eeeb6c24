"""The error of "where the time goes", on mixes of two parts whose owners are known.

The parts are timed by themselves, in turns, which gives the shares that their mix must have. Prints a table and judges
nothing: ``python benchmarks/shares.py``.

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from timeit import timeit

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from shared import percent, print_table

from pytest_rlperf.worker.shares import shares

CALLS = 200
BIG, SMALL, TINY = np.ones((200, 200)), np.ones(1000), np.ones(4)
Part = Callable[[], object]


def arithmetic(steps: int = 1000) -> float:
    """Compute with floats."""
    total = 0.0
    for step in range(steps):
        total = 0.5 * total + step
    return total


def repeated(times: int, part: Part) -> Part:
    """Return a function that calls a part so many times."""

    def work() -> None:
        for _ in range(times):
            part()

    return work


def operators(times: int, array: NDArray[np.float64]) -> None:
    """Multiply an array by itself."""
    for _ in range(times):
        array * array


class Walk:
    """An environment in Python."""

    def reset(self) -> None:
        """Begin again."""

    def step(self, action: float) -> float:
        """Take a step."""
        return action + arithmetic(500)


def layers() -> Part:
    """Return passes through a layer of PyTorch's."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    weights, rows = torch.ones(64, 64), torch.ones(64, 64)
    return repeated(3, lambda: torch.relu(rows @ weights))


def parts() -> dict[str, tuple[str, Part]]:
    """Return each part with its owner; without PyTorch's where it is not installed."""
    walk = Walk()
    found: dict[str, tuple[str, Part]] = {
        "arithmetic": ("python", arithmetic),
        "functions": ("python", repeated(30, partial(arithmetic, 20))),
        "tiny_functions": ("python", repeated(200, partial(arithmetic, 0))),
        "walks": ("environment", repeated(2, lambda: walk.step(1.0))),
        "reductions": ("numpy", repeated(3, BIG.sum)),
        "stacks": ("numpy", repeated(20, partial(np.concatenate, (SMALL, SMALL)))),
        "products": ("numpy", partial(operators, 40, SMALL)),
        "tiny_products": ("numpy", partial(operators, 100, TINY)),
    }
    with suppress(ImportError):
        found["layers"] = ("pytorch", layers())
    return found


MIXES = (
    ("arithmetic", "reductions products stacks tiny_products layers"),
    ("functions", "reductions products layers"),
    ("walks", "functions products"),
    ("tiny_functions", "reductions tiny_products"),
)


def rows() -> Iterator[list[str]]:
    """Yield the first part's share of each mix, timed by itself and as found."""
    known = parts()
    pairs = [(name, other) for name, others in MIXES for other in others.split() if other in known]
    for name, other in pairs:
        (owner, first), (_, second) = known[name], known[other]

        def mix(first: Part = first, second: Part = second) -> None:
            first()
            second()

        seconds = [(timeit(first, number=1), timeit(second, number=1)) for _ in range(CALLS)]
        first_s, second_s = (statistics.median(values) for values in zip(*seconds, strict=True))
        share = first_s / (first_s + second_s)
        table = {each.name: each.share for each in shares(mix, setup=None, calls=CALLS)}
        found = table.get(owner, 0.0)
        off = f"{100 * (found - share):+.1f}"
        yield [name, other, owner, percent(share), percent(found), off, percent(table["unattributed"])]


if __name__ == "__main__":
    print(f"CPython {platform.python_version()}, NumPy {np.__version__}; the first part's share, in one thread")
    print_table(["first part", "second part", "owner", "known", "found", "off", "unattributed"], rows())
