"""The garbage collector's work: its runs, objects that only it can free, and objects that a call leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_rlperf.counters.instrument import WHOLE, TotalsInstrument
from pytest_rlperf.model.counting import Count


class Garbage(TotalsInstrument):
    """Counts runs of the collector, from just after a run of all generations, and the objects that it finds.

    With ``is_on``, as the user has it, the collector runs by itself; otherwise it runs once after the call.
    """

    names: tuple[str, ...] = ("collections", "objects_left", "garbage")

    def __init__(self, *, is_on: bool) -> None:
        super().__init__()
        self._is_on = is_on
        self._run, self._object = self.totals.unit("collections"), self.totals.unit("garbage")

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return the counts; those of the final collection belong to the whole call, and to no phase."""
        with self.recorder.recording():
            start = self.read()
            # No object that the collector tracks is made between the two readings, but by the call.
            before = _tracked()
            gc.callbacks.append(self._note)
            if self._is_on:
                gc.enable()
            try:
                call()
            finally:
                gc.disable()
                gc.callbacks.remove(self._note)
            self.totals.packed += gc.collect() * self._object
            left = _tracked() - before
            whole = self.read() - start
        return (*self._counts(whole), Count(WHOLE, "objects_left", left))

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.totals.packed += self._run + info["collected"] * self._object


def _tracked() -> int:
    """Return how many objects the collector tracks, after it has stopped to track those that need not be."""
    gc.collect()
    gc.collect()  # the first run untracks a tuple within a tuple, and the next the tuple around it
    return len(gc.get_objects())


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Switch the collector off, and freeze all present objects, while the body runs; yield whether it was on.

    Afterwards it is as it was, but for thresholds that the body itself may have set.
    """
    was_on, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield was_on
    finally:
        if not had_frozen:
            gc.unfreeze()  # otherwise it would unfreeze objects that the user has frozen
        if was_on:
            gc.enable()
