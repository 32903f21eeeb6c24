"""TorchRL's replay buffers, GAE, and SAC updates composed of its loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.objectives.value import GAE

from pytest_rlperf.components.arrays import leaves
from pytest_rlperf.errors import ComponentError


class TorchRLSampler:
    """Draws from ``buffer``, whatever batch size it was made with; a batch of a GPU's storage is waited for."""

    def __init__(self, buffer: ReplayBuffer, batch_size: int) -> None:
        __tracebackhide__ = True
        _check_nothing_is_prefetched(buffer)
        _check_batches_are_full(buffer, batch_size)
        self._buffer = buffer
        self._batch_size = batch_size

    def draw(self) -> Any:
        """Draw a batch."""
        return self._buffer.sample(self._batch_size)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor's shape; ComponentError where they are not all on one device."""
        __tracebackhide__ = True
        first: tuple[str, Any] | None = None
        for path, tensor in _tensors(batch):
            first = first or (path, tensor)
            if getattr(tensor, "device", None) != getattr(first[1], "device", None):
                raise ComponentError(
                    f"the batch is on two devices: {first[0]} is on {first[1].device}, {path} on {tensor.device}"
                )
            yield path, tuple(tensor.shape)


class TorchRLGae:
    """Calls a GAE function on tensors of shape [n_envs, n_steps, 1]; tensors, whatever the ``backend``.

    It has the signature of ``generalized_advantage_estimate``. No episode is truncated.
    """

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        self._function = function
        self._arguments = {
            "gamma": rollout["gamma"],
            "lmbda": rollout["lam"],
            "state_value": _envs_first(rollout["values"]),
            "next_state_value": _envs_first(rollout["next_values"]),
            "reward": _envs_first(rollout["rewards"]),
            "done": _envs_first(rollout["ends"]).bool(),
            "terminated": _envs_first(rollout["ends"]).bool(),
        }

    def call(self) -> Any:
        """Compute advantages and value targets."""
        return self._function(**self._arguments)

    def advantages(self, output: Any) -> Any:
        """Return the advantages by step and env."""
        return output[0].squeeze(-1).T


class TorchRLGaeModule:
    """Calls a copy of a GAE module, with the rollout's gamma and lambda, on a TensorDict that has values already.

    The copy has no value network: its forward pass, no part of GAE, would be most of what is timed.
    """

    def __init__(self, module: GAE, rollout: Mapping[str, Any], backend: str) -> None:
        self._module = copy.copy(module)
        self._module._buffers = {  # of its own
            **module._buffers,
            "gamma": torch.tensor(rollout["gamma"]),
            "lmbda": torch.tensor(rollout["lam"]),
        }
        self._module.__dict__["value_network"] = None  # as its own __init__ does it: a network is none of its modules
        self.is_normalised: bool = module.average_gae
        self._is_time_first = module.time_dim in (0, -2)
        self._rollout = self._batch(rollout)

    def call(self) -> Any:
        """Compute advantages and value targets, into the TensorDict."""
        return self._module(self._rollout)

    def advantages(self, output: Any) -> Any:
        """Return the advantages by step and env."""
        found = output.get(self._module.tensor_keys.advantage).squeeze(-1)
        if self.is_normalised and found.numel() > 1:
            found = found * math.sqrt(found.numel() / (found.numel() - 1))  # by Bessel's estimate of the deviation
        return found if self._is_time_first else found.T

    def _batch(self, rollout: Mapping[str, Any]) -> TensorDict:
        """Return a rollout as collectors make it, of batch size [n_envs, n_steps]."""
        keys = self._module.tensor_keys
        tensors = {name: _envs_first(value) for name, value in rollout.items() if name not in ("gamma", "lam")}
        if self._is_time_first:
            tensors = {name: value.transpose(0, 1).contiguous() for name, value in tensors.items() if value.ndim > 2}
        ends = tensors["ends"].bool()
        batch = TensorDict({}, ends.shape[:2])
        batch.set(keys.value, tensors["values"])
        for key, tensor in (
            (keys.value, tensors["next_values"]),
            (keys.reward, tensors["rewards"]),
            (keys.done, ends),
            (keys.terminated, ends.clone()),
            ("truncated", torch.zeros_like(ends)),
        ):
            batch.set(("next", key), tensor)
        return batch


