"""A replay buffer whose batches are dictionaries of arrays that can hold each other, as Tianshou's are."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

REGRESSED = False


@runtime_checkable
class BatchProtocol(Protocol):
    """What a batch can do."""

    def keys(self) -> Any: ...
    def items(self) -> Any: ...
    def stack(self, batches: Any) -> Any: ...
    def split(self, size: int) -> Any: ...
    def is_empty(self) -> bool: ...


class Batch:
    """Named arrays, or batches within."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            is_batch = isinstance(value, BatchProtocol) if REGRESSED else isinstance(value, Batch)
            self.__dict__[name] = value if is_batch else np.asarray(value)

    def keys(self) -> Any:
        return self.__dict__.keys()

    def items(self) -> Any:
        return self.__dict__.items()

    def stack(self, batches: Any) -> Any:
        return Batch(**{name: np.stack([each.__dict__[name] for each in batches]) for name in self.__dict__})

    def split(self, size: int) -> Any:
        return [self[start : start + size] for start in range(0, len(next(iter(self.__dict__.values()))), size)]

    def is_empty(self) -> bool:
        return not self.__dict__

    def __getitem__(self, index: Any) -> Batch:
        return Batch(**{name: value[index] for name, value in self.__dict__.items()})


class ReplayBuffer:
    """Transitions, sampled as batches."""

    def __init__(self, size: int) -> None:
        arrays = {name: np.random.rand(size, 4).astype(np.float32) for name in ("obs", "act", "obs_next")}
        self.stored = Batch(
            **arrays, rew=np.random.rand(size), done=np.zeros(size, bool), info=Batch(t=np.arange(size))
        )
        self.size = size

    def sample(self, batch_size: int) -> Any:
        found = self.stored[np.random.randint(0, self.size, batch_size)]
        return {name: value for name, value in found.items() if name != "info"}
