"""One SAC gradient step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import attribute, check_count, check_takes, signature_of
from pytest_rlperf.components.contracts import Updater, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.components.training import Training
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Workload
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.timers import hierarchical_timer

_SAC_UPDATE = hierarchical_timer("sac_update")
_IDLE = "is the buffer filled past its warm-up, and does update() do a gradient step?"
_BATCHES = ("batch", "batches", "minibatch", "data", "samples", "transitions", "experience", "experiences")


def sac_workload(agent: Any, batch_size: int | None = None) -> Workload:
    """Return the workload of one gradient step of ``agent``, or of a thunk that does one.

    The check does one update: of the parameters trained by the optimizers that the agent holds, the thunk refers to, or
    that take a step, some must change and all must stay finite (see ``Training``); where it is known how many
    optimizer steps an update takes, it must take as many.
    """
    __tracebackhide__ = True
    updater = _updater(agent, batch_size)
    update = updater.update
    sections = UpdateSections(updater.owner)
    call = timed_call(_SAC_UPDATE, update)
    call_in_sections = timed_call(_SAC_UPDATE, sections.around(update))

    def check() -> object:
        __tracebackhide__ = True
        return _check(updater)

    harvest = Harvest(call_in_sections, (sections,)) if sections else None
    return Workload(
        component="sac_update",
        call=call,
        items=1.0,
        unit="update",
        check=check,
        harvest=harvest,
        holds=(updater.owner,),
        pace=Pace.STEADY,
    )


def _check(updater: Updater) -> object:
    """Do one update, and check it; return what it returned."""
    __tracebackhide__ = True
    updater.check()
    training = Training(updater.owner)
    output = training.do(updater.update, _IDLE)
    if updater.steps is not None and len(training.steps) != updater.steps:
        raise ComponentError(
            f"one update took {len(training.steps)} optimizer steps, expected {updater.steps}: is it one gradient step "
            "of every part?"
        )
    return output


class _AnyUpdater(Updater):
    """Updates by a function; how many optimizer steps that takes is not known."""

    def __init__(self, owner: object, update: Callable[[], object]) -> None:
        self.owner = owner
        self._update = update

    def update(self) -> object:
        """Do one update."""
        return self._update()


def _updater(agent: Any, batch_size: int | None) -> Updater:
    __tracebackhide__ = True
    if batch_size is not None:
        check_count("batch_size", batch_size)
    make = adapter_for(lambda library: library.sac, agent)
    method = attribute(agent, "update")
    if make is None and not callable(method):
        return _thunk_updater(agent)
    if batch_size is None:
        raise ComponentError("rlperf_sac_update(agent) also needs batch_size=…, which an update samples")
    if make is not None:
        return make(agent, batch_size)
    assert callable(method)
    thunk = "a thunk does any update: rlperf_sac_update(lambda: agent.update(…))"
    check_takes(f"rlperf_sac_update calls agent.update({batch_size})", method, (batch_size,), thunk)
    return _AnyUpdater(agent, partial(_update, method, batch_size))


def _thunk_updater(thunk: Any) -> Updater:
    __tracebackhide__ = True
    if not callable(thunk):
        raise ComponentError(
            f"rlperf_sac_update needs an agent with update(batch_size), or a thunk that does one update, "
            f"not {type(thunk).__qualname__}: rlperf_sac_update(lambda: …)"
        )
    instead = "give a thunk of one update, rlperf_sac_update(lambda: update(batch)), or the agent itself"
    check_takes("rlperf_sac_update calls a thunk without arguments", thunk, (), instead)
    return _AnyUpdater(thunk, thunk)


def _update(method: Callable[[int], object], batch_size: int) -> object:
    """Do one update; ComponentError where it fails and its parameter is a batch, not a size."""
    __tracebackhide__ = True
    try:
        return method(batch_size)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        if _first_parameter(method) not in _BATCHES:
            raise
        raise ComponentError(
            f"agent.update({batch_size}) was given a batch size, and takes a batch: give a thunk that draws one, "
            f"rlperf_sac_update(lambda: agent.update(buffer.sample({batch_size})))"
        ) from error


def _first_parameter(method: Callable[..., object]) -> str | None:
    signature = signature_of(method)
    return None if signature is None else next(iter(signature.parameters), None)
