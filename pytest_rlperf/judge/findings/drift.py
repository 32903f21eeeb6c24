"""Drift: the more calls were made, the slower calls of the head get, compared with the base's.

Pairs end as soon as their figures agree, so a cost that grows with a long episode is hardly in them. If the pairs hint
at one, the first pair goes on for longer, and its later calls are compared with the first calls of all pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_rlperf.judge.findings import growth
from pytest_rlperf.judge.policy import finding
from pytest_rlperf.judge.stats import bound_above, rising_chance
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live, Reading

_PAIRS_LEAST = 3
_READINGS_LEAST = 4  # the first is before all slices, so that these bound three stretches
_LEAST = 0.1  # slower at the end than at the start
_SURELY = 0.05
_OF_ALPHA = 0.25  # the part of the run's error rate for this kind, beside the time's
_HINT = 0.05  # the error rate of a hint by time


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how much slower the head gets within a pair, if the bound shows it, or in the pair that went on."""
    level = _OF_ALPHA / 2 * policy.alpha / policy.tests  # of each of the two looks
    found = _in_longer(live, level) or _within_pairs(live, level)
    if found is None:
        return None
    return finding(policy, "drift", found, {"ratio": found.ratio, "calls": found.calls})


def hints(live: Live) -> bool:
    """Whether the head may get slower: its pairs show it, or point that way while a side keeps more with every call."""
    runs = _long_enough(live, _READINGS_LEAST - 1)
    if not runs:
        return False
    rises = [_rise(readings) for readings in runs]
    sides = ([[getattr(reading, side) for reading in readings] for readings in runs] for side in ("base", "head"))
    kept = {name for usages in sides if (found := growth.of_one_side(usages)) is not None for name in found.more}
    if not kept <= growth.ALLOCATED:  # thousands of calls would run out of files or processes
        return False
    return _is_above(0.0, rises, _HINT) or (bool(kept) and statistics.fmean(rises) > 0)


def _within_pairs(live: Live, level: float) -> facts.Drift | None:
    runs = _long_enough(live, _READINGS_LEAST)
    if not runs:
        return None
    rises = [_rise(readings) for readings in runs]
    mean = statistics.fmean(rises)
    if mean < math.log1p(_LEAST) or not _is_above(math.log1p(_SURELY), rises, level):
        return None
    return facts.Drift(math.exp(mean), round(statistics.fmean(_calls(readings) for readings in runs)))


def _in_longer(live: Live, level: float) -> facts.Drift | None:
    """Return the drift of the pair that went on, if its stretches are hardly out of order."""
    if len(live.longer) < _READINGS_LEAST or not hints(live):
        return None
    later = [reading.log_ratio for reading in live.longer[1:]]
    first = statistics.fmean(pair.readings[1].log_ratio for pair in live.pairs)
    is_slower = later[-1] - max(first, later[0]) >= math.log1p(_LEAST)
    if not is_slower or rising_chance(later) > level:
        return None
    return facts.Drift(math.exp(later[-1] - first), live.longer[-1].head.calls - live.pairs[0].readings[0].head.calls)


def _long_enough(live: Live, least: int) -> list[Sequence[Reading]]:
    """Return the readings of all pairs, if there are enough of both."""
    runs = [pair.readings for pair in live.pairs if len(pair.readings) >= least]
    return [] if len(runs) < max(_PAIRS_LEAST, len(live.pairs)) else list(runs)


def _rise(readings: Sequence[Reading]) -> float:
    return readings[-1].log_ratio - readings[1].log_ratio


def _is_above(least: float, rises: Sequence[float], level: float) -> bool:
    """Whether the mean's lower bound is above ``least``."""
    error = statistics.stdev(rises) / math.sqrt(len(rises))
    return bound_above(least, statistics.fmean(rises), error, len(rises) - 1, level) is not None


def _calls(readings: Sequence[Reading]) -> int:
    return readings[-1].head.calls - readings[0].head.calls
