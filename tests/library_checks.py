"""What the tests of several libraries' adapters have in common."""

from __future__ import annotations

import re
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
            call()
    return {phase.path: phase for phase in recorded.phases(calls)}


def assert_accounted(phases: dict[str, Phase], root: str, names: tuple[str, ...], share: float = 0.1) -> None:
    """Assert that the phases within ``root`` are ``names``, and that no more than ``share`` of it is in none."""
    within = [path.removeprefix(f"{root}/") for path in phases if path.startswith(f"{root}/")]
    assert {path for path in within if "/" not in path} == set(names)
    whole = phases[root]
    assert whole.self_s <= share * whole.total_s, f"{whole.self_s / whole.total_s:.1%} of {root} is in no phase"


def write_documented_tests(pytester: pytest.Pytester, library: str) -> None:
    """Make a test file, ``test_documented.py``, of the examples on a library's page."""
    text = (DOCS / f"{library}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    pytester.makepyfile(test_documented="\n\n".join(blocks))
