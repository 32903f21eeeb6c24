"""skrl's PPO rollout, of its PyTorch side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.ppo import ppo as ppo_module
from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper
from skrl.trainers.torch import Trainer

from pytest_rlperf.components.arrays import check_device
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Probe
from pytest_rlperf.timers import hierarchical_timer

_TOLERANCE = 1e-3  # of log-probabilities that are computed again, in one batch
_POLICY = hierarchical_timer("policy")
_ENV_STEP = hierarchical_timer("env_step")
_STORE = hierarchical_timer("store")
_RESET = hierarchical_timer("reset")
_GAE = hierarchical_timer("gae")


class SkrlRoller:
    """Collects as skrl's trainers do, a step at a time: act, step, record; then GAE, with which its update begins.

    It is given a trainer, which has the agent and the env. The env is reset once, here. Rows that gymnasium's NEXT_STEP
    spends on resets are stored like others, and are no env steps.
    """

    def __init__(self, trainer: Trainer, n_steps: int) -> None:
        agent = trainer.agents
        if not isinstance(agent, PPO):
            raise ComponentError(f"the trainer trains {type(agent).__qualname__}, expected one PPO agent")
        sizes = {"cfg.rollouts": agent.cfg.rollouts, "memory.memory_size": agent.memory.memory_size}
        for name, size in sizes.items():
            if size != n_steps:
                raise ComponentError(f"the agent's {name} is {size}, expected {n_steps}, the n_steps of a rollout")
        self.n_steps = n_steps
        self.num_envs: int = trainer.env.num_envs
        self.setup: Callable[[], None] | None = agent.tracking_data.clear if agent.write_interval > 0 else None
        self.probes: tuple[Probe, ...] = ()
        self._agent = agent
        self._env = trainer.env
        self._timesteps = trainer.cfg.timesteps
        self._resets_by_a_step = _resets_by_a_step(trainer.env)
        self._resets_due = 0
        agent.enable_training_mode(True)  # or it records nothing
        agent.memory.reset()
        for tensor in agent.memory.tensors.values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)  # as where nothing was recorded yet, which a check then sees
        self._observations, _ = trainer.env.reset()
        self._states = trainer.env.state()

    def collect(self) -> Any:
        """Collect a rollout into the agent's memory, and compute its advantages."""
        for timestep in range(self.n_steps):
            with torch.no_grad():
                self._step({"timestep": timestep, "timesteps": self._timesteps})
        with _GAE, torch.no_grad():
            self._compute_gae()
        return self._agent.memory

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite, and what the agent's policy does; ComponentError says what is not."""
        __tracebackhide__ = True
        memory = rollout
        if not memory.filled or memory.memory_index or memory.env_index:
            stored = memory.memory_index * self.num_envs + memory.env_index
            raise ComponentError(
                f"the rollout is not full: {stored} transitions were recorded beyond the last full memory, expected "
                f"{self.n_steps} steps of {self.num_envs} envs each time"
            )
        for name, tensor in memory.tensors.items():
            if not torch.isfinite(tensor).all():
                raise ComponentError(f"the rollout has NaN or infinity in {name}")
            check_device(f"the rollout's {name}", tensor, self._agent.device)
        stored, now = memory.tensors_view["log_prob"], self._log_probs(memory)
        worst = int((stored - now).abs().argmax())
        if not torch.allclose(stored, now, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ComponentError(
                f"the rollout is not of the agent's policy: it has a log_prob of {float(stored[worst]):.6g}, expected "
                f"{float(now[worst]):.6g} by the policy as it is"
            )

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps the rollout is of."""
        rows = self.n_steps * self.num_envs
        if not self._resets_by_a_step:
            return float(rows)
        ended = rollout.tensors["terminated"] | rollout.tensors["truncated"]
        last = int(ended[-1].sum())
        resets = self._resets_due + int(ended.sum()) - last
        self._resets_due = last
        return float(rows - resets)

    def _step(self, times: dict[str, int]) -> None:
        """Act, step and record once."""
        agent, env = self._agent, self._env
        agent.pre_interaction(**times)
        with _POLICY:
            actions, _ = agent.act(self._observations, self._states, **times)
        with _ENV_STEP:
            observations, rewards, terminated, truncated, infos = env.step(actions)
            states = env.state()
        with _STORE:
            agent.record_transition(
                observations=self._observations,
                states=self._states,
                actions=actions,
                rewards=rewards,
                next_observations=observations,
                next_states=states,
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                **times,
            )
        if self.num_envs == 1 and (terminated.any() or truncated.any()):
            with _RESET:
                observations, _ = env.reset()
                states = env.state()
        self._observations, self._states = observations, states

    def _compute_gae(self) -> None:
        """Do what an update does before its epochs."""
        agent, memory, config = self._agent, self._agent.memory, self._agent.cfg
        with torch.autocast(device_type=agent.device.type, enabled=config.mixed_precision):
            last_values, _ = agent.value.act(self._inputs(self._observations, self._states), role="value")
            last_values = agent._value_preprocessor(last_values, inverse=True)
        values = memory.get_tensor_by_name("values")
        returns, advantages = ppo_module.compute_gae(
            **{name: memory.get_tensor_by_name(name) for name in ("rewards", "terminated", "truncated")},
            values=values,
            last_values=last_values,
            discount_factor=config.discount_factor,
            lambda_coefficient=config.gae_lambda,
            time_limit_bootstrap=config.time_limit_bootstrap,
        )
        memory.set_tensor_by_name("values", agent._value_preprocessor(values, train=True))
        memory.set_tensor_by_name("returns", agent._value_preprocessor(returns, train=True))
        memory.set_tensor_by_name("advantages", advantages)

    def _inputs(self, observations: Any, states: Any) -> dict[str, Any]:
        """Return what an agent's models are given."""
        agent = self._agent
        return {
            "observations": agent._observation_preprocessor(observations),
            "states": agent._state_preprocessor(states),
        }

    def _log_probs(self, memory: Any) -> Any:
        """Ask the agent's policy how likely the recorded actions are, as an update does."""
        recorded = memory.tensors_view
        inputs = self._inputs(recorded["observations"], recorded.get("states"))
        with torch.no_grad():
            _, outputs = self._agent.policy.act({**inputs, "taken_actions": recorded["actions"]}, role="policy")
        return outputs["log_prob"]


def _resets_by_a_step(env: Any) -> bool:
    """Whether the call after an episode's end resets the env and is no step: gymnasium's NEXT_STEP."""
    if not isinstance(env, GymnasiumWrapper) or not env._vectorized:
        return False
    mode = (env.metadata or {}).get("autoreset_mode")
    return mode is None or getattr(mode, "value", mode) == "NextStep"
