"""Reference kernels: two fixed pieces of work, timed beside a workload, which stored times are relative to.

One depends only on the pace of the processor. The other also reads memory at random, in about the same proportion as a
replay buffer's sample: a neighbour that fills the shared cache slows both by about as much, but not a Python loop
(``docs/evidence.md``). The kernels use only the interpreter and its standard library, so that no package upgrade
changes them; the interpreter's minor version is part of the machine class.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from operator import itemgetter

from pytest_rlperf.model.measured import SliceKind

_KERNEL_STEPS = 400
_MEMORY_BYTES = 16 << 20  # about as much as a replay buffer of 100k small transitions; larger than a core's own caches
_GATHERS = 32
_GATHERED = 2000


def make_kernels() -> dict[SliceKind, Callable[[], object]]:
    """Return both kernels by the kind of slice that runs them; a process needs one pair, as the buffer takes memory."""
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
    """Return the interpreter's work with reads at random places in a buffer larger than a core's own caches."""
    buffer = bytearray(b"\x01") * _MEMORY_BYTES  # written, so that every page of it is its own
    draw = partial(random.Random(0).getrandbits, _MEMORY_BYTES.bit_length())
    places = filter(_MEMORY_BYTES.__gt__, iter(draw, -1))  # as randrange draws them, in half of its time
    gathers = cycle([itemgetter(*islice(places, _GATHERED)) for _ in range(_GATHERS)])
    interpret = interpreter_kernel()

    def kernel() -> object:
        return interpret(), next(gathers)(buffer)

    return kernel
