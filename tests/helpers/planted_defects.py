"""Defects as libraries really have had them, planted in the reference components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.reference.ppo import PPO, SYNTHETIC_ID, make_vec_env
from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer
from pytest_rlperf.components.updates import sac_workload

if TYPE_CHECKING:
    from pytest_rlperf.components.reference.sac import Batch
    from pytest_rlperf.model.measured import Workload

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


def made(name: str, seed: int) -> Workload:
    """Return the update or rollout of an agent of the class of this name, or with a buffer of it."""
    kind: Any = globals()[name]
    if issubclass(kind, PPO):
        return ppo(kind, seed)
    return sac(SAC, seed, kind) if issubclass(kind, ReplayBuffer) else sac(kind, seed)
