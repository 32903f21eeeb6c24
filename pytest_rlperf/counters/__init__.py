"""Exact counts of what a call does, each by an instrument in its own passes; nothing is timed meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from pytest_rlperf.counters.calls import Calls, MonitoredCalls, Steps
from pytest_rlperf.counters.compiled import graphs_compiled
from pytest_rlperf.counters.instrument import NAMES, WHOLE, CannotCountError, Instrument
from pytest_rlperf.counters.memory import CollectorWork, HostMemory, TensorMemory, as_usual, quiet, tracing, undisturbed
from pytest_rlperf.counters.operations import DeviceCounts, Kernels, Operations, devices_in_use
from pytest_rlperf.devices.clocks import Device
from pytest_rlperf.model.measured import Count, Probe, Tally
from pytest_rlperf.probes import attached

__all__ = ["NAMES", "tally"]

_Made = TypeVar("_Made")


def tally(
    call: Callable[[], object],
    *,
    setup: Callable[[], None] | None,
    probes: Sequence[Probe],
    repetitions: int,
    devices: Sequence[Device] | None = None,
    environments: Sequence[str] = (),
    names: Collection[str] = (),
    watched: Sequence[str] = (),
) -> Tally:
    """Count what ``call`` does, ``repetitions`` times by every instrument, by phases of timers and ``probes``.

    Each instrument makes one more, uncounted call, for whatever a first call makes; ``setup`` runs before every call.
    If an instrument's first call counts as much as the next, that call is a plain one, which takes less time.
    ``devices`` are the devices to count; None stands for PyTorch's, if it already uses one. ``environments`` names the
    classes of environments whose steps are counted (see ``Steps``). Only instruments with one of ``names`` count, or
    all if there are no names. A counter that cannot be counted is left out, with a note. Functions in files below
    ``watched`` places are counted separately.
    """
    passes = _Passes(call, setup, probes, repetitions, names)
    with quiet(), undisturbed():
        calls = (MonitoredCalls if sys.version_info >= (3, 12) else Calls)(watched)
        is_counted = passes.run(calls)
        if calls.ran_compiled or (not is_counted and graphs_compiled()):
            passes.leave_out(Operations.names, "counting them would run code of torch.compile uncompiled")
        else:
            passes.run(Operations())
        passes.run(TensorMemory())
        if calls.has_other_threads:
            passes.leave_out((*Operations.names, *TensorMemory.names), "in other threads, which use PyTorch as well")
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            passes.run(Kernels())
        for device in devices_in_use() if devices is None else devices:
            passes.run(DeviceCounts(device))
        passes.run(Steps(environments))
        with tracing():
            passes.run(CollectorWork())
            passes.run(HostMemory())
    return replace(passes.tally(), functions=calls.functions(), calls=passes.calls)


class _Passes:
    """The passes of all instruments over one call, and what they have counted so far."""

    def __init__(
        self,
        call: Callable[[], object],
        setup: Callable[[], None] | None,
        probes: Sequence[Probe],
        repetitions: int,
        wanted: Collection[str],
    ) -> None:
        self._call = call
        self._setup = setup
        self._probes = probes
        self._wanted = {name.partition(":")[0] for name in wanted}
        if not self._wanted.isdisjoint(Operations.names):  # their pass depends on what the calls' pass has seen
            self._wanted.update(Calls.names)
        self._counts: list[list[Count]] = [[] for _ in range(repetitions)]
        self._notes: list[str] = []
        self.has_failed = False
        self.calls = 0

    def run(self, instrument: Instrument) -> bool:
        """Make an instrument's pass, and return whether it could count; if not, a note has the reason.

        An instrument that is not wanted makes no pass.
        """
        if self._wanted and self._wanted.isdisjoint(instrument.names):
            return False
        instrument.recorder.probes = self._probes
        count = partial(instrument.count, self._call)
        try:
            # The order matters: a probe goes on with the method that it finds.
            with instrument.watch(), attached(self._probes):
                self._make(count if instrument.needs_first else self._call)
                passed = [self._make(count) for _ in self._counts]
        except CannotCountError as error:
            self.leave_out(instrument.names, str(error))
            return False
        except Exception as error:
            self._call_plainly()  # raises if counting is not to blame; else the instrument is left out
            failed = f"the call fails while they are counted: {type(error).__name__}: {error}"
            self.leave_out(instrument.names, failed)
            self.has_failed = True
            return False
        for counts, found in zip(self._counts, passed, strict=True):
            seen = {count.name for count in found if count.path == WHOLE}
            counts += [Count(WHOLE, name, 0) for name in instrument.names if name not in seen]
            counts += [count for count in found if count.value or count.path == WHOLE]
        return True

    def _call_plainly(self) -> None:
        with as_usual():
            self._make(self._call)

    def leave_out(self, names: Sequence[str], reason: str) -> None:
        """Note that wanted counters are not counted, and why."""
        if self._wanted and self._wanted.isdisjoint(names):
            return
        self._notes.append(f"not counted: {', '.join(names)}: {reason}")

    def tally(self) -> Tally:
        """Return all that was counted."""
        order = [tuple(sorted(counts, key=lambda count: (count.path, count.name))) for counts in self._counts]
        return Tally(tuple(order), tuple(self._notes), self.has_failed)

    def _make(self, call: Callable[[], _Made]) -> _Made:
        if self._setup is not None:
            self._setup()
        self.calls += 1
        return call()
