"""The vocabulary: the names of counters, with units and meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CounterName(NamedTuple):
    """The unit of a counter, ``"1"`` for plain numbers, and its meaning in one line."""

    unit: str
    meaning: str


# A count is rounded down to a multiple of this: smaller differences are no differences in size.
STEPS: Mapping[str, int] = {"host_peak_bytes": 1024}

# A name that ends with a colon is a family: a part follows it that names what was counted.
NAMES: Mapping[str, CounterName] = {
    "ops": CounterName("1", "tensor operations that PyTorch dispatched, forward and backward"),
    "ops:": CounterName("1", "the same by name: `ops:aten::mm`"),
    "ops_backward": CounterName("1", "tensor operations dispatched while autograd's backward ran"),
    "float64_ops": CounterName("1", "tensor operations that read or wrote a float64 tensor"),
    "grad_ops": CounterName("1", "tensor operations on what requires a gradient, with gradients on; `detach` is none"),
    "optimizer_steps": CounterName("1", "steps of PyTorch's optimizers"),
    "python_calls": CounterName("1", "calls of Python functions, and resumptions of generators"),
    "native_calls": CounterName("1", "calls of functions of C, C++ or Rust; operators and constructors are none"),
    "native_calls:": CounterName("1", "the same by top-level module: `native_calls:numpy`; the interpreter's own too"),
    "env_steps": CounterName("1", "steps of environments; one of a vector env counts as many as it has"),
    "host_peak_bytes": CounterName("B", "most bytes of Python's and NumPy's memory in use above those at its start"),
    "host_net_bytes": CounterName("B", "bytes of Python's and NumPy's memory that it has taken and not given back"),
    "tensor_peak_bytes": CounterName("B", "most bytes of PyTorch's host memory in use above those at its start"),
    "tensor_net_bytes": CounterName("B", "bytes of PyTorch's host memory that it has taken and not given back"),
    "tensor_allocations": CounterName("1", "times that PyTorch asked for host memory"),
    "collections": CounterName("1", "runs of the garbage collector, counted from just after one"),
    "objects_left": CounterName(
        "1", "objects that a call leaves behind after a collection, of kinds that can be cyclic"
    ),
    "garbage": CounterName("1", "objects that only the garbage collector could free"),
    "syncs": CounterName("1", "implicit waits of the host for the device"),
    "copies_to_device": CounterName("1", "copies from the host to a device"),
    "copies_to_host": CounterName("1", "copies from a device to the host, `item()` included"),
    "pageable_copies": CounterName("1", "copies between host and device whose host memory was not pinned"),
    "kernels": CounterName("1", "kernels launched on the device"),
    "device_allocations": CounterName("1", "times that memory was asked of the device"),
    "device_peak_bytes": CounterName("B", "most bytes of the device's memory in use above those at its start"),
    "graphs": CounterName("1", "graphs of torch.compile that were run"),
    "graph_breaks": CounterName("1", "graph breaks of torch.compile that were run into"),
    "recompiles": CounterName("1", "code that torch.compile compiled anew"),
}
