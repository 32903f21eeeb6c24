"""rlox's vector envs, replay buffers, GAE, SAC updates, PPO rollouts, PPO updates and whole iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import leaves
from pytest_rlperf.components.contracts import (
    ACTIONS,
    Cuts,
    GaeCall,
    Learner,
    Roller,
    Sampler,
    Stepper,
    Updater,
    check_finite,
    check_observations,
    check_of_policy,
    check_rows,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.probes.functions import probes_for, replace_method
from pytest_rlperf.timers import hierarchical_timer

_CHECKED_STEPS = 256  # at most, until an episode has ended: Pendulum's are 200 steps long
_POLICY = hierarchical_timer("policy")
_ENV_STEP = hierarchical_timer("env_step")
_STORE = hierarchical_timer("store")
_GAE = hierarchical_timer("gae")


class RloxStepper(Stepper):
    """Steps a VecEnv of Rust, a GymVecEnv, or a VecNormalize around one, all of which reset within the step."""

    def __init__(self, env: Any, seed: int) -> None:
        self._seed = seed
        actions = _batches_of_actions(env.action_space, env.num_envs(), seed)
        super().__init__(env, env.num_envs(), actions)

    def check(self) -> None:
        """Reset, step until an episode ends, and check what comes back; ComponentError names what is wrong."""
        __tracebackhide__ = True
        self.env.reset_all(seed=self._seed)
        for _ in range(_CHECKED_STEPS):
            if self._check_step(self.step(next(self._actions))):
                break
        self._calls = 1

    def step(self, actions: Any) -> Any:
        """Step every env once with these actions."""
        return self.env.step_all(actions)

    def _check_step(self, result: Mapping[str, Any]) -> bool:
        """Check one step, and return whether an episode ended with it."""
        __tracebackhide__ = True
        check_observations(result["obs"], self.num_envs)
        shapes = {name: np.shape(result[name]) for name in ("rewards", "terminated", "truncated")}
        check_rows(self.num_envs, {**shapes, "terminal_obs": (len(result["terminal_obs"]),)})
        ended = np.flatnonzero(np.logical_or(result["terminated"], result["truncated"]))
        for index in ended:
            if result["terminal_obs"][index] is None:
                raise ComponentError(
                    f"env {index}'s episode ended, and step_all() gave no terminal_obs for it: the env was not reset "
                    "within the step, so the next call resets it or steps it past its end"
                )
        return bool(ended.size)


def _batches_of_actions(space: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions as rlox's collectors give them: a list of discrete ones, else a float32 row an env."""
    kind = space.get("type") if isinstance(space, Mapping) else None
    generator = np.random.default_rng(seed)
    if kind == "discrete":
        return [generator.integers(space["n"], size=num_envs).tolist() for _ in range(ACTIONS)]
    if kind == "box":
        shape = (num_envs, *space["shape"])
        return [generator.uniform(space["low"], space["high"], shape).astype(np.float32) for _ in range(ACTIONS)]
    if not hasattr(space, "sample"):
        raise ComponentError(f"the env's action_space is {space!r:.60}, expected a space to draw actions from")
    space.seed(seed)
    batches = [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(ACTIONS)]
    return [batch.tolist() if hasattr(space, "n") else batch for batch in batches]


class RloxSampler(Sampler):
    """Draws from a replay buffer, with another seed each time: one seed is always the same batch."""

    def __init__(self, buffer: Any, batch_size: int) -> None:
        super().__init__(buffer, batch_size)
        self._seeds = count(random.getrandbits(31))

    def draw(self) -> Any:
        """Draw a batch."""
        return self.buffer.sample(self.batch_size, seed=next(self._seeds))


class RloxGae(GaeCall):
    """Calls ``compute_gae`` of one env for each env in turn, on float64 rows made ready beforehand."""

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        rewards, values, ends = (_env_major(rollout[name], np.float64) for name in ("rewards", "values", "ends"))
        discounts = rollout["gamma"], rollout["lam"]
        last_values = map(float, rollout["last_values"])
        calls = [(*env, *discounts) for env in zip(rewards, values, ends, last_values, strict=True)]
        self.call = lambda: [function(*arguments) for arguments in calls]

    def advantages(self, output: list[Any]) -> Any:
        """Return the advantages."""
        return np.stack([advantages for advantages, _ in output], axis=1)


class RloxBatchedGae(GaeCall):
    """Calls ``compute_gae_batched``, or its variant of float32, on flat arrays that have one env after the other."""

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        import rlox

        dtype = np.float32 if function is rlox.compute_gae_batched_f32 else np.float64
        n_steps, _ = rollout["rewards"].shape
        arrays = [_env_major(rollout[name], dtype).ravel() for name in ("rewards", "values", "ends")]
        arguments = (*arrays, rollout["last_values"].astype(dtype), n_steps, rollout["gamma"], rollout["lam"])
        self.call = partial(function, *arguments)
        self._n_steps = n_steps

    def advantages(self, output: Any) -> Any:
        """Return the advantages."""
        return np.reshape(output[0], (-1, self._n_steps)).T


def _env_major(array: Any, dtype: Any) -> Any:
    """Return a rollout's array of shape (n_steps, n_envs) with a contiguous row an env."""
    return np.ascontiguousarray(array.T, dtype=dtype)


