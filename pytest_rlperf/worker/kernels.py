"""Reference kernels: two fixed pieces of work, timed beside a workload, which stored times are relative to.

One moves with the pace of the processor alone. The other also reads memory at random, in about the proportion that a
replay buffer's sample does: a neighbour that fills the shared cache slows both of these by about as much, and leaves a
loop of Python as it is (``docs/evidence.md``). They use nothing but the interpreter and its standard library, so that
no package upgrade moves them; the interpreter's minor version is part of the machine class.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle
from operator import itemgetter

from pytest_rlperf.model.measured import SliceKind

_KERNEL_STEPS = 400
_MEMORY_BYTES = 16 << 20  # about as much as a replay buffer of 100k small transitions; larger than a core's own caches
_GATHERS = 32
_GATHERED = 2000


def make_kernels() -> dict[SliceKind, Callable[[], object]]:
    """Return both kernels by the kind of slice that runs them; one pair serves a process, the memory's takes room."""
    return {SliceKind.INTERPRETER: interpreter_kernel(), SliceKind.MEMORY: memory_kernel()}


def interpreter_kernel() -> Callable[[], object]:
    """Return a fixed amount of interpreter work: arithmetic, dict and list traffic, calls."""
    table = {index: float(index) for index in range(64)}
    cells = list(range(256))

    def mix(left: float, right: float) -> float:
        return 0.5 * (left + right)

    def kernel() -> float:
        total = 0.0
        state = 1
        for index in range(_KERNEL_STEPS):
            state = (1103515245 * state + 12345) & 0x7FFFFFFF
            cells[index & 255] = state & 63
            total = mix(total, table[cells[(index * 7) & 255] & 63])
        return total

    return kernel


def memory_kernel() -> Callable[[], object]:
    """Return the interpreter's work, and reads at random places of a buffer that a core's own caches do not hold."""
    places = random.Random(0)
    buffer = bytearray(b"\x01") * _MEMORY_BYTES  # written, so that every page of it is its own
    gathers = cycle([itemgetter(*(places.randrange(_MEMORY_BYTES) for _ in range(_GATHERED))) for _ in range(_GATHERS)])
    interpret = interpreter_kernel()

    def kernel() -> object:
        return interpret(), next(gathers)(buffer)

    return kernel
