"""What an instrument is, and the kind that keeps running totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pytest_rlperf.counters.recording import WHOLE, Recorder
from pytest_rlperf.counters.totals import Totals
from pytest_rlperf.model import Count


class CannotCountError(Exception):
    """An instrument cannot be used here; the text says why."""


class Instrument(Protocol):
    """Counts some of the vocabulary, in passes of its own."""

    names: tuple[str, ...]  # of what it always tells for the whole call, be it zero
    recorder: Recorder

    def watch(self) -> AbstractContextManager[None]:
        """Be in place while the body runs, and leave everything as it was; CannotCountError where that is not to be."""

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase; CannotCountError where the call did away with this."""


class TotalsInstrument:
    """An instrument of running totals, which those made from it add to while they are :meth:`on`."""

    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.totals = Totals()
        self.recorder = Recorder(self.read)

    def read(self) -> int:
        """Return the totals so far, packed."""
        return self.totals.packed

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be in place while the body runs."""
        yield

    def on(self) -> AbstractContextManager[None]:
        """Count while the body runs, which is one call."""
        return nullcontext()

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        with self.recorder.recording():
            start = self.read()
            with self.on():
                call()
            whole = self.read() - start
        return self._counts(whole)

    def _counts(self, whole: int) -> tuple[Count, ...]:
        """Return the counts of the call that has just been recorded, of ``whole`` in all."""
        return tuple(
            Count(path, name, value)
            for path, packed in ((WHOLE, whole), *self.recorder.totals())
            for name, value in self.totals.unpack(packed).items()
        )
