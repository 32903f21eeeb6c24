"""Which devices a workload works on, told by what it holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pytest_rlperf.timers.probes.reached import reached


def devices_of(objects: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the devices that tensors are on which these objects hold, or functions refer to.

    They are PyTorch's tensors, those of modules and optimizers included, and whatever else has a class with
    ``holds_device_memory`` and a ``device``. Names are PyTorch's (``"cpu"``, ``"cuda:0"``), sorted.
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
    return tuple(sorted(found))
