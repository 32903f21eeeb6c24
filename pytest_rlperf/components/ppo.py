"""PPO rollouts, updates on a rollout that was collected before, and whole training iterations."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from typing import Any

from pytest_rlperf.components.checks import (
    NO_ARRAYS,
    arrays_in,
    attribute,
    check_count,
    check_items,
    check_takes,
    finished,
    members,
    num_envs_of,
    refusal,
    to_numpy,
)
from pytest_rlperf.components.contracts import Learner, Roller, timed_call
from pytest_rlperf.components.libraries import adapter_for, size_of
from pytest_rlperf.components.updates import Kept, Training
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Probe, Workload
from pytest_rlperf.probes.objects import find_parts
from pytest_rlperf.probes.torch import Backward, Forward, OptimizerSteps
from pytest_rlperf.timers import Timer, hierarchical_timer

_AFTER_THE_LAST = ("last_", "next_", "final_", "['last_", "['next_", "['final_")  # fields without a row per step
_THUNK = "rlperf_ppo_collect(lambda: agent.collect(…), items=…)"
_METHODS = ("update", "learn", "train")
_IDLE_UPDATE = "is there a rollout to learn from, and does the update take gradient steps?"
_IDLE_TRAINING = "does an iteration take gradient steps, and is the learning rate above 0?"
_PPO_COLLECT = hierarchical_timer("ppo_collect")
_PPO_UPDATE = hierarchical_timer("ppo_update")
_TRAIN = hierarchical_timer("train")
_COLLECT = hierarchical_timer("collect")
_UPDATE = hierarchical_timer("update")


def _of_env_steps(
    component: str,
    timer: Timer,
    take: Callable[[], Any],
    env_steps: Callable[[Any], Any],
    check: Callable[[], Any],
    **more: Any,
) -> Workload:
    """Return the workload of calls whose output tells how many env steps they took."""
    # Sums stay arrays until they are read: a number would wait for the GPU.
    counted: list[Any] = []

    def call() -> object:
        with timer:
            output = take()
        counted.append(env_steps(output))
        return output

    def run_check() -> object:
        __tracebackhide__ = True
        output = check()
        counted[:] = [env_steps(output)]
        return output

    def count() -> float:
        steps = sum(float(value) for value in counted)
        counted.clear()
        return steps

    return Workload(component, call=call, unit="env step", check=run_check, count=count, **more)


# --------------------------------------------------------------------------- rollouts


def ppo_workload(agent: Any, n_steps: int | None = None, items: float | None = None) -> Workload:
    """Return the workload of ``agent.collect(n_steps)``, or of a thunk that collects ``items`` env steps.

    The check collects one rollout of an agent. Its arrays must have ``n_steps`` rows, or one more for what also has a
    value after the last step, and every number in them must be finite. Single numbers are statistics, and are ignored.
    If the agent or its env has ``num_envs``, arrays may also have the shape (n_steps × num_envs, …) or
    (num_envs, n_steps, …); for any other agent, ``items``, a rollout's env steps, allows that. Env steps are ``items``,
    else they are counted by the mask ``valid``, by ``rewards``, or by ``num_envs``.
    """
    __tracebackhide__ = True
    if items is not None:
        check_items(items)
    roller = _roller(agent, n_steps, items)

    def check() -> object:
        __tracebackhide__ = True
        if roller.setup is not None:
            roller.setup()
        rollout = finished(roller.collect(), f"collect({roller.n_steps})" if roller.n_steps else "the function")
        roller.check(rollout)
        return rollout

    return _of_env_steps(
        "ppo_collect",
        _PPO_COLLECT,
        roller.collect,
        roller.env_steps,
        check,
        items=float(roller.n_steps * roller.num_envs if items is None else items),
        setup=roller.setup,
        # Also if the library has ranges of its own: those are other phases, or the same under other names.
        probes=roller.probes,
        holds=(agent,),
    )


def _roller(agent: Any, n_steps: int | None, items: float | None) -> Roller:
    """Return the roller of a library's adapter, of an agent with ``collect(n_steps)``, or of a thunk."""
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.ppo, agent)
    collect = attribute(agent, "collect")
    if make is None and not callable(collect):
        return _AnyRoller(_checked_thunk(agent, items), 0, None, items)
    if n_steps is None:
        n_steps = size_of(lambda library: library.ppo, agent, "n_steps")
    if n_steps is None:
        raise ComponentError("rlperf_ppo_collect(agent) also needs n_steps=…, the steps of each env in a rollout")
    check_count("n_steps", n_steps)
    if make is not None:
        made: Roller = make(agent, n_steps)
        return made
    assert callable(collect)
    instead = f"pass a zero-argument function: {_THUNK}"
    check_takes(f"rlperf_ppo_collect calls agent.collect({n_steps})", collect, (n_steps,), instead)
    return _AnyRoller(partial(collect, n_steps), n_steps, _num_envs(agent), items)


