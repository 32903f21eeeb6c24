"""One PPO rollout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import (
    NO_ARRAYS,
    arrays_in,
    attribute,
    check_count,
    check_items,
    check_takes,
    finished,
    to_numpy,
)
from pytest_rlperf.components.contracts import Roller, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import hierarchical_timer

_AFTER_THE_LAST = ("last_", "next_", "final_", "['last_", "['next_", "['final_")  # fields without a row a step
_THUNK = "rlperf_ppo_collect(lambda: agent.collect(…), items=…)"
_PPO_COLLECT = hierarchical_timer("ppo_collect")


def ppo_workload(agent: Any, n_steps: int | None = None, items: float | None = None) -> Workload:
    """Return the workload of ``agent.collect(n_steps)``, or of a thunk that collects ``items`` env steps.

    The check collects one rollout of an agent's: its arrays must have ``n_steps`` rows, or one more for what also
    has a value after the last step, and every number in them must be finite. Single numbers are statistics, and not
    looked at. Env steps are those of the mask ``valid``, else those of ``rewards``. A rollout without both, or of shape
    (n_steps × num_envs, …) or (num_envs, n_steps, …), needs ``items``, its env steps.
    """
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.ppo, agent)
    collect = attribute(agent, "collect")
    if make is None and not callable(collect):
        return _thunk_workload(agent, items)
    if n_steps is None:
        raise ComponentError("rlperf_ppo_collect(agent) also needs n_steps=…, the steps of each env in a rollout")
    check_count("n_steps", n_steps)
    if make is not None:
        roller = make(agent, n_steps)
        return _roller_workload(roller, float(roller.n_steps * roller.num_envs))
    if items is not None:
        check_items(items)
    thunk = f"a thunk collects any rollout: {_THUNK}"
    check_takes(f"rlperf_ppo_collect calls agent.collect({n_steps})", collect, (n_steps,), thunk)
    return _roller_workload(_AnyRoller(collect, n_steps, items), float(n_steps if items is None else items))


def _roller_workload(roller: Roller, items: float) -> Workload:
    """Return the workload of a collector."""
    # Sums stay arrays until they are read: a number of a GPU's would wait for it.
    counted: list[Any] = []

    def call() -> object:
        with _PPO_COLLECT:
            rollout = roller.collect()
        counted.append(roller.env_steps(rollout))
        return rollout

    def check() -> object:
        __tracebackhide__ = True
        if roller.setup is not None:
            roller.setup()
        rollout = finished(roller.collect(), f"collect({roller.n_steps})")
        roller.check(rollout)
        counted[:] = [roller.env_steps(rollout)]
        return rollout

    return Workload(
        component="ppo_collect",
        call=call,
        items=items,
        unit="env step",
        check=check,
        setup=roller.setup,
        count=partial(counted_since, counted),
        # Also where the library has ranges of its own: those are other phases, or the same under other names.
        probes=roller.probes,
        holds=(roller.collect,),
    )


def counted_since(counted: list[Any]) -> float:
    """Return the sum of what calls have counted, and forget it."""
    steps = sum(float(value) for value in counted)
    counted.clear()
    return steps


def _thunk_workload(collect: Any, items: float | None) -> Workload:
    """Return the workload of a function that collects, of which nothing more is known."""
    __tracebackhide__ = True
    if not callable(collect):
        raise ComponentError(
            f"rlperf_ppo_collect needs an agent with collect(n_steps), or a thunk that collects one rollout, "
            f"not {type(collect).__qualname__}"
        )
    if items is None:
        raise ComponentError(
            "rlperf_ppo_collect(thunk) also needs items=…, the env steps one call collects; n_steps=… is for an agent "
            "with collect(n_steps)"
        )
    check_items(items)
    check_takes("rlperf_ppo_collect calls a thunk without arguments", collect, (), _THUNK)
    call = timed_call(_PPO_COLLECT, collect)

    def check() -> object:
        __tracebackhide__ = True
        return finished(collect(), "the thunk")

    return Workload("ppo_collect", call=call, items=float(items), unit="env step", check=check, holds=(collect,))


class _AnyRoller(Roller):
    """Collects by ``collect(n_steps)``; ``items`` are the env steps of a rollout that does not show them."""

    def __init__(self, collect: Callable[[int], Any], n_steps: int, items: float | None) -> None:
        self.n_steps = n_steps
        self._collect = collect
        self._items = items

    def collect(self) -> Any:
        """Collect a rollout."""
        return self._collect(self.n_steps)

    def check(self, rollout: Any) -> None:
        """Check that a rollout is full and finite."""
        __tracebackhide__ = True
        import numpy as np

        n_steps, items = self.n_steps, self._items
        found = [(path, to_numpy(array)) for path, array in arrays_in(rollout) if array.shape]
        if not found:
            raise ComponentError(
                f"collect({n_steps}) returned no arrays: {type(rollout).__qualname__}; {NO_ARRAYS}. Return the "
                f"rollout, or give a thunk: {_THUNK}"
            )
        for path, array in found:
            if path.startswith(_AFTER_THE_LAST):
                continue
            if not _is_full(array.shape, n_steps, items):
                raise ComponentError(
                    f"collect({n_steps}) returned a rollout that is not full: {path} has shape {array.shape}, "
                    f"expected {n_steps} rows. For one of n_steps × num_envs rows, or env by env, pass items=…, its "
                    f"env steps; for any other, give a thunk: {_THUNK}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ComponentError(f"collect({n_steps}) returned NaN or infinity in {path}")

    def env_steps(self, rollout: Any) -> Any:
        """Return how many env steps a rollout has, as a number of the library that made its mask."""
        __tracebackhide__ = True
        return env_steps(rollout, self._items)


def env_steps(rollout: Any, items: float | None) -> Any:
    """Return how many env steps a rollout holds, as a number of the library that made its mask."""
    __tracebackhide__ = True
    if items is not None:
        return items
    valid, rewards = _field(rollout, "valid"), _field(rollout, "rewards")
    if valid is not None:
        return valid.sum()
    if rewards is None:
        raise ComponentError("the rollout has no rewards to count env steps by: pass items=…, the env steps of one")
    return math.prod(rewards.shape)


def _field(rollout: Any, name: str) -> Any:
    """Return a rollout's array by its name, an attribute or a key; None where it has none."""
    if isinstance(rollout, Mapping):
        return rollout.get(name)
    return attribute(rollout, name)


def _is_full(shape: tuple[int, ...], n_steps: int, items: float | None) -> bool:
    """Whether an array has a row a step, or all steps of all envs in one row after the other or a row an env."""
    if shape[0] in (n_steps, n_steps + 1):
        return True
    return items is not None and (shape[0] == items or (shape[1:2] == (n_steps,) and shape[0] * n_steps == items))
