"""The checks that tests of several libraries' adapters share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_rlperf.model import Phase, Workload
from pytest_rlperf.probes import attached
from pytest_rlperf.timers import recording

DOCS = Path(__file__).parents[1] / "docs" / "libraries"


def harvested(workload: Workload, calls: int) -> dict[str, Phase]:
    """Return the phases, by their paths, that traced calls of a checked workload record."""
    call, probes = workload.call, workload.probes
    if workload.harvest is not None:
        call, probes = workload.harvest.call, workload.harvest.probes
    with attached(probes), recording() as recorded:
        for _ in range(calls):
            if workload.setup is not None:
                workload.setup()
            call()
    return {phase.path: phase for phase in recorded.phases(calls)}


def assert_parts(phases: dict[str, Phase], root: str, names: tuple[str, ...]) -> None:
    """Assert that the phases right within ``root`` are ``names``."""
    within = [path.removeprefix(f"{root}/") for path in phases if path.startswith(f"{root}/")]
    assert {path for path in within if "/" not in path} == set(names)


def assert_counts(workload: Workload, real_steps: Callable[[], float]) -> None:
    """Check a workload, and compare its count with the steps that there were, over slices of several lengths."""
    workload.check()
    assert workload.count is not None
    workload.count()
    for calls in (1, 1, 1, 2, 7, 1, 40, 3, 1):
        before = real_steps()
        for _ in range(calls):
            workload.call()
        steps = real_steps() - before
        assert workload.count() == steps
        assert workload.count() == 0, "nothing new has been stepped"


def documented_tests(page: str) -> str:
    """Return the examples on a library's page as one module."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def write_documented_tests(pytester: pytest.Pytester, page: str) -> None:
    """Make a test file, ``test_documented.py``, of the examples on a library's page."""
    pytester.makepyfile(test_documented=documented_tests(page))