def _num_envs(agent: Any) -> int | None:
    """Return the ``num_envs`` of an agent or its env, or the only one among its members; None if unclear."""
    for group in ([agent], [attribute(agent, "env")], [attribute(agent, "envs")], members(agent).values()):
        found = {int(count) for each in group if isinstance(count := num_envs_of(each), Integral)}
        if len(found) == 1:
            return max(found.pop(), 0) or None
    return None


def _checked_thunk(collect: Any, items: float | None) -> Callable[[], Any]:
    """Return ``collect`` if it is a thunk that can collect ``items`` env steps; else raise ComponentError."""
    __tracebackhide__ = True
    if not callable(collect):
        raise ComponentError(
            "rlperf_ppo_collect needs an agent with collect(n_steps), or a zero-argument function that collects one "
            f"rollout, not {type(collect).__qualname__}"
        )
    if items is None:
        raise ComponentError(
            "rlperf_ppo_collect(function) also needs items=…, the number of env steps that one call collects; "
            "n_steps=… is for an agent with collect(n_steps)"
        )
    check_takes("rlperf_ppo_collect calls its function without arguments", collect, (), _THUNK)
    thunk: Callable[[], Any] = collect
    return thunk


class _AnyRoller(Roller):
    """Collects by a function; ``n_steps`` is 0 for a thunk, ``items`` are the env steps of a rollout if given."""

    def __init__(self, collect: Callable[[], Any], n_steps: int, num_envs: int | None, items: float | None) -> None:
        self.n_steps = n_steps
        self.num_envs = num_envs or 1
        self._collect = collect
        self._items = items
        self._all_steps = n_steps * num_envs if num_envs is not None else None

    def collect(self) -> Any:
        """Collect a rollout."""
        return self._collect()

    def check(self, rollout: Any) -> None:
        """Check that a rollout is full and finite; a thunk's is not checked."""
        __tracebackhide__ = True
        if self.n_steps:
            _check_rollout(rollout, self.n_steps, self._all_steps if self._items is None else self._items)

    def env_steps(self, rollout: Any) -> Any:
        """Return how many env steps a rollout has, as a number of the library that made its mask."""
        __tracebackhide__ = True
        return _env_steps(rollout, self._items, self._all_steps)


