"""What the checks need to know about arrays of any library, without importing one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_rlperf.errors import ComponentError


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array within tuples, mappings, dataclasses and the like, with where it was found."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        yield path or "output", value
    elif isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        for key in value.keys():  # noqa: SIM118 - TensorDict iterates over rows, not keys
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif hasattr(value, "_fields"):
        for name in value._fields:
            yield from leaves(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from leaves(member, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))


def to_numpy(array: Any) -> Any:
    """Return a NumPy view or copy of an array of NumPy or PyTorch."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    return np.asarray(array)


def check_observations(observations: Any, num_envs: int) -> None:
    """Raise ComponentError unless every array of a step's observations has a row an env."""
    __tracebackhide__ = True
    for path, array in leaves(observations, "observation"):
        if tuple(array.shape[:1]) != (num_envs,):
            raise ComponentError(
                f"step() returned {path} of shape {tuple(array.shape)}; {num_envs} envs have as many rows"
            )


def check_device(what: str, tensor: Any, device: Any) -> None:
    """Raise ComponentError unless a tensor is on the type of device it is said to be on, a ``torch.device``."""
    __tracebackhide__ = True
    if tensor.device.type != device.type:
        raise ComponentError(f"{what} is on {tensor.device}, expected {device}")


def waiting_for(device: Any) -> Callable[[], object]:
    """Return what waits until a ``torch.device`` has done what it was given; nothing has to wait for a CPU."""
    import torch

    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
