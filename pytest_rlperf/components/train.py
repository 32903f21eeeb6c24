"""A whole iteration of training: a rollout, and the update on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import check_items, check_takes
from pytest_rlperf.components.ppo import counted_since
from pytest_rlperf.components.ppo_update import learner_of
from pytest_rlperf.components.training import Training
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Probe, Workload
from pytest_rlperf.timers import hierarchical_timer

_TRAIN = hierarchical_timer("train")
_IDLE = "does an iteration take gradient steps, and is the learning rate above 0?"


def train_workload(agent: Any, n_steps: int | None = None, items: float | None = None) -> Workload:
    """Return the workload of one iteration of ``agent``'s training, or of a thunk that trains on ``items`` env steps.

    The check does one iteration, and has ``Training`` look at what it trains.
    """
    __tracebackhide__ = True
    learner = learner_of(agent, n_steps, items)
    if learner is not None:
        size = float(n_steps or 1) if items is None else items
        return _workload(learner.owner, learner.iterate, learner.env_steps, size, learner.iteration_probes)
    if not callable(agent) or items is None:
        raise ComponentError(
            "rlperf_train needs an agent with collect(n_steps) and update(rollout), and n_steps=…; or a thunk of one "
            f"iteration and its env steps, rlperf_train(lambda: agent.learn(1024), items=1024), not "
            f"{type(agent).__qualname__} with items={items!r}"
        )
    check_items(items)
    check_takes("rlperf_train calls a thunk without arguments", agent, (), "rlperf_train(lambda: …, items=…)")
    return _workload(agent, agent, lambda: items, float(items))


def _workload(
    owner: object,
    iterate: Callable[[], object],
    env_steps: Callable[[], Any],
    items: float,
    probes: tuple[Probe, ...] = (),
) -> Workload:
    """Return the workload of an iteration."""
    counted: list[Any] = []

    def call() -> object:
        with _TRAIN:
            output = iterate()
        counted.append(env_steps())
        return output

    def check() -> object:
        __tracebackhide__ = True
        output = Training(owner).do(iterate, _IDLE)
        counted[:] = [env_steps()]
        return output

    return Workload(
        component="train",
        call=call,
        items=items,
        unit="env step",
        check=check,
        count=partial(counted_since, counted),
        probes=probes,
        holds=(owner,),
        whole_machine=True,
    )
