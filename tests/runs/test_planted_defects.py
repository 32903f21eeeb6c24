"""Defects as libraries really have had them, planted in the reference components: each is found by what is counted.

No time is taken into account, so none of this depends on the machine.
"""

from __future__ import annotations

from functools import cache

import pytest

from pytest_rlperf.judge.counters import compare
from pytest_rlperf.model.measured import Counting
from pytest_rlperf.report.wording import changes_text
from pytest_rlperf.run.counting import learn
from pytest_rlperf.wire import Count
from pytest_rlperf.worker.counting import count

pytestmark = pytest.mark.torch


@cache
def counted(kind: str, first_seed: int = 1) -> Counting:
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'pytest-rlperf[rl]'")
    import planted_defects

    tallies = []
    for seed in (first_seed, first_seed + 1):
        workload = planted_defects.made(kind, seed)
        workload.check()
        tallies.append(count(workload, Count(2, 60.0)))
        workload.close()
    counting = learn(tallies)
    assert counting is not None
    return counting


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SAC", "PPO"])
def test_nothing_is_found_in_a_healthy_component(kind: str) -> None:
    """Counts of one component are the same in other workers, with other seeds."""
    assert not compare(counted(kind), counted(kind, 11), ("*",))


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("ItemInTheLoss", "sac_update/critic", "ops:aten::_local_scalar_dense"),
        ("TargetTwice", "sac_update/target_q", "ops:aten::addmm"),
        ("Float64Rewards", "sac_update/target_q", "float64_ops"),
        ("TargetWithGradients", "sac_update/target_q", "grad_ops"),
        ("CopiesTheBatch", "sac_update/sample/convert", "native_calls:numpy"),
        ("ListsAndStacks", "ppo_collect", "native_calls:numpy"),
        ("CopiesObservations", "ppo_collect/policy", "ops:aten::clone"),
        ("CollectsWithGradients", "ppo_collect/policy", "grad_ops"),
    ],
)
def test_a_planted_defect_is_named(kind: str, path: str, name: str) -> None:
    """It is more of what it is, in the phase that it is in and in no other beside."""
    changes = compare(counted("PPO" if path.startswith("ppo") else "SAC"), counted(kind), ("*",))
    named = [change for change in changes if (change.path, change.name) == (path, name)]
    assert named, changes_text(changes)
    assert named[0].is_more
    places = {change.path for change in changes if change.name == name}
    assert not {other for other in places if not (path.startswith(other) or other.startswith(path))}
