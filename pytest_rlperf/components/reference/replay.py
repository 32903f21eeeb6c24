"""A ring buffer of transitions in NumPy arrays, sampled uniformly into PyTorch tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pytest_rlperf.components.arrays import usable_device
from pytest_rlperf.timers import hierarchical_timer

_INDEX = hierarchical_timer("index")
_GATHER = hierarchical_timer("gather")
_CONVERT = hierarchical_timer("convert")


class Batch(NamedTuple):
    """B transitions, float32: obs and next_obs (B, obs_dim), actions (B, act_dim), rewards and dones (B,).

    ``dones`` is 1 where the episode terminated, so that there is no value after it.
    """

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    dones: torch.Tensor


class ReplayBuffer:
    """The last ``capacity`` transitions; sampling is uniform with replacement and follows ``seed``."""

    def __init__(
        self, capacity: int, obs_dim: int, act_dim: int, seed: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        if min(capacity, obs_dim, act_dim) < 1:
            raise ValueError(f"sizes must be at least 1: got capacity={capacity}, obs_dim={obs_dim}, act_dim={act_dim}")
        self.capacity = capacity
        self.device: torch.device = usable_device(device)
        self._obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self._actions = np.zeros((capacity, act_dim), dtype=np.float32)
        self._rewards = np.zeros(capacity, dtype=np.float32)
        self._next_obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self._dones = np.zeros(capacity, dtype=np.float32)
        self._columns = (self._obs, self._actions, self._rewards, self._next_obs, self._dones)
        self._rng = np.random.default_rng(seed)
        self._next_row = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self, obs: ArrayLike, actions: ArrayLike, rewards: ArrayLike, next_obs: ArrayLike, dones: ArrayLike
    ) -> None:
        """Store N transitions, arrays of shape (N, ...), over the oldest ones where the buffer is full.

        ValueError where a shape is not that of N transitions of this buffer, or N is above the capacity.
        """
        new = [np.asarray(column) for column in (obs, actions, rewards, next_obs, dones)]
        n = len(new[0])
        for name, column, stored in zip(Batch._fields, new, self._columns, strict=True):
            if column.shape != (n, *stored.shape[1:]):
                raise ValueError(f"{name} must have shape {(n, *stored.shape[1:])}: got {column.shape}")
        if n > self.capacity:
            raise ValueError(f"{n} transitions at once do not fit a buffer of capacity {self.capacity}")
        first = min(n, self.capacity - self._next_row)  # how many fit before the end of the ring
        for column, stored in zip(new, self._columns, strict=True):
            stored[self._next_row : self._next_row + first] = column[:first]
            stored[: n - first] = column[first:]
        self._next_row = (self._next_row + n) % self.capacity
        self._size = min(self._size + n, self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` stored transitions, drawn with replacement, in tensors of their own on the device.

        ValueError where the buffer is empty or ``batch_size`` is below one.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1: got {batch_size}")
        if not self._size:
            raise ValueError("the replay buffer is empty: add transitions before sampling")
        with _INDEX:
            rows = self._rng.integers(self._size, size=batch_size)
        with _GATHER:
            columns = [column.take(rows, axis=0) for column in self._columns]
        with _CONVERT:
            return Batch(*[self._tensor(column) for column in columns])

    def _tensor(self, column: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(column).to(self.device)
