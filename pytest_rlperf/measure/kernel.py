"""The reference kernel: a fixed piece of work that stored times are told relative to.

What slows a machine down for a while slows the kernel down too, so the ratio of a workload's time to the kernel's,
taken in turns within tens of milliseconds, holds still where the times do not. It uses nothing but the interpreter,
so that no package upgrade moves it; the interpreter's minor version is part of the machine class.
"""

from __future__ import annotations

from collections.abc import Callable

VERSION = 1  # raise it with any change to the work below: figures relative to another kernel are not comparable

_ROUNDS = 400


def make_kernel() -> Callable[[], object]:
    """Return the kernel: interpreter work (arithmetic, dict and list traffic, calls) of a fixed amount."""
    table = {index: float(index) for index in range(64)}
    cells = list(range(256))

    def mix(left: float, right: float) -> float:
        return 0.5 * (left + right)

    def kernel() -> float:
        total = 0.0
        state = 1
        for index in range(_ROUNDS):
            state = (1103515245 * state + 12345) & 0x7FFFFFFF
            cells[index & 255] = state & 63
            total = mix(total, table[cells[(index * 7) & 255] & 63])
        return total

    return kernel
