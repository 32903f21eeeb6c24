"""skrl's memories, GAE and SAC update, of its PyTorch side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from skrl.agents.torch.sac import SAC
from skrl.memories.torch import Memory
from torch.nn.parameter import is_lazy

from pytest_rlperf.components.arrays import check_device, to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes.attach import put

_TOLERANCE = 1e-3  # of advantages that are normalised again


class SkrlSampler:
    """Draws one batch of all that a memory has tensors for."""

    def __init__(self, memory: Memory, batch_size: int) -> None:
        if not len(memory):
            raise ComponentError("the memory is empty: memory.add_samples(…) what it is to be sampled from first")
        self._memory = memory
        self._batch_size = batch_size
        self._names = memory.get_tensor_names()

    def draw(self) -> Any:
        """Draw a batch."""
        return self._memory.sample(self._names, batch_size=self._batch_size)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor's shape; ComponentError where one is not on the memory's device."""
        __tracebackhide__ = True
        for name, tensor in zip(self._names, batch[0], strict=True):
            check_device(f"the batch's {name}", tensor, self._memory.device)
            yield name, tuple(tensor.shape)


class SkrlGae:
    """Calls an agent module's ``compute_gae`` on tensors of shape (n_steps, n_envs, 1), whatever the ``backend``.

    It returns normalised advantages. They are compared with its returns less the values, and those with the reference.
    """

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        rewards, values, ends = (
            torch.from_numpy(rollout[name]).unsqueeze(-1) for name in ("rewards", "values", "ends")
        )
        self._function = function
        self._arguments = {
            "rewards": rewards,
            "values": values,
            "terminated": ends.bool(),
            "truncated": torch.zeros_like(ends, dtype=torch.bool),
            "last_values": torch.from_numpy(rollout["last_values"]).unsqueeze(-1),
            "discount_factor": rollout["gamma"],
            "lambda_coefficient": rollout["lam"],
        }

    def call(self) -> Any:
        """Compute returns and advantages."""
        return self._function(**self._arguments)

    def advantages(self, output: Any) -> Any:
        """Return the advantages as they were before they were normalised."""
        __tracebackhide__ = True
        returns, normalised = output
        advantages = returns - self._arguments["values"]
        expected = (advantages - advantages.mean()) / advantages.std()
        if normalised.shape != expected.shape or not torch.allclose(normalised, expected, atol=_TOLERANCE):
            raise ComponentError(
                "the advantages are not those of the returns, normalised: their mean and deviation are "
                f"{normalised.mean():.3g} and {normalised.std():.3g}, expected 0 and 1"
            )
        return to_numpy(advantages).squeeze(-1)


class SkrlUpdater:
    """Calls ``agent.update`` of one gradient step, with the models in training mode as the agent itself has it.

    Models that are made with their first input are made before anything is timed, by an update.
    """

    def __init__(self, agent: SAC, batch_size: int) -> None:
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
        self.steps: int | None = 2 + bool(cfg.learn_entropy)  # the policy, both critics as one, the temperature
        self._times = {"timestep": cfg.learning_starts, "timesteps": cfg.learning_starts + 1}
        agent.enable_models_training_mode(True)
        if any(is_lazy(parameter) for model in agent.models.values() for parameter in model.parameters()):
            self.update()

    def update(self) -> None:
        """Do one gradient step of every part."""
        self.owner.update(**self._times)

    def check(self) -> None:
        """Check that an update draws one batch, of the size and to the device it is said to be of."""
        __tracebackhide__ = True
        memory, batch_size = self.owner.memory, self.owner.cfg.batch_size
        drawn: list[Any] = []
        sample = memory.sample

        def noted(*args: Any, **kwargs: Any) -> Any:
            batches = sample(*args, **kwargs)
            drawn.extend(tensor for batch in batches for tensor in batch if tensor is not None)
            return batches

        undo = put(memory, "sample", noted)
        try:
            self.update()
        finally:
            undo()
        sizes = {tensor.shape[0] for tensor in drawn}
        if sizes != {batch_size}:
            raise ComponentError(f"one update drew {sorted(sizes)} transitions, expected a batch of {batch_size}")
        for tensor in drawn:
            check_device("the batch", tensor, self.owner.device)
