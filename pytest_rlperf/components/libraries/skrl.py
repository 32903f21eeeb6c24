"""skrl's wrapped envs, memories, GAE, SAC and PPO updates, of its PyTorch side.

skrl has no call that collects a rollout: its trainers have the loop. A thunk measures one, or a whole iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.checks import check_device, to_numpy
from pytest_rlperf.components.contracts import (
    ACTION,
    ACTIONS,
    ENV_STEP,
    RESET,
    GaeCall,
    Learner,
    Sampler,
    Stepper,
    Updater,
    autoreset_mode,
    check_rows,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes.functions import probes_for

if TYPE_CHECKING:
    from skrl.agents.torch.ppo import PPO
    from skrl.agents.torch.sac import SAC
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import Memory

_CHECKED_STEPS = 256  # at most, until an episode has ended
_TOLERANCE = 1e-3  # of advantages that are normalised again


class SkrlStepper(Stepper):
    """Steps a wrapped env, and leaves the calls that reset an env out of the count.

    A vector env resets itself; under gymnasium's NEXT_STEP that takes a call of its own, which is no step. A single env
    is reset as skrl's trainers do it, part of what stepping on takes.
    """

    def __init__(self, env: Wrapper, seed: int) -> None:
        self.mode = _autoreset_mode(env)
        super().__init__(env, env.num_envs, _batches_of_actions(env, seed))
        if "_seed" in vars(env):
            env._seed = seed  # which its first reset takes; there is no other way to seed it

    def check(self) -> None:
        """Reset, step until an episode has ended and once more, and check; ComponentError names what is wrong."""
        __tracebackhide__ = True
        self.env.reset()
        before: Any = None
        for _ in range(_CHECKED_STEPS):
            over = self._check_step(self.env.step(next(self._actions)))
            if self.num_envs == 1 and over.any():
                self.env.reset()
            if before is not None and before.any():
                self._check_reset(before, over)
                break
            before = over
        self._calls, self._ended = 0, []
        self._due = int(over.sum()) if self.mode == "NextStep" else 0
        self.call()

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._calls += 1
        if self.mode == "NextStep":
            self._ended.append((terminated, truncated))
        if self.num_envs == 1 and (terminated.any() or truncated.any()):
            with RESET:
                self.env.reset()

    def _n_ended(self, ended: tuple[Any, Any]) -> int:
        terminated, truncated = ended
        return int((terminated | truncated).sum())

    def _check_reset(self, before: Any, over: Any) -> None:
        """Check that no episode ended with the step that should have reset its env."""
        __tracebackhide__ = True
        again = (before & over).flatten().nonzero().flatten().tolist()
        if again and self.mode == "NextStep":
            raise ComponentError(
                f"env {again[0]}'s episode ended, and with the next step again, which should have reset it: does the "
                "env reset itself?"
            )

    def _check_step(self, stepped: tuple[Any, ...]) -> Any:
        """Check one step, and return in which envs an episode ended."""
        __tracebackhide__ = True
        observations, rewards, terminated, truncated, _ = stepped
        flags = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        check_rows(self.num_envs, {"observations": observations.shape}, observations.shape[1:])
        check_rows(self.num_envs, {name: tensor.shape for name, tensor in flags.items()}, (1,))
        for name, tensor in {"observations": observations, **flags}.items():
            check_device(f"step()'s {name}", tensor, self.env.device)
        return terminated | truncated


def _autoreset_mode(env: Wrapper) -> str:
    """Return how a wrapped env resets: gymnasium's name for it, or "Explicit" for a single env."""
    __tracebackhide__ = True
    from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper

    if not getattr(env, "_vectorized", env.num_envs > 1):
        return "Explicit"
    if not isinstance(env, GymnasiumWrapper):
        return "SameStep"  # simulators of many envs do it so, and gymnasium's predecessor
    mode = autoreset_mode(env) or "NextStep"
    if mode == "Disabled":
        raise ComponentError(
            "the vector env does not reset itself (autoreset_mode=DISABLED), and skrl's wrapper resets it but once: "
            "after their first episodes its envs do not go on. Make it with NEXT_STEP or SAME_STEP"
        )
    return mode


def _batches_of_actions(env: Wrapper, seed: int) -> list[Any]:
    """Return actions as an agent gives them: on the env's device, a row an env."""
    import torch
    from skrl.utils.spaces.torch import flatten_tensorized_space, sample_space, tensorize_space

    space = env.action_space
    state = torch.random.get_rng_state()
    batches = []
    for number in range(ACTIONS):
        space.seed(seed + number)  # from which the vector's space, made anew each time, takes its own
        sample = sample_space(space, batch_size=env.num_envs)
        batches.append(flatten_tensorized_space(tensorize_space(space, sample, device=env.device)))
    torch.random.set_rng_state(state)
    return batches


