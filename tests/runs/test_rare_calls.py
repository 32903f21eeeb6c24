"""Whole runs in which the head is slower on rare calls alone, written for this suite; the changes are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from example import FAILED, Example

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    """A library in two versions, the call of its test, and the least change that is right."""

    name: str
    library: str
    base: str
    head: str
    call: str
    least: float


WALKER = """
    import gymnasium
    import numpy as np

    class Walker(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float64)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.table = 0, [i * 0.5 for i in range(ROWS)]
            return np.zeros(4), {}

        def step(self, action):
            self.t += 1
            return np.full(4, 0.5), 1.0, self.t >= 60, False, {}
"""
AGENT = """
    import random

    class Agent:
        def __init__(self):
            self.updates = 0

        def update(self):
            total = sum(i * i for i in range(4_000))
            self.updates += 1
            if RARELY:
                total += sum(range(EXTRA))
            return 1
"""
OF_TWELVE, BY_CHANCE = (
    AGENT.replace("RARELY", condition)
    for condition in ("self.updates % 12 == 0", "random.SystemRandom().random() < 0.08")
)
COLLECTING = """
    import gc

    HEAP = [{"id": i} for i in range(200_000)]

    def update():
        total = sum(i * i for i in range(30_000))
        EXTRA
        return 1
"""
CASES = [
    Case("a reset", WALKER, "100", "30_000", "rlperf_vecenv_step(lib.Walker())", 3.0),
    Case("every twelfth update", OF_TWELVE, "1", "100_000", "rlperf(lib.Agent().update)", 0.15),
    Case("updates at random", BY_CHANCE, "1", "400_000", "rlperf(lib.Agent().update)", 0.3),
    Case("a full collection", COLLECTING, "pass", "gc.collect()", "rlperf(lib.update)", 3.0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_a_slowdown_of_rare_calls_fails(tmp_path: Path, case: Case) -> None:
    """The test is SLOWER by at least what it should be, and its report shows what a call takes on average."""
    if "gymnasium" in case.library:
        pytest.importorskip("gymnasium")
    fixture = case.call.partition("(")[0]
    test = f"import lib\n\n\ndef test_it({fixture}):\n    {case.call}\n"
    example = Example(tmp_path, {"pytest.ini": "[pytest]\npythonpath = .\n", "test_it.py": test})

    def version(extra: str) -> dict[str, str]:
        return {"lib.py": case.library.replace("ROWS", extra).replace("EXTRA", extra)}

    example.write(version(case.base))
    example.commit()
    example.write(version(case.head))
    run = example.pytest("--rlperf-against=HEAD", code=FAILED)
    assert run.statuses == {"test_it": "SLOWER"}
    assert run.tests["test_it"]["verdict"]["estimate"]["ratio"] > 1 + case.least
    assert "a usual call takes" in run.reasons["test_it"]
