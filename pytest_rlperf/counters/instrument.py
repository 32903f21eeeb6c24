"""The counters' names, and instruments, which count by phase, including the kind that keeps running totals."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from pytest_rlperf.model.measured import Count
from pytest_rlperf.probes.sections import add_sections, pending_sections
from pytest_rlperf.timers import recording_into
from pytest_rlperf.timers.node import Node, Stack
from pytest_rlperf.timers.scope import PROCESS
from pytest_rlperf.timers.tree import EdgeTree, Tree

# A count is rounded down to a multiple of this step: smaller differences do not count as differences in size.
STEPS: Mapping[str, int] = {"host_peak_bytes": 1024, "garbage_bytes": 1024}

# The meaning of each counter, in one line; counters named `_bytes` are sizes. A name that ends with a colon is a
# family's, and a part that names what was counted follows it.
NAMES: Mapping[str, str] = {
    "ops": "tensor operations that PyTorch dispatched, forward and backward",
    "ops:": "the same by name: `ops:aten::mm`",
    "ops_backward": "tensor operations dispatched while autograd's backward ran",
    "float64_ops": "tensor operations that read or wrote a float64 tensor",
    "grad_ops": "tensor operations that autograd records; `detach` is not counted",
    "optimizer_steps": "steps of PyTorch's optimizers",
    "python_calls": "calls of Python functions, and resumptions of generators",
    "native_calls": "calls of C, C++ or Rust functions, without operators and constructors",
    "native_calls:": "the same by top-level module, the interpreter's own included: `native_calls:numpy`",
    "env_steps": "steps of environments; a step of a vector env counts once for each of its envs",
    "host_peak_bytes": "peak of Python's and NumPy's memory, above its level at the start",
    "host_net_bytes": "Python's and NumPy's memory that was allocated and not freed",
    "tensor_peak_bytes": "peak of PyTorch's host memory, above its level at the start",
    "tensor_net_bytes": "PyTorch's host memory that was allocated and not freed",
    "tensor_allocations": "PyTorch's requests for host memory",
    "collections": "runs of the garbage collector, if the call begins right after a run",
    "objects_left": "objects that a call leaves behind after a collection, of kinds that can be cyclic",
    "garbage": "objects that only the garbage collector could free",
    "garbage_bytes": "Python's and NumPy's memory that the collector freed with them",
    "tensor_garbage_bytes": "PyTorch's host memory that the collector freed with them",
    "garbage_files": "open files that the collector closed with them",
    "garbage_threads": "threads that the collector ended with them",
    "garbage_processes": "child processes that the collector ended with them",
    "syncs": "implicit waits of the host for the device",
    "copies_to_device": "copies from the host to a device",
    "copies_to_host": "copies from a device to the host, `item()` included",
    "pageable_copies": "copies between host and device whose host memory was not pinned",
    "kernels": "GPU kernels launched on the device",
    "device_allocations": "requests for the device's memory",
    "device_peak_bytes": "peak of the device's memory, above its level at the start",
    "graphs": "graphs of torch.compile that ran",
    "graph_breaks": "graph breaks of torch.compile that the call reached",
    "recompiles": "programs that torch.compile, Numba or JAX compiled",
}

# Counters that are work by themselves: not sizes, not what a call leaves behind, and not part of another counter.
WORK = (
    "ops",
    "optimizer_steps",
    "python_calls",
    "native_calls",
    "env_steps",
    "tensor_allocations",
    "syncs",
    "copies_to_device",
    "copies_to_host",
    "kernels",
    "device_allocations",
    "graphs",
    "graph_breaks",
    "recompiles",
)


_BITS = 64  # per field, more than any total needs; fields do not overflow in sums and differences of totals


class Totals:
    """Counts by name that only grow, each in its own field of one integer.

    One operation subtracts two readings of ``packed``, or adds up differences, for all names. So a tree with this as
    its clock sums up each phase's counts, as it otherwise sums up nanoseconds.
    """

    def __init__(self) -> None:
        self.packed = 0
        self._units: dict[str, int] = {}

    def unit(self, *names: str) -> int:
        """Return what to add to ``packed`` to count one of each of the names."""
        return sum(self._units.setdefault(name, 1 << (_BITS * len(self._units))) for name in names)

    def unpack(self, packed: int) -> dict[str, int]:
        """Return the counts by name in a difference of totals, or in a sum of differences, without zeros."""
        mask = (1 << _BITS) - 1
        fields = ((name, packed >> (_BITS * place) & mask) for place, name in enumerate(self._units))
        return {name: value for name, value in fields if value}


WHOLE = ""  # the path of the whole call


def no_time() -> int:
    """Return 0: the clock of a tree that is used for its edges, and sums up nothing."""
    return 0


class Recorder:
    """Records the phases of calls; none if timers are not armed.

    Its tree sums up what ``clock`` counts, phase by phase. ``on_edge`` is called at each edge in the thread that makes
    the calls, with the innermost phase that was open until then. All calls of a pass share the recorder, so that what a
    phase's first entry allocates is there when it counts. ``probes`` are the attached ones: update sections among them
    are added to the tree only when :func:`add_sections` is called.
    """

    def __init__(self, clock: Callable[[], int] = no_time, on_edge: Callable[[Node], None] | None = None) -> None:
        self._tree = _tree(clock, on_edge)
        self._tree.is_timed = False
        self.stack: Stack | None = None
        self.probes: Sequence[object] = ()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the body runs; :attr:`stack` is this thread's."""
        add_sections(self.probes)
        self._tree.reset()  # but its phases are kept
        with recording_into(self._tree):
            self.stack = PROCESS.current()
            yield

    def paths(self) -> dict[Node, str]:
        """Return the path of every phase, including tasks', until :meth:`totals` or the next call.

        A section without a name is left out: it is part of the phase around it, and is counted there.
        """
        if self.stack is None:
            return {}
        found = {self.stack.root: WHOLE}
        _add_paths(self.stack.root, WHOLE, found)
        for node in pending_sections(self.probes):
            around = found.get(node.parent)
            if around is not None:
                path = _joined(around, node.name)
                _add_paths(node, path, found)
                if node.name:
                    found[node] = path
        return found

    def totals(self) -> Iterator[tuple[str, int]]:
        """Yield each phase's path and what the clock counted in it, without other threads."""
        add_sections(self.probes)
        for path, timing in self._tree.snapshot().root.walk():
            if not timing.is_parallel:
                yield "/".join(path), timing.total_ns


