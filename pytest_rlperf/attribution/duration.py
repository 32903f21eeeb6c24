"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start_ns) / 1e9
