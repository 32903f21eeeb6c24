"""Series of tests: the finding on how the time of a call grows with a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from pytest_rlperf.fixtures import result_key
from pytest_rlperf.judge.findings import scale
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Result


class Series:
    """Tests that differ only in one number; the time of a call follows a law in that number."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._place: dict[str, tuple[str, float]] = {}
        for item in items:
            parameters = dict(getattr(getattr(item, "callspec", None), "params", {}))
            numbers = {
                name: value
                for name, value in parameters.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
            if len(numbers) == 1:
                ((name, size),) = numbers.items()
                others = sorted((other, repr(value)) for other, value in parameters.items() if other != name)
                self._place[result_key(item)] = f"{item.nodeid.partition('[')[0]} {others}", float(size)
        self._wanted = Counter(series for series, _ in self._place.values())
        self._points: dict[str, dict[float, scale.ScalePoint]] = {}

    def add(self, head: Result, live: Live | None, policy: Policy) -> Finding | None:
        """Add a test's figures; return the finding of its series if the test is the last one of it."""
        series, size = self._place.get(head.nodeid, ("", 0.0))
        if not series or live is None or len(live.pairs) < 2 or policy.findings["scale"] == OFF:
            return None
        counts = (_exact(live.base), _exact(head))
        points = self._points.setdefault(series, {})
        points[size] = scale.ScalePoint(size, live.log_ratios, live.base.call_s, *counts)
        is_last = len(points) == self._wanted[series] >= scale.POINTS_LEAST
        return scale.find(list(points.values()), policy) if is_last else None


def _exact(result: Result) -> Mapping[str, int]:
    """Return the exact counts of a whole call."""
    phases = () if result.counting is None else result.counting.phases
    return next((phase.exact for phase in phases if not phase.path), {})