def _tree(clock: Callable[[], int], on_edge: Callable[[Node], None] | None) -> Tree:
    if on_edge is None:
        return Tree(clock=clock)
    thread = threading.get_ident()

    # Neither allocates: an observer may be counting memory.
    def enter(_: Stack, node: Node) -> None:
        if threading.get_ident() == thread:
            on_edge(node.parent)

    def leave(_: Stack, node: Node, __: Node) -> None:
        if threading.get_ident() == thread:
            on_edge(node)

    return EdgeTree(enter, leave, clock)


def _add_paths(top: Node, path: str, found: dict[Node, str]) -> None:
    """Add the paths of all nodes below the node at ``path``."""
    pending = [(top, path)]
    while pending:
        node, path = pending.pop()
        below = [(child, _joined(path, child.name)) for child in node.children.values()]
        below += [(root, path) for root in node.task_roots]
        found.update(below)
        pending += below


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path and name else path or name


def lineage(node: Node | None) -> list[Node]:
    """Return a node and those around it, up to but without its stack's root."""
    found: list[Node] = []
    while node is not None and node.parent is not node:
        found.append(node)
        node = node.parent
    return found


class CannotCountError(Exception):
    """An instrument cannot be used here; the text says why."""


class Instrument(ABC):
    """Counts some of the counters, in its own passes."""

    names: tuple[str, ...] = ()  # the counters that it always has for the whole call, zeros included
    needs_first = False  # the first call under it counts what it makes for itself, or what it has not seen made
    recorder: Recorder

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Install the hooks for the block, and restore everything afterwards; CannotCountError if it cannot."""
        yield

    @abstractmethod
    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase; CannotCountError if the call removed the hooks."""


class TotalsInstrument(Instrument):
    """An instrument with running totals, which subclasses add to between :meth:`begin` and :meth:`end`."""

    def __init__(self, on_edge: Callable[[Node], None] | None = None) -> None:
        self.totals = Totals()
        self.recorder = Recorder(self.read, on_edge)

    def read(self) -> int:
        """Return the totals so far, packed."""
        return self.totals.packed

    def begin(self) -> None:
        """Begin to count, just before the call."""

    def end(self) -> None:
        """Stop counting, just after the call."""

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        with self.recorder.recording():
            start = self.read()
            self.begin()
            try:
                call()
            finally:
                self.end()
            whole = self.read() - start
        return self._counts(whole)

    def _counts(self, whole: int) -> tuple[Count, ...]:
        """Return the counts of the call that has just been recorded; ``whole`` is its packed total."""
        return tuple(
            Count(path, name, value)
            for path, packed in ((WHOLE, whole), *self.recorder.totals())
            for name, value in self.totals.unpack(packed).items()
        )


class Levels:
    """Follows a level, such as memory in use, through the phases of one call.

    :meth:`note` adds every stretch between two phases' edges. A phase's peak is the highest rise over the level at the
    beginning of an entry; its net is the sum of what its entries added. None is the whole call, which is always open.
    """

    def __init__(self, level: int) -> None:
        self._last = level
        self._bases: dict[Node | None, int] = {}  # of the phases that are open
        self._peaks: dict[Node | None, int] = {}
        self._nets: Counter[Node | None] = Counter()

    def note(self, open_nodes: Sequence[Node], level: int, peak: int) -> None:
        """Add a stretch: the phases that were open, the level at its end, and its highest level."""
        last, bases = self._last, self._bases
        self._bases = now = {node: bases.get(node, last) for node in (*open_nodes, None)}
        for node, base in now.items():
            self._peaks[node] = max(self._peaks.get(node, 0), peak - base)
            self._nets[node] += level - last
        self._last = level

    def counts(self, paths: dict[Node, str], peak_name: str, net_name: str) -> Iterator[Count]:
        """Yield the peaks and nets, without phases that have no path."""
        peaks: Counter[str] = Counter()
        nets: Counter[str] = Counter()
        for node, peak in self._peaks.items():
            path = WHOLE if node is None else paths.get(node, WHOLE)
            if node is None or path != WHOLE:
                peaks[path] = max(peaks[path], peak)
                nets[path] += self._nets[node]
        for name, found in ((peak_name, peaks), (net_name, nets)):
            yield from (Count(path, name, value) for path, value in found.items())


_OWN = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("timers", "probes", "devices", "counters"))


def is_own(code: CodeType) -> bool:
    """Whether code belongs to timers, probes or instruments."""
    return code.co_filename.startswith(_OWN)
