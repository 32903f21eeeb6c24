"""The check of a run by tests that a change cannot affect: they are the same code on both sides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_rlperf.model.judged import Estimate

_FEWEST = 3


def shared_shift(estimates: Sequence[Estimate]) -> float | None:
    """Return the ratio by which most untouched tests have moved; None if they have not.

    Most have moved if more than half of the intervals lie on the same side of no change. By chance one in 200 of 99 %
    intervals lies on a given side.
    """
    if len(estimates) < _FEWEST:
        return None
    slower, faster = (sum(each) for each in ([e.low > 1 for e in estimates], [e.high < 1 for e in estimates]))
    is_shared = 2 * max(slower, faster) > len(estimates)
    return statistics.median(each.ratio for each in estimates) if is_shared else None