class RloxUpdater(Updater):
    """Calls ``agent._update``, which is one gradient step; its argument is the seed to sample with."""

    def __init__(self, agent: Any, batch_size: int) -> None:
        if agent.batch_size != batch_size:
            raise ComponentError(
                f"the agent samples {agent.batch_size} transitions an update, not batch_size={batch_size}: "
                f"SAC(…, batch_size={batch_size})"
            )
        if len(agent.buffer) < batch_size:
            raise ComponentError(
                f"the agent's buffer holds {len(agent.buffer)} transitions, too few for a batch of {batch_size}: "
                "agent.buffer.push(…) or push_batch(…) more first"
            )
        self.owner: Any = agent
        self.steps = 3 + bool(agent.auto_entropy)  # the actor, two critics, the temperature
        self.batch_size = batch_size
        self.buffers = (agent.buffer,)
        self._seeds = count(random.getrandbits(31))

    def update(self) -> object:
        """Do one gradient step of every part."""
        return self.owner._update(next(self._seeds))


class RloxRoller(Roller):
    """Calls the collector of a PPO with its policy; the first collect, the check's, resets the envs."""

    def __init__(self, agent: Any, n_steps: int) -> None:
        self.n_steps = n_steps
        self.num_envs: int = agent.collector.n_envs
        self.probes = (_RolloutPhases(agent),)
        self._agent = agent

    def collect(self) -> Any:
        """Collect a rollout."""
        return self._agent.collector.collect(self._agent.policy, n_steps=self.n_steps)

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite, and of the agent's policy; ComponentError names what is not."""
        __tracebackhide__ = True
        rows = self.n_steps * self.num_envs
        for name, array in leaves(rollout):
            if array.shape[0] != rows:
                raise ComponentError(
                    f"the rollout is not full: {name} has {array.shape[0]} rows, expected {rows}, {self.n_steps} steps "
                    f"of {self.num_envs} envs"
                )
        check_finite(leaves(rollout))
        policy = self._agent.policy
        log_probs, _ = policy.get_logprob_and_entropy(rollout.obs, rollout.actions)
        again = {"log_probs": log_probs, "values": policy.get_value(rollout.obs)}
        check_of_policy({name: getattr(rollout, name) for name in again}, again)


class RloxLearner(Learner):
    """Calls ``agent.train`` for one rollout; for an update alone, its collector gives back one that it has collected.

    So the callbacks that ``train`` calls are part of both.
    """

    def __init__(self, agent: Any, n_steps: int) -> None:
        if n_steps != agent.config.n_steps:
            raise ComponentError(
                f"the agent's rollouts are of {agent.config.n_steps} steps, not {n_steps}: PPO(…, n_steps={n_steps}), "
                f"or n_steps={agent.config.n_steps}"
            )
        self.owner: Any = agent
        self._roller = RloxRoller(agent, n_steps)
        self._rollout: Any = None
        self.iteration_probes = tuple(probes_for({"collect": "collector.collect"}, agent))

    def collect(self) -> None:
        """Collect the rollout."""
        __tracebackhide__ = True
        self._rollout = self._roller.collect()
        self._roller.check(self._rollout)

    def update(self) -> object:
        """Do all epochs."""
        undo = put(self.owner.collector, "collect", lambda *_, **__: self._rollout)
        try:
            return self.iterate()
        finally:
            undo()

    def iterate(self) -> object:
        """Train on one more rollout."""
        return self.owner.train(int(self.env_steps()))

    def env_steps(self) -> float:
        """Return the env steps of a rollout."""
        return float(self._roller.n_steps * self._roller.num_envs)


class _RolloutPhases(Cuts):
    """Times the collector's calls of policy, envs and GAE, and as ``store`` what it does after envs and GAE.

    Storing is making tensors, statistics, and stacking. A value that the policy computes in between is of an episode
    that was cut off, or of the rollout's end: storing goes on after it.
    """

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self._agent = agent

    def attach(self) -> Undo:
        """Time them from now on."""
        return together(self._replace())

    def _replace(self) -> Iterator[Undo]:
        import rlox

        agent, collector = self._agent, self._agent.collector
        yield replace_method(agent, collector, "collect", self.around(None))
        for name in ("get_action_value", "get_action_and_logprob", "get_value"):
            if hasattr(agent.policy, name):
                around = self.around(_POLICY, resumes=name == "get_value")
                yield replace_method(agent, agent.policy, name, around)
        yield replace_method(collector, collector.env, "step_all", self.around(_ENV_STEP, _STORE))
        yield put(rlox, "compute_gae_batched", self.around(_GAE, _STORE)(rlox.compute_gae_batched))


LIBRARY = Library(
    name="rlox",
    module="rlox",
    requirement="rlox",
    vecenv=(
        Adapter("rlox:VecEnv", RloxStepper),
        Adapter("rlox:GymVecEnv", RloxStepper),
        Adapter("rlox:VecNormalize", RloxStepper),
    ),
    replay=tuple(
        Adapter(f"rlox:{name}", RloxSampler)
        for name in (
            "ReplayBuffer",
            "PrioritizedReplayBuffer",
            "MmapReplayBuffer",
            "OfflineDatasetBuffer",
            "SequenceReplayBuffer",
            "HERBuffer",
        )
    ),
    gae=(
        Adapter("rlox:compute_gae", RloxGae),
        Adapter("rlox:compute_gae_batched", RloxBatchedGae),
        Adapter("rlox:compute_gae_batched_f32", RloxBatchedGae),
    ),
    sac=(Adapter("rlox.algorithms.sac:SAC", RloxUpdater),),
    ppo=(Adapter("rlox.algorithms.ppo:PPO", RloxRoller),),
    learn=(Adapter("rlox.algorithms.ppo:PPO", RloxLearner),),
    environments=("rlox.gym_vec_env:GymVecEnv.step_all", "rlox:VecEnv.step_all"),
    starter="test_rlox.py",
)
