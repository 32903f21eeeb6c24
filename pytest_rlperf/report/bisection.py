"""The report of a search for the first slower commit or release."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from pytest_rlperf import units
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.report.printable import harmless, shown
from pytest_rlperf.sides.prepare import Candidate

_MOST = 10  # commits named of a range


def comparison_lines(title: str, found: Mapping[str, Outcome | str]) -> list[str]:
    """Return a line on each test of a comparison: its verdict and change, or why there is none."""
    return [harmless(shown(f"{title}: {key}: {_result(outcome)}")) for key, outcome in found.items()]


def _result(outcome: Outcome | str) -> str:
    if isinstance(outcome, str):
        return outcome
    status, change = outcome.verdict.status.value, outcome.verdict.estimate
    if change is None:
        return status
    return f"{status} {units.change(change.ratio)} {units.interval(change.ratio, change.low, change.high)}"


def bisection_lines(
    left: Sequence[Candidate], tests: Sequence[str], found: Mapping[str, Outcome | str]
) -> Iterator[str]:
    """Yield the end of a search by ``tests``.

    ``left`` are the last good candidate and those behind it, up to the first that is known to be slower; ``found`` is
    the comparison of these two, empty where the search stopped before its end.
    """
    good, *others, bad = left
    command = harmless(shown(f"pytest --rlperf-bisect={good.range_to(bad)} {shlex.join(tests)}"))
    if not found:
        yield f"stopped: the first slower one is among {units.counted(len(left) - 1, 'candidate')}, up to {bad.title}"
        yield f"go on: {command}"
        return
    if others:
        before = units.counted(len(others), "candidate")
        yield f"the first slower one is {bad.title}, or one of {before} right before it, which have no verdict"
    else:
        yield f"{bad.title} is the first slower one"
    for each in [*others, bad][-_MOST:]:
        if each.about or others:
            yield harmless(shown(f"  {each.title} {each.about}".rstrip()))
    yield from comparison_lines(f"{bad.title} against {good.title}", found)
    if bad.about:
        yield f"look: git show {bad.spec}"
    yield f"again: {command}"
