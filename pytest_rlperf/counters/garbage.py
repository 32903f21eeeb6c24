"""The garbage collector's work: its runs, what only it can free, and what a call leaves for it to look at."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_rlperf.counters.instrument import WHOLE, TotalsInstrument
from pytest_rlperf.model import Count


class Garbage(TotalsInstrument):
    """Counts runs of the collector, from just after a run of all generations, and what it finds.

    ``is_on`` says whether the collector runs by itself, as the user has it; else it runs once a call is over.
    """

    names: tuple[str, ...] = ("collections", "objects_left", "garbage")

    def __init__(self, *, is_on: bool) -> None:
        super().__init__()
        self._is_on = is_on
        self._run, self._object = self.totals.unit("collections"), self.totals.unit("garbage")

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted; what a collection shows is the whole call's alone."""
        with self.recorder.recording():
            start = self.read()
            # Nothing is made between here and there that the collector looks at.
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
    """Return how many objects the collector looks at, once it has done so and left alone what it need not."""
    gc.collect()
    gc.collect()  # a tuple within a tuple is left alone by the first run, what holds it by the next
    return len(gc.get_objects())


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Keep the collector from running while the body does, and from what was there before; yield whether it was on.

    Afterwards it is as it was, but for what the body itself may have changed for good: thresholds.
    """
    was_on, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield was_on
    finally:
        if not had_frozen:
            gc.unfreeze()  # which else would thaw what somebody has frozen
        if was_on:
            gc.enable()
