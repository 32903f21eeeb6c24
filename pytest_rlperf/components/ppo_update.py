"""One PPO update, all epochs and minibatches of it, on a rollout that was collected before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import attribute, check_count, check_items, check_takes, takes
from pytest_rlperf.components.contracts import Learner, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.components.ppo import env_steps
from pytest_rlperf.components.training import Kept, Training
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Probe, Workload
from pytest_rlperf.probes.objects import find_parts
from pytest_rlperf.probes.torch import Backward, Forward, OptimizerSteps
from pytest_rlperf.timers import hierarchical_timer

_PPO_UPDATE = hierarchical_timer("ppo_update")
_COLLECT = hierarchical_timer("collect")
_UPDATE = hierarchical_timer("update")
_METHODS = ("update", "learn", "train")
_IDLE = "is there a rollout to learn from, and does the update take gradient steps?"


def ppo_update_workload(agent: Any, n_steps: int | None = None, setup: Callable[[], object] | None = None) -> Workload:
    """Return the workload of one PPO update of ``agent``, or of a thunk that does one.

    The check collects the rollout, does one update on it, and has ``Training`` look at what it trains. Every call
    begins with the same rollout and the same parameters, those that collected it: they are put back, untimed.
    ``setup`` is the user's part of that.
    """
    __tracebackhide__ = True
    if setup is not None and not callable(setup):
        raise ComponentError(f"setup={setup!r}: a callable, not {type(setup).__qualname__}")
    learner = learner_of(agent, n_steps)
    if learner is None:
        learner = _AnyLearner(agent, _update_of_a_filled(agent))
    return _workload(learner, setup)


def _workload(learner: Learner, setup: Callable[[], object] | None) -> Workload:
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
        return Training(learner.owner).do(learner.update, _IDLE)

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
    """Return what times forward passes, where the adapter does not, backward passes and optimizer steps."""
    parts = find_parts(learner.owner)
    modules = [] if learner.probes else [Forward({"forward": module}) for module, _ in parts.modules]
    return [*modules, Backward(), OptimizerSteps()] if "torch" in sys.modules else []


# --------------------------------------------------------------------------- what learns


def learner_of(agent: Any, n_steps: int | None, items: float | None = None) -> Learner | None:
    """Return what collects rollouts of ``n_steps`` and updates on them; None of what has no rollouts of its own.

    A library's agent is known by its class, another by ``collect(n_steps)`` and an update.
    """
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.learn, agent)
    collect = attribute(agent, "collect")
    if make is None and not callable(collect):
        return None
    if n_steps is None:
        raise ComponentError("the agent also needs n_steps=…, the steps of each env in the rollout that it learns from")
    check_count("n_steps", n_steps)
    if make is not None:
        return make(agent, n_steps)
    assert callable(collect)
    check_takes(f"the fixture calls agent.collect({n_steps})", collect, (n_steps,), "give a thunk, lambda: …")
    if items is not None:
        check_items(items)
    update = _update_of(agent, has_rollout=True)
    if update is None:
        raise ComponentError(_nothing_to_call(agent))
    return _AnyLearner(agent, update, partial(collect, n_steps), items)


class _AnyLearner(Learner):
    """Collects by a function, and updates by one that takes the rollout; ``items`` are the env steps of a rollout."""

    def __init__(
        self,
        owner: object,
        update: Callable[[Any], object],
        collect: Callable[[], Any] = lambda: None,
        items: float | None = None,
    ) -> None:
        self.owner = owner
        self._update, self._collect, self._items = update, collect, items
        self._rollout: Any = None

    def collect(self) -> None:
        """Collect the rollout, where that is not the test's."""
        self._rollout = self._collect()

    def update(self) -> object:
        """Do one update."""
        return self._update(self._rollout)

    def iterate(self) -> object:
        """Collect and update."""
        with _COLLECT:
            self.collect()
        with _UPDATE:
            return self.update()

    def env_steps(self) -> Any:
        """Return the env steps of the last rollout."""
        __tracebackhide__ = True
        return env_steps(self._rollout, self._items)


def _update_of(agent: Any, *, has_rollout: bool) -> Callable[[Any], object] | None:
    """Return the first method of an agent that updates, as a function of the rollout; None where there is none.

    One without parameters has the agent's own rollout.
    """
    methods: list[Callable[..., object]] = [method for name in _METHODS if callable(method := attribute(agent, name))]
    given = next((method for method in methods if takes(method, None)), None)
    if given is not None and has_rollout:
        return given
    bare = next((method for method in methods if takes(method)), None)
    return None if bare is None else _ignoring_the_rollout(bare)


def _update_of_a_filled(agent: Any) -> Callable[[Any], object]:
    """Return the update of an agent that holds its rollout, or the thunk itself."""
    __tracebackhide__ = True
    update = _update_of(agent, has_rollout=False)
    if update is not None:
        return update
    if not callable(agent) or any(callable(attribute(agent, name)) for name in _METHODS):
        raise ComponentError(_nothing_to_call(agent))
    thunk = "rlperf_ppo_update(lambda: agent.update(rollout))"
    check_takes("rlperf_ppo_update calls a thunk without arguments", agent, (), thunk)
    return _ignoring_the_rollout(agent)


def _ignoring_the_rollout(update: Callable[[], object]) -> Callable[[Any], object]:
    return lambda _: update()


def _nothing_to_call(agent: Any) -> str:
    return (
        f"{type(agent).__qualname__} has no PPO update that can be called: it needs collect(n_steps), and "
        "update(rollout), learn(rollout) or train(rollout), or one of these without a rollout where the agent keeps "
        "it; or give the fixture a thunk, lambda: agent.update(rollout)"
    )
