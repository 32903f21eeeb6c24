"""The counting pass of a test's workers: the first shows whether there is time, and the others follow."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model.measured import Tally
from pytest_rlperf.pair.processes import Worker, ask_all
from pytest_rlperf.wire import REPETITIONS, Count, CountAll

_LENIENCE = 4.0  # times the first worker's limit, for the others: their calls are as long, but for a cold start


def count_in(workers: Sequence[Worker], order: CountAll) -> list[Tally | None]:
    """Let workers, which have checked their component, count; return each one's counts, None if it has none.

    The first worker decides for all. If calls are too long for its limit, no other counts. If it counted a long call
    once, or only garbage, so do the others. They count the same calls by number, as a reset comes at a certain one. If
    a call fails while it is counted, no other counts it.
    """
    __tracebackhide__ = True
    first, *others = workers
    if first.checked_s > order.longest_first_s:
        note = f"not counted: the first call took {units.seconds(first.checked_s)}"
        return [Tally((), (f"{note}; a longer --rlperf-max-time leaves time for it",))] * len(workers)
    found = first.ask(Count(REPETITIONS, order.limit_s, order.instruments))
    if found.has_failed:
        return [found, *[None] * len(others)]
    if not found.repetitions:
        return [found] * len(workers)
    following = Count(len(found.repetitions), _LENIENCE * order.limit_s, [*found.instruments], found.looks)
    return [found, *ask_all(others, following)]
