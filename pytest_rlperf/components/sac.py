"""One SAC gradient step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_rlperf.components.checks import attribute, check_count, check_takes, leaves, signature_of
from pytest_rlperf.components.contracts import Updater, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.components.training import Training
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Workload
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.timers import hierarchical_timer

_SAC_UPDATE = hierarchical_timer("sac_update")
_IDLE = "is the buffer filled past its warm-up, and does update() do a gradient step?"
_BATCHES = ("batch", "minibatch", "samples", "transitions", "experiences")  # names of a parameter that is no size


def sac_workload(agent: Any, batch_size: int | None) -> Workload:
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
        return _check(updater, batch_size)

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


def _check(updater: Updater, batch_size: int | None) -> object:
    """Do one update, and check it; return what it returned."""
    __tracebackhide__ = True
    if updater.buffers:
        with drawn(updater.owner, updater.buffers) as batches:
            updater.update()
        sizes = [next((len(array) for _, array in leaves(batch)), 0) for batch in batches]
        if sizes != [batch_size]:
            raise ComponentError(f"one update drew batches of {sizes} transitions, expected one of {batch_size}")
    training = Training(updater.owner)
    output = training.do(updater.update, _IDLE)
    if updater.steps is not None and len(training.steps) != updater.steps:
        raise ComponentError(
            f"one update took {len(training.steps)} optimizer steps, expected {updater.steps}: is it one gradient step "
            "of every part?"
        )
    return output


@contextmanager
def drawn(owner: object, buffers: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a list that gets every batch drawn from ``buffers``, which ``owner`` holds, while the body runs."""
    batches: list[Any] = []

    def noting(sample: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            batch = sample(*args, **kwargs)
            batches.append(batch)
            return batch

        return noted

    with ExitStack() as stack:
        for buffer in buffers:
            stack.callback(replace_method(owner, buffer, "sample", noting))
        yield batches


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
        made: Updater = make(agent, batch_size)
        return made
    assert callable(method)
    thunk = "a thunk does any update: rlperf_sac_update(lambda: agent.update(…))"
    check_takes(f"rlperf_sac_update calls agent.update({batch_size})", method, (batch_size,), thunk)
    signature = signature_of(method)
    if signature is not None and next(iter(signature.parameters), None) in _BATCHES:
        raise ComponentError(
            f"rlperf_sac_update calls agent.update({batch_size}), a size, and update takes a batch: give a thunk that "
            f"draws one, rlperf_sac_update(lambda: agent.update(buffer.sample({batch_size})))"
        )
    return Updater(agent, lambda: method(batch_size))


def _thunk_updater(thunk: Any) -> Updater:
    __tracebackhide__ = True
    if not callable(thunk):
        raise ComponentError(
            f"rlperf_sac_update needs an agent with update(batch_size), or a thunk that does one update, "
            f"not {type(thunk).__qualname__}: rlperf_sac_update(lambda: …)"
        )
    instead = "give a thunk of one update, rlperf_sac_update(lambda: update(batch)), or the agent itself"
    check_takes("rlperf_sac_update calls a thunk without arguments", thunk, (), instead)
    return Updater(thunk, thunk)
