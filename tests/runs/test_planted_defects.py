"""Defects as libraries really have had them, planted in the reference components: each is found by what is counted.

No time is taken into account, so none of this depends on the machine.
"""

from __future__ import annotations

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
from pytest_rlperf.model.measured import (  # noqa: E402
    Counting,
    Workload,
)
from pytest_rlperf.report.wording import changes_text  # noqa: E402
from pytest_rlperf.run.counting import learn  # noqa: E402
from pytest_rlperf.wire import Count  # noqa: E402
from pytest_rlperf.worker.counting import count  # noqa: E402

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


def made(kind: Any, seed: int) -> Workload:
    """Return the update or rollout of an agent of ``kind``, or with a buffer of it."""
    if issubclass(kind, PPO):
        return ppo(kind, seed)
    return sac(SAC, seed, kind) if issubclass(kind, ReplayBuffer) else sac(kind, seed)


@cache
def counted(kind: Any, first_seed: int = 1) -> Counting:
    tallies = []
    for seed in (first_seed, first_seed + 1):
        workload = made(kind, seed)
        workload.check()
        tallies.append(count(workload, Count(2, 60.0)))
        workload.close()
    counting = learn(tallies)
    assert counting is not None
    return counting


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAC, PPO])
def test_nothing_is_found_in_a_healthy_component(kind: Any) -> None:
    """Counts of one component are the same in other workers, with other seeds."""
    assert not compare(counted(kind), counted(kind, 11), ("*",))


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        (ItemInTheLoss, "sac_update/critic", "ops:aten::_local_scalar_dense"),
        (TargetTwice, "sac_update/target_q", "ops:aten::addmm"),
        (Float64Rewards, "sac_update/target_q", "float64_ops"),
        (TargetWithGradients, "sac_update/target_q", "grad_ops"),
        (CopiesTheBatch, "sac_update/sample/convert", "native_calls:numpy"),
        (ListsAndStacks, "ppo_collect", "native_calls:numpy"),
        (CopiesObservations, "ppo_collect/policy", "ops:aten::clone"),
        (CollectsWithGradients, "ppo_collect/policy", "grad_ops"),
    ],
)
def test_a_planted_defect_is_named(kind: Any, path: str, name: str) -> None:
    """It is more of what it is, in the phase that it is in and in no other beside."""
    changes = compare(counted(PPO if issubclass(kind, PPO) else SAC), counted(kind), ("*",))
    named = [change for change in changes if (change.path, change.name) == (path, name)]
    assert named, changes_text(changes)
    assert named[0].is_more
    places = {change.path for change in changes if change.name == name}
    assert not {other for other in places if not (path.startswith(other) or other.startswith(path))}
