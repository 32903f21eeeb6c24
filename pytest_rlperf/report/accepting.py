"""What to say where a slowdown is meant, and to do where an improvement is to stay; standard library only."""

from __future__ import annotations

import math

from pytest_rlperf import units
from pytest_rlperf.report.printable import shown

SAVING = "pytest --rlperf-save-baseline"


def trailer(key: str, ratio: float | None, high: float | None) -> str:
    """Return the line of a commit message that accepts how much slower the test of ``key`` is, less the reason.

    ``ratio`` is the change with ``high`` its upper bound, None where it is not its time that the test is slower by.
    """
    _, _, name = key.partition("::")
    # Parameters are left open, as brackets mean something in patterns.
    name, bracket, _ = (name or key).partition("[")
    what = "counts" if ratio is None else f"<= +{_whole_percent(ratio, high)}%"
    return f"Rlperf-Accept: {shown(name)}{'*' if bracket else ''} {what}"


def _whole_percent(ratio: float, high: float | None) -> int:
    """Return the whole percentage that a change surely stays under: measured again, it will not be just the same."""
    known = [each for each in (ratio, high) if each is not None and math.isfinite(each)]
    return max(1, *(math.ceil(round(100 * (each - 1), 6)) for each in known)) if known else 1


def improved(count: int) -> str:
    """Ask that what got faster than what is stored, by more than the tolerance, be made the new baseline."""
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    return f"{units.counted(count, 'test')} {verb} faster than {whose} baseline: store the new figures to hold on to it"
