"""Tianshou's SAC update and its collector."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSAC
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha
from tianshou.data import AsyncCollector, to_numpy
from tianshou.env import BaseVectorEnv
from tianshou.trainer import OffPolicyTrainer, OnPolicyTrainer
from tianshou.utils.lagged_network import polyak_parameter_update
from tianshou.utils.torch_utils import policy_within_training_step

from pytest_rlperf.components.arrays import leaves
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Probe
from pytest_rlperf.probes import probes_for
from pytest_rlperf.probes.attach import Undo, put, together
from pytest_rlperf.timers import hierarchical_timer

# The last is what moves target networks: UpdateSections looks for such in the module of an updater's class.
__all__ = ["TianshouRoller", "TianshouUpdater", "polyak_parameter_update"]

_NETWORKS = 3  # each with an optimizer: the actor and two critics
_POLICY = hierarchical_timer("policy")
_ENV_STEP = hierarchical_timer("env_step")
_STORE = hierarchical_timer("store")
_RESET = hierarchical_timer("reset")
_EPISODES = hierarchical_timer("episodes")


class TianshouUpdater:
    """Does one SAC step of a trainer: its algorithm's update, from the buffer it collects into.

    The update is within a training step, as the trainer has it; the trainer's own statistics are left out.
    """

    def __init__(self, trainer: OffPolicyTrainer | OffPolicyAlgorithm[Any], batch_size: int) -> None:
        __tracebackhide__ = True
        if isinstance(trainer, OffPolicyAlgorithm):
            raise ComponentError(
                f"a Tianshou {type(trainer).__qualname__} has no buffer of its own; give rlperf_sac_update its "
                "trainer, algorithm.create_trainer(OffPolicyTrainerParams(training_collector=collector)), or a thunk"
            )
        self.algorithm: Any = trainer.algorithm
        self.buffer = trainer.params.training_collector.buffer
        if not isinstance(self.algorithm, SAC | DiscreteSAC):
            raise ComponentError(f"the trainer's algorithm is {type(self.algorithm).__qualname__}, expected SAC")
        self.owner: object = self
        self.steps: int | None = _NETWORKS + isinstance(self.algorithm.alpha, AutoAlpha)
        self._batch_size = batch_size

    def update(self) -> object:
        """Do one gradient step of every part."""
        with policy_within_training_step(self.algorithm.policy):
            return self.algorithm.update(buffer=self.buffer, sample_size=self._batch_size)

    def check(self) -> None:
        """Do one update, and check where it is done and how many transitions the critics judge."""
        __tracebackhide__ = True
        if len(self.buffer) == 0:
            raise ComponentError("the buffer of the trainer's collector is empty: collect before an update is measured")
        devices = sorted({str(parameter.device) for parameter in self.algorithm.parameters()})
        if len(devices) > 1:
            raise ComponentError(f"the algorithm's parameters are on {' and '.join(devices)}, expected one device")
        rows: list[int] = []
        critics = (self.algorithm.critic, self.algorithm.critic2)
        watches = [
            critic.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0]))) for critic in critics
        ]
        try:
            self.update()
        finally:
            for watch in watches:
                watch.remove()
        wrong = [found for found in rows if found != self._batch_size]
        if wrong:
            raise ComponentError(
                f"one update gave a critic {wrong[0]} transitions, expected batch_size={self._batch_size}"
            )


class TianshouRoller:
    """Collects rollouts as an on-policy trainer does: within a training step, into a buffer that was emptied.

    Its envs are seeded and reset once, before the first rollout. GAE is no part of it: that is the update's.
    """

    def __init__(self, agent: Any, n_steps: int) -> None:
        __tracebackhide__ = True
        collector = agent.params.training_collector if isinstance(agent, OnPolicyTrainer) else agent
        if isinstance(collector, AsyncCollector):
            raise ComponentError(
                "an AsyncCollector collects more than it is asked for; give rlperf_ppo_collect a thunk, and the env "
                "steps it collects: rlperf_ppo_collect(collect, items=2048)"
            )
        if isinstance(agent, OnPolicyTrainer) and collector.policy is not agent.algorithm.policy:
            raise ComponentError("the trainer's collector has another policy than the algorithm that is trained")
        self._collector: Any = collector
        self.n_steps = n_steps
        self.num_envs: int = collector.env_num
        self.setup: Callable[[], None] | None = self._empty
        self.probes: tuple[Probe, ...] = (
            _Cuts(collector),
            *probes_for({"add": "buffer.add"}, collector),
            *probes_for({"stats": ("update_at_step_batch", "update_at_episode_done")}, collector.collect_stats_class),
        )
        if isinstance(collector.env, BaseVectorEnv):
            collector.env.seed(random.getrandbits(31))
        collector.reset()

    def _empty(self) -> None:
        self._collector.reset_buffer(keep_statistics=True)  # of the episodes that go on

    def collect(self) -> Any:
        """Collect a rollout."""
        with policy_within_training_step(self._collector.policy):
            return self._collector.collect(n_step=self.n_steps * self.num_envs)

    def check(self, rollout: Any) -> None:
        """Check what is in the buffer, and in another rollout whose the actions are."""
        __tracebackhide__ = True
        self._check_rows(rollout.n_collected_steps)
        for path, array in leaves(self._collector.buffer[:], "buffer"):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ComponentError(f"collect() left NaN or infinity in {path}")
        self._check_policy()

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout is of."""
        return float(rollout.n_collected_steps)

    def _check_rows(self, collected: int) -> None:
        __tracebackhide__ = True
        buffer = self._collector.buffer
        parts = getattr(buffer, "buffers", [buffer])[: self.num_envs]
        rows = [len(part) for part in parts]
        if rows != [self.n_steps] * self.num_envs or collected != self.n_steps * self.num_envs:
            raise ComponentError(
                f"collect() left a rollout that is not full: {collected} env steps were collected, the buffer holds "
                f"{rows} of each env, expected {self.n_steps} of {self.num_envs} envs"
            )

    def _check_policy(self) -> None:
        __tracebackhide__ = True
        given: list[Any] = []
        policy = self._collector.policy
        watch = policy.register_forward_hook(lambda _, __, output: given.append(to_numpy(output.act)))
        try:
            self._empty()
            self.collect()
        finally:
            watch.remove()
        if len(given) != self.n_steps:
            raise ComponentError(
                f"in {self.n_steps} steps the collector asked its policy for actions {len(given)} times: are they of "
                "another policy, or random?"
            )
        actions = np.stack(given, axis=1)  # the buffer has one env after the other
        stored = self._collector.buffer[:].act
        if not np.array_equal(np.reshape(stored, actions.shape), actions):
            raise ComponentError("the actions in the buffer are not those that the collector's policy gave")


class _Cuts:
    """Cuts the collector's loop into phases where it asks its policy, and steps or resets its envs.

    ``store`` is all from the envs' answer until the next of these: the step hook, statistics, making a batch, adding.
    ``episodes`` is likewise what follows a reset: reading ended episodes out of the buffer, their hook and statistics.
    """

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._open: AbstractContextManager[object] | None = None

    def attach(self) -> Undo:
        """Time them from now on."""
        collector, env = self._collector, self._collector.env
        cuts = (
            (collector, "_compute_action_policy_hidden", _POLICY, None),
            (env, "step", _ENV_STEP, _STORE),
            (env, "reset", _RESET, _EPISODES),
            (collector, "_collect", None, None),
        )
        return together(
            put(holder, name, self._cutting(getattr(holder, name), during, after))
            for holder, name, during, after in cuts
        )

    def _cutting(self, method: Callable[..., Any], during: Any, after: Any) -> Callable[..., Any]:
        def cutting(*args: Any, **kwargs: Any) -> Any:
            self._switch(during)
            try:
                return method(*args, **kwargs)
            finally:
                self._switch(after)

        return cutting

    def _switch(self, phase: AbstractContextManager[object] | None) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = phase
        if phase is not None:
            phase.__enter__()
