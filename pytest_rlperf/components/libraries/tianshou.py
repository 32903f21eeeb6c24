"""Tianshou's vector envs, replay buffers, GAE, SAC updates, collectors, PPO updates and whole iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_rlperf.components.checks import leaves
from pytest_rlperf.components.contracts import (
    ACTIONS,
    ENV_STEP,
    RESET,
    AutoresetStepper,
    Cuts,
    GaeCall,
    Learner,
    Roller,
    Updater,
    check_finite,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.probes.functions import probes_for
from pytest_rlperf.timers import hierarchical_timer

if TYPE_CHECKING:
    from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm
    from tianshou.env import BaseVectorEnv
    from tianshou.trainer import OffPolicyTrainer, OnPolicyTrainer

_NETWORKS = 3  # each with an optimizer: the actor and two critics
_POLICY = hierarchical_timer("policy")
_STORE = hierarchical_timer("store")
_EPISODES = hierarchical_timer("episodes")


class TianshouStepper(AutoresetStepper):
    """Steps ``env`` with actions drawn beforehand, and resets ended envs as part of the step."""

    def __init__(self, env: BaseVectorEnv, seed: int) -> None:
        if env.is_async:
            raise ComponentError(
                "the vector env waits only for some of its workers: pass a zero-argument function that steps it, and "
                "how many envs a call steps, rlperf_vecenv_step(step, num_envs=…)"
            )
        self._seed = seed
        spaces = env.action_space
        for offset, space in enumerate(spaces):
            space.seed(seed + offset)
        actions = [np.stack([space.sample() for space in spaces]) for _ in range(ACTIONS)]
        super().__init__(env, len(env), actions, "Disabled")

    def reset(self) -> None:
        """Reset every env, by the seed."""
        self.env.seed(self._seed)
        self.env.reset()

    def reset_ended(self, ended: Any) -> None:
        """Reset the envs whose episodes have ended."""
        self.env.reset(np.flatnonzero(ended))


def _gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of ``compute_episodic_return`` on a buffer that holds the rollout, one part per env."""
    from tianshou.data import Batch, VectorReplayBuffer, to_torch

    n_steps, n_envs = rollout["rewards"].shape
    buffer = VectorReplayBuffer(n_steps * n_envs, n_envs)
    none, never = np.zeros(n_envs, np.float32), np.zeros(n_envs, np.bool_)
    for rewards, ends in zip(rollout["rewards"], rollout["ends"].astype(np.bool_), strict=True):
        buffer.add(Batch(obs=none, act=none, rew=rewards, terminated=ends, truncated=never, obs_next=none))
    batch, indices = buffer.sample(0)  # all there is, as PPO's update takes it
    values = [np.ascontiguousarray(rollout[name].T).reshape(-1) for name in ("next_values", "values")]
    if backend == "torch":
        values = [to_torch(array) for array in values]
    call = partial(function, batch, buffer, indices, *values, gamma=rollout["gamma"], gae_lambda=rollout["lam"])
    call()  # Numba compiles what it has not met before
    # Returns and advantages, one env's row after the other's.
    return GaeCall(call, lambda output: output[1].reshape(n_envs, n_steps).T)


def _updater(trainer: OffPolicyTrainer | OffPolicyAlgorithm[Any], batch_size: int) -> Updater:
    """Return a trainer's SAC steps: its algorithm's updates, from the buffer that the trainer collects into.

    The update runs within a training step, as in the trainer, but without the trainer's own statistics.
    """
    __tracebackhide__ = True
    from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm
    from tianshou.algorithm.modelfree.discrete_sac import DiscreteSAC
    from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha
    from tianshou.utils.torch_utils import policy_within_training_step

    if isinstance(trainer, OffPolicyAlgorithm):
        raise ComponentError(
            f"a Tianshou {type(trainer).__qualname__} has no buffer of its own; pass rlperf_sac_update its "
            "trainer, algorithm.create_trainer(OffPolicyTrainerParams(training_collector=collector)), or a "
            "zero-argument function"
        )
    owner: Any = SimpleNamespace(algorithm=trainer.algorithm, buffer=trainer.params.training_collector.buffer)
    if not isinstance(owner.algorithm, SAC | DiscreteSAC):
        raise ComponentError(f"the trainer's algorithm is {type(owner.algorithm).__qualname__}, expected SAC")
    if len(owner.buffer) == 0:
        raise ComponentError("the buffer of the trainer's collector is empty: collect before an update is measured")

    def update() -> object:
        with policy_within_training_step(owner.algorithm.policy):
            return owner.algorithm.update(buffer=owner.buffer, sample_size=batch_size)

    return Updater(owner, update, _NETWORKS + isinstance(owner.algorithm.alpha, AutoAlpha), (owner.buffer,))


