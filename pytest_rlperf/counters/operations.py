"""Tensor operations: what PyTorch dispatches, and what that does to gradients, precision and devices."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from pytest_rlperf.counters.instrument import TotalsInstrument
from pytest_rlperf.counters.sources import is_own

_COPIES = frozenset({"aten::_to_copy", "aten::copy_"})
_ITEM = "aten::_local_scalar_dense"  # item()
_DETACH = "aten::detach"  # ends what grad_ops is about, and is no part of it


class Operations(TotalsInstrument):
    """Counts tensor operations, seen by a dispatch mode: below autograd, whichever thread its backward runs in."""

    names: tuple[str, ...] = ("ops", "ops_backward", "float64_ops", "grad_ops")

    def __init__(self) -> None:
        super().__init__()
        if _has_accelerator():
            self.names = (*self.names, "copies_to_device", "copies_to_host", "pageable_copies")

    def on(self) -> AbstractContextManager[None]:
        """Count while the body runs; where PyTorch is not loaded it dispatches nothing."""
        return _make_mode(self) if "torch" in sys.modules else nullcontext()

    def note(self, name: str, inputs: list[Any], outputs: list[Any]) -> None:
        """Count one operation."""
        import torch

        names = ["ops", f"ops:{name}"]
        if torch._C._current_graph_task_id() != -1:
            names.append("ops_backward")
        if any(tensor.dtype is torch.float64 for tensor in (*inputs, *outputs)):
            names.append("float64_ops")
        if name != _DETACH and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            names.append("grad_ops")
        names += _copies(name, inputs, outputs)
        self.totals.packed += self.totals.unit(*names)


def _has_accelerator() -> bool:
    if "torch" not in sys.modules:
        return False
    import torch

    # PyTorch before 2.6 knows of no accelerator by itself.
    known = getattr(torch, "accelerator", None)
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available() or (known and known.is_available()))


def _copies(name: str, inputs: list[Any], outputs: list[Any]) -> Iterator[str]:
    """Yield what an operation is as a copy between a device and the host."""
    if name == _ITEM:
        if inputs[0].device.type != "cpu":
            yield from ("copies_to_host", "pageable_copies")
    elif name in _COPIES:
        # copy_(target, source) and _to_copy(source) both return the target.
        source, target = inputs[-1], outputs[0]
        if source.device.type != target.device.type and "cpu" in (source.device.type, target.device.type):
            to_host = target.device.type == "cpu"
            yield "copies_to_host" if to_host else "copies_to_device"
            if not (target if to_host else source).is_pinned():
                yield "pageable_copies"


def _make_mode(counter: Operations) -> AbstractContextManager[None]:
    """Return a dispatch mode that tells the counter of every operation."""
    from torch.utils import _python_dispatch

    def dispatch(self: object, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        # Profilers' marks are no operations, and what a probe looks at is not the call's.
        if not name.startswith("profiler::") and not _is_of_probes(sys._getframe().f_back):
            counter.note(name, tensors_in((*args, *(kwargs or {}).values())), tensors_in((result,)))
        return result

    base: Any = _python_dispatch.TorchDispatchMode
    # Were it asked whether to keep the compiler off, PyTorch would import that first, which takes most of a second.
    members = {"__torch_dispatch__": dispatch, "_should_skip_dynamo": classmethod(lambda cls: False)}
    mode: AbstractContextManager[None] = type("CountingMode", (base,), members)()
    return mode


def _is_of_probes(caller: FrameType | None) -> bool:
    """Whether the code that asked for an operation is a probe's; autograd's own threads have none of Python's."""
    return caller is not None and is_own(caller.f_code)


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Return the tensors among values, and in lists and tuples among them."""
    import torch

    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found
