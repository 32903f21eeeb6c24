"""Arrays of any library, without importing one: where they are in a value, as NumPy's, and their device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_rlperf.errors import ComponentError


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of an object; None where it has none, or where reading it raises anything."""
    # Not only AttributeError: a mapping with its keys for attributes raises KeyError, a remote proxy anything.
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def leaves(value: Any, path: str = "", *, plain: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield every array within tuples, mappings, dataclasses and the like, with where it was found.

    With ``plain``, numbers and strings as well.
    """
    if attribute(value, "__class__") is None:
        return  # a weak proxy of what is gone: even reading its class raises
    is_array = attribute(value, "shape") is not None and attribute(value, "dtype") is not None
    if is_array or (plain and isinstance(value, (bool, int, float, str))):
        yield path or "output", value
    elif isinstance(value, Mapping) or (callable(attribute(value, "keys")) and hasattr(type(value), "__getitem__")):
        for key in value.keys():  # noqa: SIM118 - TensorDict iterates over rows, not keys
            yield from leaves(value[key], f"{path}[{key!r}]", plain=plain)
    elif attribute(value, "_fields") is not None:
        for name in value._fields:
            yield from leaves(getattr(value, name), f"{path}.{name}".lstrip("."), plain=plain)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from leaves(member, f"{path}[{index}]", plain=plain)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}".lstrip("."), plain=plain)


def arrays_in(value: Any) -> list[tuple[str, Any]]:
    """Return every array of a batch or rollout, with where it was found: also of an object, in its attributes."""
    found = list(leaves(value))
    if not found and not callable(value):
        attributes = attribute(value, "__dict__") or {}
        found = [leaf for name, member in attributes.items() for leaf in leaves(member, name)]
    return found


NO_ARRAYS = "arrays of NumPy, PyTorch and the like are looked for, in tuples, lists, mappings and attributes"


def to_numpy(array: Any) -> Any:
    """Return a NumPy view or copy of an array of NumPy or PyTorch; what NumPy has no type for comes as float32."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().cpu()
        try:
            array = array.numpy()
        except TypeError:  # bfloat16 and the like
            array = array.float().numpy()
    return np.asarray(array)


def usable_device(name: Any) -> Any:
    """Return the ``torch.device`` of a name; ComponentError, with what there is, where this machine has no such one."""
    __tracebackhide__ = True
    import torch

    device = torch.device(name)
    found = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    found += ["mps"] if torch.backends.mps.is_available() else []
    kind = device.type if device.index is None else str(device)
    # For other accelerators PyTorch itself raises an error.
    if device.type in ("cuda", "mps") and not any(each == kind or each.startswith(f"{kind}:") for each in found):
        build = torch.version.cuda or torch.version.hip or "no GPU"
        raise ComponentError(
            f"device={str(name)!r}: PyTorch {torch.__version__}, built for {build}, finds only "
            f"{', '.join(found)} on this machine: choose one of these, or check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    return device


def check_device(what: str, tensor: Any, device: Any) -> None:
    """Raise ComponentError unless a tensor is on a device of the type that it should be on, a ``torch.device``."""
    __tracebackhide__ = True
    if tensor.device.type != device.type:
        raise ComponentError(f"{what} is on {tensor.device}, expected {device}")
