"""Which phases carry a change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pytest_rlperf import units

_BLOCKS_LEAST = 3  # fewer have no spread to speak of
_SURELY = 2.0  # standard errors
_MAD_TO_SD = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)  # standard errors of the two, likewise
_CARRIES = 0.8  # of the change: enough phases named
_NAMED_MOST = 3
_MINOR = 0.1  # of the change: not worth a name
_MOSTLY = 0.5  # of the change: under it, the phases named do not explain it


def contributions(
    blocks: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], base_call_s: float, change_s: float
) -> tuple[tuple[str, float], ...]:
    """Return what every phase adds to a change of ``change_s`` a call, in seconds, those that carry it first.

    ``blocks`` are traced ones: each side's seconds in a phase and none of its children, by path, as multiples of that
    block's call of base, so that the machine's pace cancels; a phase that one side does not have takes it none. The
    last entry, with an empty path, is what no phase accounts for: what was not timed, and differences too small to be
    told from noise. So all of them add up to the change. Where there are too few blocks to tell, there are no parts.
    """
    if len(blocks) < _BLOCKS_LEAST:
        return ()
    paths = dict.fromkeys(path for block in blocks for side in block for path in side)
    found = []
    for path in paths:
        differences = [head.get(path, 0.0) - base.get(path, 0.0) for base, head in blocks]
        median = statistics.median(differences)
        if abs(median) > _SURELY * _standard_error(differences):
            found.append((path, base_call_s * median))
    found.sort(key=lambda entry: entry[1], reverse=change_s >= 0)
    return (*found, ("", change_s - math.fsum(part_s for _, part_s in found)))


def told(contributions: Sequence[tuple[str, float]], change_s: float) -> str:
    """Name the few phases that carry a change: ``critic/backward +1.9 of +2.1 ms``."""
    if not contributions:
        return "too few traced turns to tell which phase carries it: raise --rlperf-max-time"
    named: list[tuple[str, float]] = []
    for path, part_s in contributions:
        if not path or part_s * change_s <= _MINOR * change_s**2 or len(named) == _NAMED_MOST:
            break
        named.append((path, part_s))
        if _share(named, change_s) >= _CARRIES:
            break
    if not named or _share(named, change_s) < _MOSTLY:
        return "no phase by itself carries it"
    *parts, whole = units.changes_s([*(part_s for _, part_s in named), change_s])
    phases = ", ".join(f"{path} {part}" for (path, _), part in zip(named, parts, strict=True))
    return f"{phases} of {whole}"


def _share(named: Sequence[tuple[str, float]], change_s: float) -> float:
    """Return how much of the change the phases named add up to."""
    return math.fsum(part_s for _, part_s in named) / change_s


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a median, by the median absolute deviation, which a stall does not move."""
    center = statistics.median(values)
    deviation = statistics.median(abs(value - center) for value in values)
    return _MEDIAN_TO_MEAN * _MAD_TO_SD * deviation / math.sqrt(len(values))
