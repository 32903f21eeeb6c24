"""skrl's wrapped envs, memories, GAE, and SAC and PPO updates, in its PyTorch version.

skrl has no call that collects a rollout: its trainers have the loop. A thunk measures a rollout, or a whole iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.contracts import (
    ACTIONS,
    AutoresetStepper,
    GaeCall,
    Learner,
    Updater,
    autoreset_mode,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes.functions import probes_for

if TYPE_CHECKING:
    from skrl.agents.torch.ppo import PPO
    from skrl.agents.torch.sac import SAC
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import Memory


class SkrlStepper(AutoresetStepper):
    """Steps a wrapped env; a single one is reset as skrl's trainers do it, as part of the step."""

    def __init__(self, env: Wrapper, seed: int) -> None:
        super().__init__(env, env.num_envs, _batches_of_actions(env, seed), _autoreset_mode(env))
        if "_seed" in vars(env):
            env._seed = seed  # its first reset takes this; there is no other way to seed it


def _autoreset_mode(env: Wrapper) -> str:
    """Return how a wrapped env resets, by gymnasium's name for it: a user resets a single one, as under DISABLED."""
    __tracebackhide__ = True
    from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper

    if not getattr(env, "_vectorized", env.num_envs > 1):
        return "Disabled"
    if not isinstance(env, GymnasiumWrapper):
        return "SameStep"  # as simulators of many envs and gymnasium's predecessor do
    mode = autoreset_mode(env) or "NextStep"
    if mode == "Disabled":
        raise ComponentError(
            "the vector env does not reset itself (autoreset_mode=DISABLED), and skrl's wrapper resets it only "
            "once: its envs stop after their first episodes. Make it with NEXT_STEP or SAME_STEP"
        )
    return mode


def _batches_of_actions(env: Wrapper, seed: int) -> list[Any]:
    """Return actions as an agent gives them: on the env's device, a row per env."""
    import torch
    from skrl.utils.spaces.torch import flatten_tensorized_space, sample_space, tensorize_space

    space = env.action_space
    state = torch.random.get_rng_state()
    batches = []
    for number in range(ACTIONS):
        space.seed(seed + number)  # the vector's space, made again each time, takes its seed from it
        sample = sample_space(space, batch_size=env.num_envs)
        batches.append(flatten_tensorized_space(tensorize_space(space, sample, device=env.device)))
    torch.random.set_rng_state(state)
    return batches


def _drawing(memory: Memory, batch_size: int) -> Callable[[], Any]:
    """Return what draws one batch of all that a memory has tensors for."""
    return partial(memory.sample, memory.get_tensor_names(), batch_size=batch_size)


def _gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of an agent module's ``compute_gae``, on tensors of shape (n_steps, n_envs, 1)."""
    import torch

    rewards, values, ends = (torch.from_numpy(rollout[name]).unsqueeze(-1) for name in ("rewards", "values", "ends"))
    call = partial(
        function,
        rewards=rewards,
        values=values,
        terminated=ends.bool(),
        truncated=torch.zeros_like(ends, dtype=torch.bool),
        last_values=torch.from_numpy(rollout["last_values"]).unsqueeze(-1),
        discount_factor=rollout["gamma"],
        lambda_coefficient=rollout["lam"],
    )
    return GaeCall(call, lambda output: output[1].squeeze(-1), is_normalised=True)


def _updater(agent: SAC, batch_size: int) -> Updater:
    """Return calls of ``agent.update`` with one gradient step, and the models in training mode as the agent has them.

    An update before anything is timed makes the models that are made with their first input.
    """
    from torch.nn.parameter import is_lazy

    cfg = agent.cfg
    if (cfg.batch_size, cfg.gradient_steps) != (batch_size, 1):
        raise ComponentError(
            f"the agent's update is {cfg.gradient_steps} gradient steps of batch size {cfg.batch_size}, expected "
            f"one of {batch_size}: SAC(…, cfg={{'batch_size': {batch_size}, 'gradient_steps': 1}})"
        )
    if not hasattr(agent, "_tensors_names") or not len(agent.memory):
        raise ComponentError(
            "the agent has nothing to update from: call agent.init(), and agent.memory.add_samples(…) first"
        )
    steps = 2 + bool(cfg.learn_entropy)  # the policy, both critics as one, the temperature
    times = {"timestep": cfg.learning_starts, "timesteps": cfg.learning_starts + 1}
    updater = Updater(agent, lambda: agent.update(**times), steps, (agent.memory,))
    agent.enable_models_training_mode(True)
    if any(is_lazy(parameter) for model in agent.models.values() for parameter in model.parameters()):
        updater.update()
    return updater


class SkrlLearner(Learner):
    """Calls ``agent.update`` on a full memory, with the models in training mode as the agent itself has them."""

    def __init__(self, agent: PPO, n_steps: int) -> None:
        rows = n_steps * agent.memory.num_envs
        if len(agent.memory) != rows or agent._current_next_observations is None:
            raise ComponentError(
                f"the agent's memory holds {len(agent.memory)} transitions, expected {rows}, {n_steps} steps of "
                f"{agent.memory.num_envs} envs: agent.record_transition(…) a rollout first, as a trainer does"
            )
        self.owner = agent
        self._values = agent.memory.get_tensor_by_name("values").clone()
        self.probes = tuple(probes_for({"forward": ["policy.act", "value.act"]}, agent))
        agent.enable_models_training_mode(True)

    def collect(self) -> None:
        """Leave the memory as the test has filled it."""

    def restore(self) -> None:
        """Restore the values, which an update scales, and drop the records that no trainer writes."""
        self.owner.memory.set_tensor_by_name("values", self._values)
        self.owner.tracking_data.clear()

    def update(self) -> None:
        """Do all epochs."""
        self.owner.update(timestep=0, timesteps=1)

    def iterate(self) -> object:
        """Raise ComponentError: the loop is a trainer's."""
        __tracebackhide__ = True
        raise ComponentError(
            "skrl's agents do not collect rollouts, its trainers do: rlperf_train(trainer.train, items=…), with the "
            "number of env steps"
        )


LIBRARY = Library(
    name="skrl",
    module="skrl",
    requirement="skrl[torch]",
    vecenv=(Adapter("skrl.envs.wrappers.torch:Wrapper", SkrlStepper),),
    replay=(Adapter("skrl.memories.torch:Memory", _drawing),),
    gae=tuple(
        Adapter(f"skrl.agents.torch.{agent}.{agent}:compute_gae", _gae)
        for agent in ("ppo", "a2c", "rpo", "trpo", "amp")
    ),
    sac=(Adapter("skrl.agents.torch.sac:SAC", _updater, attrgetter("cfg.batch_size")),),
    learn=(Adapter("skrl.agents.torch.ppo:PPO", SkrlLearner, attrgetter("cfg.rollouts")),),
    starter="test_skrl.py",
)
