"""Programs that libraries compile while a process runs: which, for which inputs, and why again."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from pytest_rlperf.model.measured import Compiled

_KEPT = 32  # the last programs
_JAX_EVENT = "/jax/core/compile/backend_compile_duration"  # in JAX's dispatch.py


class Programs:
    """Counts and names what PyTorch's compiler, Numba and JAX compile from now on, or from when they are loaded.

    It keeps only texts: functions and types would live on with it.
    """

    def __init__(self) -> None:
        self._told = 0  # by libraries that tell of each program
        self._last: deque[Compiled] = deque(maxlen=_KEPT)
        self._listens: set[str] = set()
        self._graphs = graphs_compiled()
        self.count()

    def count(self) -> int:
        """Return how many programs have been compiled so far."""
        for module, listen in (("numba.core.event", self._listen_to_numba), ("jax", self._listen_to_jax)):
            if module in sys.modules and module not in self._listens:
                self._listens.add(module)
                listen(sys.modules[module])
        return self._told + graphs_compiled() - self._graphs

    def last(self) -> list[Compiled]:
        """Return the last program of each function, the latest first."""
        found = {each.function: each for each in [*_of_torch(), *self._last]}
        return list(found.values())[::-1]

    def _listen_to_numba(self, events: Any) -> None:
        note = self._note

        class Listener(events.Listener):  # type: ignore[misc]
            depth = 0  # a function is compiled with all that it calls

            def on_start(self, event: Any) -> None:
                if not self.depth:
                    function = event.data["dispatcher"].py_func
                    note(f"{function.__module__}.{function.__qualname__}", tuple(map(str, event.data["args"])))
                self.depth += 1

            def on_end(self, event: Any) -> None:
                self.depth = max(0, self.depth - 1)

        events.register("numba:compile", Listener())

    def _listen_to_jax(self, jax: Any) -> None:
        def note(event: str, duration_s: float, **labels: object) -> None:
            if event == _JAX_EVENT:
                self._note(str(labels.get("fun_name", "")), ())

        if hasattr(jax, "monitoring"):  # not in a stand-in for JAX
            # For the rest of the process: not all versions can unregister a listener.
            jax.monitoring.register_event_duration_secs_listener(note)

    def _note(self, function: str, inputs: tuple[str, ...]) -> None:
        before = next((each.inputs for each in reversed(self._last) if each.function == function), None)
        self._told += 1
        self._last.append(Compiled(function, inputs, before))


def graphs_compiled() -> int:
    """Return how many graphs torch.compile has compiled so far; 0 if it is not loaded.

    Its count of frames has those of other code as well, such as a callback of the garbage collector that runs within.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def _of_torch() -> list[Compiled]:
    """Return what torch.compile has compiled last, with the guards' reason if it was compiled before."""
    metrics: list[Any] = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", list)()
    return [
        Compiled(str(each.co_name), why=str(getattr(each, "recompile_reason", None) or ""))
        for each in metrics
        if getattr(each, "co_name", None)
    ]
