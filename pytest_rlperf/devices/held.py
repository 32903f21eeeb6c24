"""Which devices a workload works on, told by what it holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from pytest_rlperf.probes.reached import reached

# Kinds of devices in DLPack's numbers: https://dmlc.github.io/dlpack/latest/c_api.html
_DLPACK_ON_HOST = frozenset({1, 3, 11})  # pinned memory is the host's
_DLPACK = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def devices_of(objects: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the devices that tensors are on which these objects hold, or functions refer to.

    They are PyTorch's tensors, those of modules and optimizers included, and whatever else has a class with
    ``holds_device_memory`` and a ``device``. Names are PyTorch's (``"cpu"``, ``"cuda:0"``), sorted. Other libraries'
    arrays on a device are told by the array API's standard, with the library's name: ``"cupy cuda:0"``.
    """
    torch = sys.modules.get("torch")
    tensor = () if torch is None else torch.Tensor
    found: set[str] = set()
    for number, held in enumerate(objects):
        for _, value in reached(str(number), held):
            # The class is asked, not the object: a proxy or a lazy attribute may do anything when it is.
            kind = type(value)
            if (tensor and issubclass(kind, tensor)) or getattr(kind, "holds_device_memory", False) is True:
                found.add(str(value.device))  # type: ignore[attr-defined]  # which both have
            elif hasattr(kind, "__dlpack_device__"):
                found |= _of_another_library(value, kind)
    return tuple(sorted(found))


def _of_another_library(array: object, kind: type) -> set[str]:
    """Return the name of the device that an array is on which is not PyTorch's; nothing for the host's memory."""
    with suppress(Exception):  # one whose memory was given away, or a class that only looks like an array's
        number, index = kind.__dlpack_device__(array)  # type: ignore[attr-defined]
        if int(number) not in _DLPACK_ON_HOST:
            return {f"{kind.__module__.partition('.')[0]} {_DLPACK.get(int(number), 'device')}:{int(index)}"}
    return set()