class SkrlSampler(Sampler):
    """Draws one batch of all that a memory has tensors for."""

    def __init__(self, memory: Memory, batch_size: int) -> None:
        if not len(memory):
            raise ComponentError("the memory is empty: memory.add_samples(…) first")
        super().__init__(memory, batch_size)
        self.device = memory.device
        self._names = memory.get_tensor_names()

    def draw(self) -> Any:
        """Draw a batch."""
        return self.buffer.sample(self._names, batch_size=self.batch_size)

    def arrays(self, batch: Any) -> Iterable[tuple[str, Any]]:
        """Return the tensors by the memory's names."""
        return zip(self._names, batch[0], strict=True)


class SkrlGae(GaeCall):
    """Calls an agent module's ``compute_gae`` on tensors of shape (n_steps, n_envs, 1), whatever the ``backend``.

    It returns normalised advantages. They are compared with its returns less the values, and those with the reference.
    """

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        import torch

        rewards, values, ends = (
            torch.from_numpy(rollout[name]).unsqueeze(-1) for name in ("rewards", "values", "ends")
        )
        arguments = {
            "rewards": rewards,
            "values": values,
            "terminated": ends.bool(),
            "truncated": torch.zeros_like(ends, dtype=torch.bool),
            "last_values": torch.from_numpy(rollout["last_values"]).unsqueeze(-1),
            "discount_factor": rollout["gamma"],
            "lambda_coefficient": rollout["lam"],
        }
        self._values = values
        self.call = partial(function, **arguments)

    def advantages(self, output: Any) -> Any:
        """Return the advantages as they were before they were normalised."""
        __tracebackhide__ = True
        returns, normalised = output
        advantages = returns - self._values
        expected = (advantages - advantages.mean()) / advantages.std()
        if normalised.shape != expected.shape or not normalised.allclose(expected, atol=_TOLERANCE):
            raise ComponentError(
                "the advantages are not those of the returns, normalised: their mean and deviation are "
                f"{normalised.mean():.3g} and {normalised.std():.3g}, expected 0 and 1"
            )
        return to_numpy(advantages).squeeze(-1)


class SkrlUpdater(Updater):
    """Calls ``agent.update`` of one gradient step, with the models in training mode as the agent itself has it.

    Models that are made with their first input are made before anything is timed, by an update.
    """

    def __init__(self, agent: SAC, batch_size: int) -> None:
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
        self.owner: SAC = agent
        self.steps = 2 + bool(cfg.learn_entropy)  # the policy, both critics as one, the temperature
        self.batch_size = batch_size
        self.buffers = (agent.memory,)
        self.device = agent.device
        self._times = {"timestep": cfg.learning_starts, "timesteps": cfg.learning_starts + 1}
        agent.enable_models_training_mode(True)
        if any(is_lazy(parameter) for model in agent.models.values() for parameter in model.parameters()):
            self.update()

    def update(self) -> None:
        """Do one gradient step of every part."""
        self.owner.update(**self._times)


class SkrlLearner(Learner):
    """Calls ``agent.update`` on a memory that is full, with the models in training mode as the agent itself has it."""

    def __init__(self, agent: PPO, n_steps: int) -> None:
        rows = n_steps * agent.memory.num_envs
        if len(agent.memory) != rows or agent._current_next_observations is None:
            raise ComponentError(
                f"the agent's memory holds {len(agent.memory)} transitions, expected {rows}, {n_steps} steps of "
                f"{agent.memory.num_envs} envs: agent.record_transition(…) a rollout first, as a trainer does"
            )
        self.owner: PPO = agent
        self._values = agent.memory.get_tensor_by_name("values").clone()
        self.probes = tuple(probes_for({"forward": ["policy.act", "value.act"]}, agent))
        agent.enable_models_training_mode(True)

    def collect(self) -> None:
        """Leave the memory as the test has filled it."""

    def restore(self) -> None:
        """Give back the values, which an update scales, and forget the records that no trainer writes."""
        self.owner.memory.set_tensor_by_name("values", self._values)
        self.owner.tracking_data.clear()

    def update(self) -> None:
        """Do all epochs."""
        self.owner.update(timestep=0, timesteps=1)

    def iterate(self) -> object:
        """Raise ComponentError: the loop is a trainer's."""
        __tracebackhide__ = True
        raise ComponentError(
            "skrl's agents collect no rollouts, its trainers do: rlperf_train(trainer.train, items=…), the env steps "
            "that the trainer's timesteps are"
        )

    env_steps = iterate


LIBRARY = Library(
    name="skrl",
    module="skrl",
    requirement="skrl[torch]",
    vecenv=(Adapter("skrl.envs.wrappers.torch:Wrapper", SkrlStepper),),
    replay=(Adapter("skrl.memories.torch:Memory", SkrlSampler),),
    gae=tuple(
        Adapter(f"skrl.agents.torch.{agent}.{agent}:compute_gae", SkrlGae)
        for agent in ("ppo", "a2c", "rpo", "trpo", "amp")
    ),
    sac=(Adapter("skrl.agents.torch.sac:SAC", SkrlUpdater),),
    learn=(Adapter("skrl.agents.torch.ppo:PPO", SkrlLearner),),
    starter="test_skrl.py",
)