def _check_rollout(rollout: Any, n_steps: int, all_steps: float | None) -> None:
    __tracebackhide__ = True
    import numpy as np

    found = [(path, to_numpy(array)) for path, array in arrays_in(rollout) if array.shape]
    if not found:
        raise ComponentError(
            f"collect({n_steps}) returned no arrays: {type(rollout).__qualname__}; {NO_ARRAYS}. Return the "
            f"rollout, or pass a zero-argument function: {_THUNK}"
        )
    for path, array in found:
        if path.startswith(_AFTER_THE_LAST):
            continue
        if not _is_full(array.shape, n_steps, all_steps):
            flat = "" if all_steps is None else f", or the {all_steps:g} steps of all envs"
            raise ComponentError(
                f"collect({n_steps}) returned a rollout that is not full: {path} has shape {array.shape}, "
                f"expected {n_steps} rows{flat}. If it has n_steps × num_envs rows, or one row per env, pass the "
                f"number of its env steps as items=…; for any other rollout, pass a zero-argument function: {_THUNK}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ComponentError(f"collect({n_steps}) returned NaN or infinity in {path}")


def _env_steps(rollout: Any, items: float | None, all_steps: float | None) -> Any:
    """Return how many env steps a rollout holds, as a number of the library that made its mask."""
    __tracebackhide__ = True
    if items is not None:
        return items
    valid, rewards = _field(rollout, "valid"), _field(rollout, "rewards")
    if valid is not None:
        return valid.sum()
    if rewards is not None:
        return math.prod(rewards.shape)
    if all_steps is not None:
        return all_steps
    raise ComponentError("the rollout has no rewards, so its env steps cannot be counted: pass their number as items=…")


def _field(rollout: Any, name: str) -> Any:
    """Return a rollout's array by its name, an attribute or a key; None if it has none."""
    if isinstance(rollout, Mapping):
        return rollout.get(name)
    return attribute(rollout, name)


def _is_full(shape: tuple[int, ...], n_steps: int, all_steps: float | None) -> bool:
    """Whether an array has a row per step, a row per step of every env, or a row per env with all steps."""
    if shape[0] in (n_steps, n_steps + 1):
        return True
    by_env = shape[1:2] == (n_steps,) and shape[0] * n_steps == all_steps
    return all_steps is not None and (shape[0] == all_steps or by_env)


# --------------------------------------------------------------------------- updates and iterations


def ppo_update_workload(agent: Any, n_steps: int | None = None, setup: Callable[[], object] | None = None) -> Workload:
    """Return the workload of one PPO update of ``agent``, or of a thunk that does one.

    The check collects the rollout, does one update on it, and checks with ``Training`` what it trains. Every call
    begins with the same rollout and the parameters that collected it: they are restored, untimed. ``setup`` is the
    user's part of the restoring.
    """
    __tracebackhide__ = True
    if setup is not None and not callable(setup):
        raise ComponentError(f"setup={setup!r}: expected a callable, not {type(setup).__qualname__}")
    learner = _learner_of(agent, n_steps)
    if learner is None:
        if not callable(agent) or any(callable(attribute(agent, name)) for name in _METHODS):
            raise ComponentError(_nothing_to_call(agent))
        instead = "rlperf_ppo_update(lambda: agent.update(rollout))"
        check_takes("rlperf_ppo_update calls its function without arguments", agent, (), instead)
        learner = _AnyLearner(agent, lambda _: agent())
    return _update_workload(learner, setup)


def _update_workload(learner: Learner, setup: Callable[[], object] | None) -> Workload:
    """Return the workload of an update."""
    call = timed_call(_PPO_UPDATE, learner.update)
    kept: list[Kept] = []

    def restore() -> None:
        for values in kept:
            values.restore()
        learner.restore()
        if setup is not None:
            setup()

    def check() -> object:
        __tracebackhide__ = True
        kept.clear()
        learner.collect()
        restore()
        kept[:] = [Kept(learner.owner)]
        return Training(learner.owner).do(learner.update, _IDLE_UPDATE)

    return Workload(
        component="ppo_update",
        call=call,
        items=1.0,
        unit="update",
        check=check,
        setup=restore,
        harvest=Harvest(call, (*learner.probes, *_passes(learner))),
        holds=(learner.owner,),
        pace=Pace.STEADY,
    )


def _passes(learner: Learner) -> list[Probe]:
    """Return probes for backward passes and optimizer steps, and for forward passes if the adapter has no probes."""
    parts = find_parts(learner.owner)
    modules = [] if learner.probes else [Forward({"forward": module}) for module, _ in parts.modules]
    return [*modules, Backward(), OptimizerSteps()] if "torch" in sys.modules else []


def train_workload(agent: Any, n_steps: int | None = None, items: float | None = None) -> Workload:
    """Return the workload of one iteration of ``agent``'s training, or of a thunk that trains on ``items`` env steps.

    The check does one iteration, and checks with ``Training`` what it trains.
    """
    __tracebackhide__ = True
    if items is not None:
        check_items(items)
    learner = _learner_of(agent, n_steps, items)
    if learner is None:
        if not callable(agent) or items is None:
            raise ComponentError(
                "rlperf_train needs an agent with collect(n_steps) and update(rollout), and n_steps=…; or a "
                "zero-argument function that does one iteration, and items=…: rlperf_train(lambda: agent.learn(1024), "
                f"items=1024), not {type(agent).__qualname__} with items={items!r}"
            )
        check_takes("rlperf_train calls its function without arguments", agent, (), "rlperf_train(lambda: …, items=…)")
        learner = _AnyLearner(agent, lambda _: agent(), items=items)
    return _of_env_steps(
        "train",
        _TRAIN,
        learner.iterate,
        lambda _: learner.env_steps(),
        lambda: Training(learner.owner).do(learner.iterate, _IDLE_TRAINING),
        items=float(n_steps or 1) if items is None else float(items),
        probes=learner.iteration_probes,
        holds=(learner.owner,),
        whole_machine=True,
    )


def _learner_of(agent: Any, n_steps: int | None, items: float | None = None) -> Learner | None:
    """Return what collects rollouts of ``n_steps`` and updates on them; None if ``agent`` collects no rollouts.

    A library's agent is recognised by its class, any other by ``collect(n_steps)`` and an update.
    """
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.learn, agent)
    collect = attribute(agent, "collect")
    if make is None and not callable(collect):
        return None
    if n_steps is None:
        n_steps = size_of(lambda library: library.learn, agent, "n_steps")
    if n_steps is None:
        raise ComponentError("the agent also needs n_steps=…, the steps of each env in the rollout that it learns from")
    check_count("n_steps", n_steps)
    if make is not None:
        made: Learner = make(agent, n_steps)
        return made
    assert callable(collect)
    instead = "pass a zero-argument function, lambda: …"
    check_takes(f"the fixture calls agent.collect({n_steps})", collect, (n_steps,), instead)
    num_envs = _num_envs(agent)
    all_steps = None if num_envs is None else n_steps * num_envs
    return _AnyLearner(agent, _update_of(agent), partial(collect, n_steps), items, all_steps)


