"""``Timing`` under the name and in the text of ``sample_factory.utils.timing``.

Logs have every figure where Sample Factory's have it, and values are seconds. The differences are deliberate; in each
case, the original loses track:

- The clock is never set back.
- Each thread nests its own scopes, and no entry of two threads is lost. A scope may be kept, entered again within
  itself and shared between threads.
- A scope that ends before one within it warns, and closes only itself.
- A name does not hide a method: after ``add_time("items")``, ``timing.items()`` is still the mapping's, and
  ``timing["items"]`` the time.
- The mapping holds only the name and the values. A pickled or copied one has these and its own tree, without open
  scopes.
"""

from __future__ import annotations

import threading
from collections import deque
from copy import deepcopy
from time import perf_counter as _clock
from typing import Any

from pytest_rlperf.compat import take_out

_SUM, _LAST, _MEAN = range(3)  # how a value combines its entries
LEAST_S = 1e-8  # for any entry, so that callers can divide by a value


class AvgTime:
    """The last few times of a name, printed as their mean in seconds."""

    def __init__(self, num_values_to_avg: int) -> None:
        self.values: deque[float] = deque(maxlen=num_values_to_avg)

    def __str__(self) -> str:
        return f"{sum(self.values) / max(1, len(self.values)):.4f}"


class _Node:
    """One path; ``value`` is the sum, the last or the mean of its entries, as the original prints it."""

    __slots__ = ("children", "key", "scopes", "value")

    def __init__(self, key: Any, value: float | AvgTime) -> None:
        self.key = key
        self.value = value
        self.children: dict[Any, _Node] = {}
        # The scope of each child, by its mode: a look-up is cheaper than a new object.
        self.scopes: dict[tuple[int, Any], TimingContext] = {}

    def copied(self) -> _Node:
        """Return a copy of this path and those below it, without scopes, which belong to one ``Timing``."""
        node = _Node(self.key, _copied(self.value))
        node.children = {key: child.copied() for key, child in self.children.items()}
        return node

    def __reduce__(self) -> tuple[Any, ...]:
        return _Node, (self.key, self.value), (None, {"children": self.children})


class _Open(threading.local):
    """A thread's open paths with their starts, the root first and the innermost last."""

    def __init__(self, root: _Node) -> None:
        self.stack: list[tuple[_Node, float]] = [(root, 0.0)]


class TimingContext:
    """Times its body under one path; it holds nothing about its entries, so that any code may enter it again."""

    __slots__ = ("_acquire", "_key", "_mode", "_node", "_open", "_release", "_timing")

    def __init__(self, timing: Timing, node: _Node, mode: int) -> None:
        self._timing = timing
        self._open = timing._open
        self._acquire, self._release = timing._lock.acquire, timing._lock.release
        self._node = node
        self._key = node.key
        self._mode = mode

    def __enter__(self) -> None:
        self._open.stack.append((self._node, _clock()))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        now = _clock()
        node = self._node
        stack = self._open.stack
        entered, start = stack.pop()
        if entered is not node:
            stack.append((entered, start))
            late = take_out(stack, lambda entry: entry[0] is node, lambda entry: entry[0].key)
            if late is None:
                raise RuntimeError(f"{node.key!r} ended without having been entered in this thread")
            start = late[1]
        elapsed = now - start
        if elapsed < LEAST_S:
            elapsed = LEAST_S
        self._acquire()  # half the cost of a with statement
        try:
            if self._mode is _SUM:
                self._timing[self._key] += elapsed
                node.value += elapsed  # type: ignore[operator]
            elif self._mode is _LAST:
                self._timing[self._key] = node.value = elapsed
            else:
                self._timing[self._key].values.append(elapsed)
                node.value.values.append(elapsed)  # type: ignore[union-attr]
        finally:
            self._release()


def _initial(mode: int, average: int) -> float | AvgTime:
    return AvgTime(average) if mode is _MEAN else 0.0


class Timing(dict[Any, Any]):
    """Times by name, as items and as attributes, and the tree of nested scopes that they were spent in.

    ``_name``, an item like the others, heads the tree's text. Further arguments are the mapping's. A scope's parent is
    the scope that was open in the thread when the scope was requested.
    """

    __slots__ = ("__weakref__", "_lock", "_open", "_root")

    _lock: threading.RLock
    _open: _Open
    _root: _Node

    def __init__(self, name: str = "Profile", *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self["_name"] = name
        self.__setstate__(_Node("~", 0.0))

    def __setstate__(self, root: _Node) -> None:
        for slot, value in (("_root", root), ("_lock", threading.RLock()), ("_open", _Open(root))):
            object.__setattr__(self, slot, value)  # past the items

    # ------------------------------------------------------------------ timing

    def add_time(self, key: Any) -> TimingContext:
        """Return a context manager that adds the time of its body to the value."""
        return self._scope(_SUM, key)

    def timeit(self, key: Any) -> TimingContext:
        """Return a context manager that keeps the time of its body, the last one if there are several."""
        return self._scope(_LAST, key)

    def time_avg(self, key: Any, average: int = 10) -> TimingContext:
        """Return a context manager that averages the last ``average`` times of its body."""
        return self._scope(_MEAN, key, average)

    def _scope(self, mode: int, key: Any, average: int = 0) -> TimingContext:
        parent = self._open.stack[-1][0]
        try:
            return parent.scopes[mode, key]
        except KeyError:
            pass
        with self._lock:
            if key not in self:
                self[key] = _initial(mode, average)
            node = parent.children.get(key)
            if node is None:
                node = parent.children[key] = _Node(key, _initial(mode, average))
            return parent.scopes.setdefault((mode, key), TimingContext(self, node, mode))

    # ------------------------------------------------------------------ reading

    def flat_str(self) -> str:
        """Return the name and the values on one line, each over a name's entries anywhere in the tree."""
        with self._lock:
            return ", ".join(f"{key}: {_text(value)}" for key, value in self.items())

    def tree_str(self) -> str:
        """Return the tree, with one line for a level's leaves and then one for each of its other paths."""
        with self._lock:
            lines = [f"{self.get('_name')} tree view:"]
            waiting = [(-1, self._root)]
            while waiting:
                depth, node = waiting.pop()
                if depth >= 0:
                    lines.append("  " * depth + _entry(node))
                leaves = [child for child in node.children.values() if not child.children]
                if leaves:
                    lines.append("  " * (depth + 1) + ", ".join(map(_entry, leaves)))
                waiting += [(depth + 1, child) for child in reversed(node.children.values()) if child.children]
            return "\n".join(lines)

    __str__ = tree_str

    # ------------------------------------------------------------------ a mapping with attributes

    def __getattr__(self, item: str) -> Any:
        try:
            return self[item]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {item!r}") from None

    def __setattr__(self, item: str, value: Any) -> None:
        self[item] = value

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            items = [(key, _copied(value)) for key, value in self.items()]
            return self.__class__.__new__, (self.__class__,), self._root.copied(), None, iter(items)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return self.__reduce__()


def _copied(value: Any) -> Any:
    return deepcopy(value) if isinstance(value, AvgTime) else value


def _text(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _entry(node: _Node) -> str:
    return f"{node.key}: {_text(node.value)}"
