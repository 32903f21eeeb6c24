"""The counts of a tally that must be equal in all of its repetitions."""

from __future__ import annotations

import sys

from pytest_rlperf.counters.instrument import STEPS
from pytest_rlperf.model.measured import Tally

# There, peaks differ by what the interpreter's caches happen to hold, and may lie at the edge of a step.
_UNEVEN = {"host_peak_bytes": STEPS["host_peak_bytes"]} if sys.version_info[:2] == (3, 13) else {}


def exact(found: Tally, *, memory: bool = True) -> dict[tuple[str, str], int]:
    """Return the first repetition's counts by path and name, which the others repeat; ``memory`` if bytes do, too."""
    first, *others = [
        {(each.path, each.name): each.value for each in counts if memory or not each.name.endswith("_bytes")}
        for counts in found.repetitions
    ]
    for other in others:
        assert other.keys() == first.keys()
        assert {place for place in first if abs(first[place] - other[place]) > _UNEVEN.get(place[1], 0)} == set()
    return first