class _AnyLearner(Learner):
    """Collects by a function, and updates by one that takes the rollout; ``items`` are the env steps of a rollout.

    Without ``collect``, the update is a thunk, which needs no rollout or is the whole iteration.
    """

    def __init__(
        self,
        owner: object,
        update: Callable[[Any], object],
        collect: Callable[[], Any] | None = None,
        items: float | None = None,
        all_steps: float | None = None,
    ) -> None:
        self.owner = owner
        self._update, self._collect, self._items, self._all_steps = update, collect, items, all_steps
        self._rollout: Any = None

    def collect(self) -> None:
        """Collect the rollout, unless the update is a thunk."""
        if self._collect is not None:
            self._rollout = self._collect()

    def update(self) -> object:
        """Do one update."""
        return self._update(self._rollout)

    def iterate(self) -> object:
        """Collect and update."""
        if self._collect is None:
            return self.update()
        with _COLLECT:
            self.collect()
        with _UPDATE:
            return self.update()

    def env_steps(self) -> Any:
        """Return the env steps of the last rollout."""
        __tracebackhide__ = True
        return _env_steps(self._rollout, self._items, self._all_steps)


def _update_of(agent: Any) -> Callable[[Any], object]:
    """Return the first method of an agent that updates, as a function of the rollout.

    A method without parameters uses the agent's own rollout.
    """
    __tracebackhide__ = True
    methods: list[Callable[..., object]] = [method for name in _METHODS if callable(method := attribute(agent, name))]
    for method in methods:
        if not refusal(method, None):
            return method
    for method in methods:
        if not refusal(method):
            return lambda _, update=method: update()  # type: ignore[misc]
    raise ComponentError(_nothing_to_call(agent))


def _nothing_to_call(agent: Any) -> str:
    return (
        f"{type(agent).__qualname__} has no PPO update that can be called: it needs collect(n_steps), and "
        "update(rollout), learn(rollout) or train(rollout), or one of these without a rollout if the agent keeps "
        "it; or pass a zero-argument function, lambda: agent.update(rollout)"
    )
