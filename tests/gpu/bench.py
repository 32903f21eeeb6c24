"""A GPU with kernels of known lengths, to time, tape and count work on.

The host's clock alone gives the length of a kernel: the bench waits for two kernels of different lengths, and the
difference of their times is that of their cycles, without launches and waits. The clocks under test have no part in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from gpu.devices import Gpu
from pytest_rlperf.counters import tally
from pytest_rlperf.devices import clock_for, devices_of
from pytest_rlperf.devices.clocks import EventClock
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.device import DeviceTimes
from pytest_rlperf.model.measured import Count, Phase, Workload
from pytest_rlperf.timers import recording_into
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks

WITHIN = 0.02
REPETITIONS = 7
_SHORT_CYCLES, _LONG_CYCLES = 2_000_000, 42_000_000  # a millisecond, and twenty more
_FLOOR_NS = 100.0  # what two readings of the clock take, about
_WARM_UP_S = 0.5  # until a GPU that was idle has raised its clocks


def percent(share: float) -> str:
    return f"{_short(f'{100 * share:.2f}')} %"


def change(share: float) -> str:
    return f"{_short(f'{100 * share:+.2f}')} %"


def _short(number: str) -> str:
    return number.rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Taped:
    """The phases of some work by their paths, and the tape's notes."""

    phases: dict[str, Phase]
    notes: tuple[str, ...]
    unseen_s: float

    def times(self, path: str) -> DeviceTimes:
        """Return the device's times of a phase; LookupError where it has none."""
        times = self.phases[path].on_device
        if times is None:
            raise LookupError(f"the phase {path} has no times by the device")
        return times

    def span_s(self, path: str) -> float:
        """Return a phase's span; LookupError where it has none."""
        span_s = self.times(path).span_s
        if span_s is None:
            raise LookupError(f"the phase {path} has no span")
        return span_s


class Bench:
    """A warm GPU with kernels of known seconds, by the cycle's length of the last :meth:`calibrate`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        found = clock_for(devices_of([gpu.held]), host_ns=gpu.host_ns)
        if not isinstance(found, EventClock):
            pytest.skip(f"{found.device} has no clock of events")
        self.clock = found
        end_ns = gpu.host_ns() + 1e9 * _WARM_UP_S
        while gpu.host_ns() < end_ns:
            gpu.sleep(_LONG_CYCLES)
            gpu.synchronize()
        self._cycles_per_s = 0.0
        self.calibrate()

    def calibrate(self) -> None:
        long_s, short_s = (
            statistics.median(self.waited_s(partial(self.gpu.sleep, cycles)) for _ in range(3))
            for cycles in (_LONG_CYCLES, _SHORT_CYCLES)
        )
        self._cycles_per_s = (_LONG_CYCLES - _SHORT_CYCLES) / (long_s - short_s)

    def cycles(self, seconds: float) -> int:
        return round(seconds * self._cycles_per_s)

    def sleep(self, seconds: float) -> None:
        self.gpu.sleep(self.cycles(seconds))

    def waited_s(self, work: Callable[[], object]) -> float:
        """Return the host's seconds for some work, from an idle GPU to an idle GPU."""
        self.gpu.synchronize()
        start_ns = self.gpu.host_ns()
        work()
        self.gpu.synchronize()
        return (self.gpu.host_ns() - start_ns) / 1e9

    def taped(self, work: Callable[[], object], iterations: int = 1) -> Taped:
        """Return the phases of some work as a worker records them: one call with counts, then timed calls."""
        tape = Tape(self.clock)
        for look in (True, *(False,) * iterations):
            self.gpu.synchronize()
            with iteration(tape, look=look):
                work()
            tape.resolve()
        return Taped({phase.path: phase for phase in tape.phases()}, tape.notes, tape.unseen_s)

    def counted(self, work: Callable[[], object], names: Sequence[str]) -> dict[str, dict[str, int]]:
        found = tally(work, setup=None, probes=(), repetitions=1, devices=self.gpu.drivers or None)
        counts: tuple[Count, ...] = found.repetitions[0]
        missing = set(names) - {count.name for count in counts}
        if missing:
            pytest.skip(f"not counted here: {', '.join(sorted(missing))}; {'; '.join(found.notes)}")
        by_path: dict[str, dict[str, int]] = {}
        for count in counts:
            if count.name in names:
                by_path.setdefault(count.path, dict.fromkeys(names, 0))[count.name] = count.value
        return by_path


@contextmanager
def iteration(tape: Tape, *, look: bool = False) -> Iterator[None]:
    tape.begin_iteration(look=look)
    with recording_into(tape.tree):
        yield
    tape.end_iteration()


@contextmanager
def meter_of(gpu: Gpu, call: Callable[[], object]) -> Iterator[Meter]:
    """Yield a meter of the call that has checked it and warmed up, as a worker's has."""

    def check() -> None:
        call()

    workload = Workload("callable", call, 1.0, "call", check=check, holds=(gpu.held,))
    meter = Meter(workload, dict, Clocks(gpu.host_ns, gpu.host_ns, _FLOOR_NS), gpu.library)
    try:
        meter.check()
        meter.warm_up(WarmUp(2.0, kernels=False))
        yield meter
    finally:
        meter.thaw()
