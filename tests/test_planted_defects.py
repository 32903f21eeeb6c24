"""Defects as libraries really have had them, planted in the reference components: each is found by what is counted.

No time is taken into account, so none of this depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'pytest-rlperf[rl]'")

import numpy as np  # noqa: E402 - after what says why this cannot run

from pytest_rlperf.components.ppo import ppo_workload  # noqa: E402
from pytest_rlperf.components.reference.ppo import (  # noqa: E402
    PPO,
    SYNTHETIC_ID,
    make_vec_env,
)
from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer  # noqa: E402
from pytest_rlperf.components.updates import sac_workload  # noqa: E402
from pytest_rlperf.judge.counters import compare  # noqa: E402
from pytest_rlperf.measure.counting_pass import count, learn  # noqa: E402
from pytest_rlperf.model.counting import CounterChange, Counting  # noqa: E402
from pytest_rlperf.model.measured import Workload  # noqa: E402
from pytest_rlperf.report.wording import changes_text  # noqa: E402

if TYPE_CHECKING:
    from pytest_rlperf.components.reference.sac import Batch

pytestmark = pytest.mark.torch
OBS_DIM, ACT_DIM, BATCH, STEPS, ENVS = 5, 2, 16, 6, 2


class ItemInTheLoss(SAC):
    """Logs a loss in every update, and waits for it."""

    def _update_critic(self, batch: Batch, target: Any) -> Any:
        loss = super()._update_critic(batch, target)
        self.logged = loss.item()
        return loss


class TargetTwice(SAC):
    """Evaluates the target network once more than it has to."""

    def target_q(self, batch: Batch) -> Any:
        with torch.no_grad():
            self.target_critic(batch.next_obs, batch.actions)
        return super().target_q(batch)


class Float64Rewards(SAC):
    """Has rewards in double precision, as NumPy gives them by itself, and computes the targets in it."""

    def target_q(self, batch: Batch) -> Any:
        return super().target_q(batch._replace(rewards=batch.rewards.double())).float()


class TargetWithGradients(SAC):
    """Lets autograd record the target, which nothing is ever derived from."""

    def target_q(self, batch: Batch) -> Any:
        return SAC.target_q.__wrapped__(self, batch).detach()  # type: ignore[attr-defined]


class CopiesTheBatch(ReplayBuffer):
    """Copies what it samples once more on its way into tensors."""

    def _tensor(self, column: Any) -> Any:
        return super()._tensor(np.array(column))


def sac(kind: type[SAC], seed: int, buffer_kind: type[ReplayBuffer] = ReplayBuffer) -> Workload:
    """Return the update of an agent of ``kind`` on random transitions."""
    rng = np.random.default_rng(seed)
    buffer = buffer_kind(64, OBS_DIM, ACT_DIM, seed)
    obs, next_obs = rng.normal(size=(2, 64, OBS_DIM))
    buffer.add(obs, rng.uniform(-1, 1, (64, ACT_DIM)), rng.normal(size=64), next_obs, np.zeros(64))
    return sac_workload(kind(OBS_DIM, ACT_DIM, buffer, hidden=8, seed=seed), BATCH)


class ListsAndStacks(PPO):
    """Collects into lists, stacked in the end, instead of arrays made once."""

    def _storage(self, n_steps: int) -> Any:
        all_obs, rollout = super()._storage(n_steps)
        stacked = np.stack([np.array(row) for row in all_obs])
        return stacked, rollout


class CopiesObservations(PPO):
    """Copies each observation once more on its way to the policy."""

    def _tensor(self, array: Any) -> Any:
        return super()._tensor(array).clone()


class CollectsWithGradients(PPO):
    """Lets autograd record the policy's passes while it collects."""

    def collect(self, n_steps: int) -> Any:
        act = self.model.act
        with torch.no_grad():
            self.model.act = lambda *args: tuple(part.detach() for part in torch.enable_grad()(act)(*args))  # type: ignore[method-assign]
            try:
                return super().collect(n_steps)
            finally:
                del self.model.act


def ppo(kind: type[PPO], seed: int) -> Workload:
    """Return a rollout of an agent of ``kind`` in envs whose episodes are all as long."""
    return ppo_workload(kind(make_vec_env(SYNTHETIC_ID, ENVS), hidden=8, seed=seed), STEPS, None)


def counted(make: Callable[[int], Workload]) -> Counting:
    tallies = []
    for seed in (1, 2):
        workload = make(seed)
        workload.check()
        tallies.append(count(workload, 2, limit_s=60.0))
        workload.close()
    counting = learn(tallies)
    assert counting is not None
    return counting


@cache
def healthy(component: str) -> Counting:
    return counted(lambda seed: sac(SAC, seed) if component == "sac" else ppo(PPO, seed))


def found(component: str, make: Callable[[int], Workload]) -> tuple[CounterChange, ...]:
    """Return how the counts of a component with a defect differ from those of the healthy one."""
    return compare(healthy(component), counted(make), ("*",))


@pytest.mark.slow
def test_nothing_is_found_in_a_healthy_component() -> None:
    """Counts of one component are the same in other workers, with other seeds."""
    assert not found("sac", lambda seed: sac(SAC, seed + 10))
    assert not found("ppo", lambda seed: ppo(PPO, seed + 10))


@pytest.mark.parametrize(
    ("component", "make", "path", "name"),
    [
        pytest.param(
            "sac",
            lambda seed: sac(ItemInTheLoss, seed),
            "sac_update/critic",
            "ops:aten::_local_scalar_dense",
            id="item",
        ),
        pytest.param(
            "sac", lambda seed: sac(TargetTwice, seed), "sac_update/target_q", "ops:aten::addmm", id="target twice"
        ),
        pytest.param("sac", lambda seed: sac(Float64Rewards, seed), "sac_update/target_q", "float64_ops", id="float64"),
        pytest.param(
            "sac", lambda seed: sac(TargetWithGradients, seed), "sac_update/target_q", "grad_ops", id="target gradients"
        ),
        pytest.param(
            "sac",
            lambda seed: sac(SAC, seed, CopiesTheBatch),
            "sac_update/sample/convert",
            "native_calls:numpy",
            id="batch copied",
        ),
        pytest.param(
            "ppo", lambda seed: ppo(ListsAndStacks, seed), "ppo_collect", "native_calls:numpy", id="list and stack"
        ),
        pytest.param(
            "ppo",
            lambda seed: ppo(CopiesObservations, seed),
            "ppo_collect/policy",
            "ops:aten::clone",
            id="copied twice",
        ),
        pytest.param(
            "ppo", lambda seed: ppo(CollectsWithGradients, seed), "ppo_collect/policy", "grad_ops", id="gradients on"
        ),
    ],
)
def test_a_planted_defect_is_named(component: str, make: Callable[[int], Workload], path: str, name: str) -> None:
    """It is more of what it is, in the phase that it is in and in no other beside."""
    changes = found(component, make)
    named = [change for change in changes if (change.path, change.name) == (path, name)]
    assert named, changes_text(changes)
    assert named[0].is_more
    places = {change.path for change in changes if change.name == name}
    assert not {other for other in places if not (path.startswith(other) or other.startswith(path))}
