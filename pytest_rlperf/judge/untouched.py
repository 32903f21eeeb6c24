"""What tests that a change cannot matter to say of a run: they are the same code on both sides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_rlperf.model.judged import Estimate

_FEWEST = 3


def shared_shift(estimates: Sequence[Estimate]) -> float | None:
    """Return the ratio by which most of untouched tests have moved, None where they have not.

    Most have where more than half of the intervals lie on the same side of no change. By chance that is one of 200 for
    each interval of 99 %.
    """
    if len(estimates) < _FEWEST:
        return None
    slower, faster = (sum(each) for each in ([e.low > 1 for e in estimates], [e.high < 1 for e in estimates]))
    is_shared = 2 * max(slower, faster) > len(estimates)
    return statistics.median(each.ratio for each in estimates) if is_shared else None