class TianshouRoller(Roller):
    """Collects rollouts as an on-policy trainer does: within a training step, into a buffer that was emptied.

    Its envs are seeded and reset once, before the first rollout. GAE is part of the update, not of the rollout.
    """

    def __init__(self, agent: Any, n_steps: int) -> None:
        __tracebackhide__ = True
        from tianshou.data import AsyncCollector
        from tianshou.env import BaseVectorEnv
        from tianshou.trainer import OnPolicyTrainer
        from tianshou.utils.torch_utils import policy_within_training_step

        collector = agent.params.training_collector if isinstance(agent, OnPolicyTrainer) else agent
        if isinstance(collector, AsyncCollector):
            raise ComponentError(
                "an AsyncCollector collects more steps than n_steps; pass rlperf_ppo_collect a zero-argument "
                "function, and the number of env steps that it collects: rlperf_ppo_collect(collect, items=2048)"
            )
        if isinstance(agent, OnPolicyTrainer) and collector.policy is not agent.algorithm.policy:
            raise ComponentError("the trainer's collector has a different policy from the algorithm that is trained")
        self._collector: Any = collector
        self.n_steps = n_steps
        self.num_envs: int = collector.env_num
        self.setup = self.empty
        self.training_step = policy_within_training_step
        self.probes = (
            _RolloutPhases(collector),
            *probes_for({"add": "buffer.add"}, collector),
            *probes_for({"stats": ("update_at_step_batch", "update_at_episode_done")}, collector.collect_stats_class),
        )
        if isinstance(collector.env, BaseVectorEnv):
            collector.env.seed(random.getrandbits(31))
        collector.reset()

    def empty(self) -> None:
        """Empty the buffer."""
        self._collector.reset_buffer(keep_statistics=True)  # of the episodes that go on

    def collect(self) -> Any:
        """Collect a rollout."""
        with self.training_step(self._collector.policy):
            return self._collector.collect(n_step=self.n_steps * self.num_envs)

    def check(self, rollout: Any) -> None:
        """Check that the buffer is full and its contents are finite."""
        __tracebackhide__ = True
        buffer = self._collector.buffer
        rows = [len(part) for part in getattr(buffer, "buffers", [buffer])[: self.num_envs]]
        if rows != [self.n_steps] * self.num_envs or rollout.n_collected_steps != self.n_steps * self.num_envs:
            raise ComponentError(
                f"the rollout is not full: {rollout.n_collected_steps} env steps were collected, the buffer holds "
                f"{rows} of each env, expected {self.n_steps} of {self.num_envs} envs"
            )
        check_finite(leaves(buffer[:], "buffer"))

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout has."""
        return float(rollout.n_collected_steps)


def _n_steps(trainer: OnPolicyTrainer) -> int | None:
    """Return how many steps a trainer collects from each env; None if it collects episodes, or not whole rows."""
    params = trainer.params
    steps, others = divmod(params.collection_step_num_env_steps or 0, params.training_collector.env_num)
    return None if others else steps


class TianshouLearner(Learner):
    """Does an on-policy trainer's training steps, or only the update of its algorithm, as in a training step.

    The trainer would empty the buffer after an update.
    """

    def __init__(self, trainer: OnPolicyTrainer, n_steps: int) -> None:
        __tracebackhide__ = True
        self.roller: TianshouRoller = TianshouRoller(trainer, n_steps)
        collected = trainer.params.collection_step_num_env_steps
        if collected != self.env_steps():
            raise ComponentError(
                f"a training step of the trainer collects {collected} env steps, not {n_steps} of each of "
                f"{self.roller.num_envs} envs: OnPolicyTrainerParams(…, collection_step_num_env_steps="
                f"{self.env_steps():.0f})"
            )
        self.owner = trainer.algorithm
        self._trainer: Any = trainer
        self.iteration_probes = tuple(
            probes_for({"collect": "_collect_training_data", "update": "_update_step"}, trainer)
        )
        self.roller.empty()

    def collect(self) -> None:
        """Fill the collector's buffer."""
        __tracebackhide__ = True
        self.roller.empty()
        super().collect()

    def update(self) -> object:
        """Do all repetitions, on the whole buffer."""
        params = self._trainer.params
        with self.roller.training_step(self.owner.policy):
            return self.owner.update(
                buffer=params.training_collector.buffer,
                batch_size=params.batch_size,
                repeat=params.update_step_num_repetitions,
            )

    def iterate(self) -> object:
        """Do a training step."""
        return self._trainer._training_step()


class _RolloutPhases(Cuts):
    """Cuts the collector's loop into phases at the calls of its policy, and at steps and resets of its envs.

    ``store`` lasts from the envs' answer until the next of these: the step hook, statistics, making a batch, adding.
    ``episodes`` is what follows a reset: reading ended episodes out of the buffer, their hook and statistics.
    """

    def __init__(self, collector: Any) -> None:
        super().__init__()
        self._collector = collector

    def attach(self) -> Undo:
        """Time them from now on."""
        collector, env = self._collector, self._collector.env
        cuts = (
            (collector, "_compute_action_policy_hidden", self.around(_POLICY)),
            (env, "step", self.around(ENV_STEP, _STORE)),
            (env, "reset", self.around(RESET, _EPISODES)),
            (collector, "_collect", self.around(None)),
        )
        return together(put(holder, name, around(getattr(holder, name))) for holder, name, around in cuts)


LIBRARY = Library(
    name="tianshou",
    module="tianshou",
    requirement="tianshou",
    vecenv=(Adapter("tianshou.env.venvs:BaseVectorEnv", TianshouStepper),),
    gae=(Adapter("tianshou.algorithm.algorithm_base:Algorithm.compute_episodic_return", _gae),),
    sac=(
        Adapter("tianshou.trainer:OffPolicyTrainer", _updater, attrgetter("params.batch_size")),
        Adapter("tianshou.algorithm.algorithm_base:OffPolicyAlgorithm", _updater),
    ),
    ppo=(
        Adapter("tianshou.trainer:OnPolicyTrainer", TianshouRoller, _n_steps),
        Adapter("tianshou.data.collector:BaseCollector", TianshouRoller),
    ),
    learn=(Adapter("tianshou.trainer:OnPolicyTrainer", TianshouLearner, _n_steps),),
    starter="test_tianshou.py",
)
