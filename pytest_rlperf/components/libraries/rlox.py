"""rlox's vector envs, replay buffers, GAE, SAC updates, PPO rollouts, PPO updates and whole iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute, leaves
from pytest_rlperf.components.contracts import (
    ACTIONS,
    Cuts,
    GaeCall,
    Learner,
    Roller,
    Stepper,
    Updater,
    check_finite,
    check_observations,
    check_of_policy,
    check_rows,
    draw_actions,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.probes.functions import probes_for, replace_method
from pytest_rlperf.timers import hierarchical_timer

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

    def reset(self) -> None:
        """Reset every env, by the seed."""
        self.env.reset_all(seed=self._seed)

    def step(self, actions: Any) -> Any:
        """Step every env once with these actions."""
        return self.env.step_all(actions)

    def check_step(self, results: Mapping[str, Any]) -> bool:
        """Check one step, and return whether an episode ended with it."""
        __tracebackhide__ = True
        check_observations(results["obs"], self.num_envs)
        check_rows(self.num_envs, {name: results[name] for name in ("rewards", "terminated", "truncated")})
        ended = np.flatnonzero(np.logical_or(results["terminated"], results["truncated"]))
        for index in ended:
            if results["terminal_obs"][index] is None:
                raise ComponentError(
                    f"env {index}'s episode ended, and step_all() gave no terminal_obs for it: the env was not reset "
                    "within the step, so the next call resets it or steps it past its end"
                )
        return bool(ended.size)


def _batches_of_actions(space: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions as rlox's collectors give them: a list of discrete ones, else a float32 row per env."""
    kind = space.get("type") if isinstance(space, Mapping) else None
    generator = np.random.default_rng(seed)
    if kind == "discrete":
        return [generator.integers(space["n"], size=num_envs).tolist() for _ in range(ACTIONS)]
    if kind == "box":
        shape = (num_envs, *space["shape"])
        return [generator.uniform(space["low"], space["high"], shape).astype(np.float32) for _ in range(ACTIONS)]
    if not callable(attribute(space, "sample")):
        raise ComponentError(f"the env's action_space is {space!r:.60}, expected a space to draw actions from")
    return [batch.tolist() if hasattr(space, "n") else batch for batch in draw_actions(space, num_envs, seed)]


def _drawing(buffer: Any, batch_size: int) -> Callable[[], Any]:
    """Return what draws from a replay buffer, with a new seed each time: one seed gives the same batch."""
    seeds = count(random.getrandbits(31))
    return lambda: buffer.sample(batch_size, seed=next(seeds))


def _gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return calls of ``compute_gae`` of one env for each env in turn, on float64 rows made ready beforehand."""
    rewards, values, ends = (_env_major(rollout[name], np.float64) for name in ("rewards", "values", "ends"))
    discounts = rollout["gamma"], rollout["lam"]
    last_values = map(float, rollout["last_values"])
    calls = [(*env, *discounts) for env in zip(rewards, values, ends, last_values, strict=True)]
    return GaeCall(
        lambda: [function(*arguments) for arguments in calls],
        lambda output: np.stack([advantages for advantages, _ in output], axis=1),
    )


def _batched_gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of ``compute_gae_batched``, or its float32 version, on flat arrays, one env after the other."""
    import rlox

    dtype = np.float32 if function is rlox.compute_gae_batched_f32 else np.float64
    n_steps, _ = rollout["rewards"].shape
    arrays = [_env_major(rollout[name], dtype).ravel() for name in ("rewards", "values", "ends")]
    arguments = (*arrays, rollout["last_values"].astype(dtype), n_steps, rollout["gamma"], rollout["lam"])
    return GaeCall(partial(function, *arguments), lambda output: np.reshape(output[0], (-1, n_steps)).T)


def _env_major(array: Any, dtype: Any) -> Any:
    """Return a rollout's array of shape (n_steps, n_envs) with a contiguous row per env."""
    return np.ascontiguousarray(array.T, dtype=dtype)


def _updater(agent: Any, batch_size: int) -> Updater:
    """Return calls of ``agent._update``, which is one gradient step; its argument is the seed to sample with."""
    if agent.batch_size != batch_size:
        raise ComponentError(
            f"the agent samples {agent.batch_size} transitions per update, not batch_size={batch_size}: "
            f"SAC(…, batch_size={batch_size})"
        )
    if len(agent.buffer) < batch_size:
        raise ComponentError(
            f"the agent's buffer holds {len(agent.buffer)} transitions, too few for a batch of {batch_size}: "
            "add more first, by agent.buffer.push(…) or push_batch(…)"
        )
    seeds = count(random.getrandbits(31))
    steps = 3 + bool(agent.auto_entropy)  # the actor, two critics, the temperature
    return Updater(agent, lambda: agent._update(next(seeds)), steps, (agent.buffer,))


class RloxRoller(Roller):
    """Calls a PPO's collector with its policy; the first collect, the check's, resets the envs."""

    def __init__(self, agent: Any, n_steps: int) -> None:
        self.n_steps = n_steps
        self.num_envs: int = agent.collector.n_envs
        self.probes = (_RolloutPhases(agent),)
        self._agent = agent

    def collect(self) -> Any:
        """Collect a rollout."""
        return self._agent.collector.collect(self._agent.policy, n_steps=self.n_steps)

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite and made by the agent's policy; ComponentError names what is wrong."""
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
    """Calls ``agent.train`` for one rollout; for an update only, the collector returns an earlier rollout.

    So the callbacks that ``train`` calls are part of both.
    """

    def __init__(self, agent: Any, n_steps: int) -> None:
        if n_steps != agent.config.n_steps:
            raise ComponentError(
                f"the agent's rollouts have {agent.config.n_steps} steps, not {n_steps}: PPO(…, n_steps={n_steps}), "
                f"or n_steps={agent.config.n_steps}"
            )
        self.owner = agent
        self.roller = RloxRoller(agent, n_steps)
        self._rollout: Any = None
        self.iteration_probes = tuple(probes_for({"collect": "collector.collect"}, agent))

    def collect(self) -> None:
        """Collect the rollout."""
        __tracebackhide__ = True
        self._rollout = super().collect()

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


class _RolloutPhases(Cuts):
    """Times the collector's calls of policy, envs and GAE, and as ``store`` what it does after envs and GAE.

    Storing is making tensors, statistics, and stacking. In between, the policy may compute the value of an episode
    that was cut off, or of the rollout's end; storing goes on after it.
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
        Adapter(f"rlox:{name}", _drawing)
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
        Adapter("rlox:compute_gae", _gae),
        Adapter("rlox:compute_gae_batched", _batched_gae),
        Adapter("rlox:compute_gae_batched_f32", _batched_gae),
    ),
    sac=(Adapter("rlox.algorithms.sac:SAC", _updater, attrgetter("batch_size")),),
    ppo=(Adapter("rlox.algorithms.ppo:PPO", RloxRoller, attrgetter("config.n_steps")),),
    learn=(Adapter("rlox.algorithms.ppo:PPO", RloxLearner, attrgetter("config.n_steps")),),
    environments=("rlox.gym_vec_env:GymVecEnv.step_all", "rlox:VecEnv.step_all"),
    starter="test_rlox.py",
)