class TorchRLUpdater:
    """Calls ``agent.update(batch_size)`` of an object that holds a SACLoss; every optimizer it holds takes one step."""

    def __init__(self, agent: Any, batch_size: int) -> None:
        if not callable(getattr(agent, "update", None)):
            raise ComponentError(
                f"TorchRL has no call that is one SAC gradient step: give {type(agent).__qualname__} a method "
                "update(batch_size) that samples, computes the losses, steps the optimizers and the target updater"
            )
        self.owner: Any = agent
        self.steps: int | None = sum(isinstance(held, torch.optim.Optimizer) for held in _held(agent)) or None
        self._batch_size = batch_size

    def update(self) -> None:
        """Do one gradient step of every part."""
        self.owner.update(self._batch_size)

    def check(self) -> None:
        """Check that an update draws one batch, of the size that was asked for."""
        __tracebackhide__ = True
        buffers = [held for held in _held(self.owner) if isinstance(held, ReplayBuffer)]
        with _drawn_of(buffers) as batches:
            self.update()
        sizes = [len(batch) for batch in batches]
        if buffers and sizes != [self._batch_size]:
            raise ComponentError(
                f"update({self._batch_size}) drew batches of {sizes} transitions, expected one of {self._batch_size}"
            )


def _check_nothing_is_prefetched(buffer: ReplayBuffer) -> None:
    __tracebackhide__ = True
    ahead = getattr(buffer, "_prefetch_cap", 0)
    if ahead:
        raise ComponentError(
            f"the {type(buffer).__qualname__} prefetches: sample() hands out what its threads have drawn before, whose "
            f"time is no sample's. Make it without prefetch={ahead}"
        )


def _check_batches_are_full(buffer: ReplayBuffer, batch_size: int) -> None:
    """Raise ComponentError where the last batch of each pass over the buffer is smaller."""
    __tracebackhide__ = True
    sampler = buffer.sampler
    left = len(buffer) % batch_size
    if type(sampler) is SamplerWithoutReplacement and not sampler.drop_last and left:
        raise ComponentError(
            f"sampling without replacement, each pass over {len(buffer)} transitions ends with a batch of {left}: make "
            f"the sampler with drop_last=True and the buffer with batch_size={batch_size}, or let it hold a multiple"
        )


def _tensors(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch, each with where it was found."""
    if is_tensor_collection(batch):
        for key, tensor in batch.items(include_nested=True, leaves_only=True):
            yield str(key), tensor
    else:
        yield from leaves(batch)


def _envs_first(array: Any) -> Any:
    """Return an array of shape (n_steps, n_envs) as a tensor of shape [n_envs, n_steps, 1]."""
    return torch.from_numpy(array).movedim(0, -1).contiguous().unsqueeze(-1)


def _held(agent: Any) -> Iterator[Any]:
    """Yield what an object holds by name, as a module, or in a list or dictionary of its own."""
    own = vars(agent)
    for value in (*own.values(), *own.get("_modules", {}).values()):
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value
        yield value


@contextmanager
def _drawn_of(buffers: list[ReplayBuffer]) -> Iterator[list[Any]]:
    """Yield a list that gets every batch drawn of any of ``buffers`` while the body runs."""
    batches: list[Any] = []

    def watch(buffer: ReplayBuffer) -> None:
        sample = buffer.sample

        def watched(*args: Any, **kwargs: Any) -> Any:
            batches.append(sample(*args, **kwargs))
            return batches[-1]

        buffer.sample = watched

    with ExitStack() as stack:
        for buffer in buffers:
            watch(buffer)
            stack.callback(delattr, buffer, "sample")
        yield batches
