"""Whether a test's two sides can differ at all: processes that are not measured run it, and say what they have read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from operator import methodcaller

from pytest_rlperf import wire as m
from pytest_rlperf.model import reasons
from pytest_rlperf.run.live_comparison import Measuring, UnpairedError
from pytest_rlperf.sides.observed import Reads
from pytest_rlperf.spawn.contract import WorkerStoppedError, check
from pytest_rlperf.spawn.process import Worker
from pytest_rlperf.spawn.stems import Stems

ROUNDS = 3  # of processes with seeds of their own: what a test reads may differ from one to the next
_SEED = 1000
_LONGEST_S = 2.0  # of one side's calls


def same_code(test: Measuring, stems: Stems) -> reasons.SameCode | None:
    """Return the reason why a test need not be measured, None where it must be.

    It need not where no file differs, or none that any process of either side has read; the last of head's processes
    then reports the test, where it can. A test that fails here fails again where it is reported. UnpairedError where
    measuring it would compare nothing, SideError where a side has read another one's file.
    """
    base = stems.sides.base.label
    if stems.is_same_code:
        return reasons.SameCode(base)
    if stems.sides.changed is None:
        return None
    test.progress.show("looking what it reads")
    read = Reads()
    with test.lanes.lane(test.order), contextlib.ExitStack() as at_end:
        for number in range(ROUNDS):
            at_end.close()
            last = _Observation(test, stems, _SEED + number)
            at_end.callback(last.close)
            found = last.reads()
            if found is None:
                return None
            read |= found
            _refuse(read)
            if read.differing:
                return None
        if last.is_forked:
            at_end.pop_all()
            last.report()
    return reasons.SameCode(base, len(read.files), len(read.files - stems.sides.tests))


class _Observation:
    """A test at its call in new processes of both sides."""

    def __init__(self, test: Measuring, stems: Stems, seed: int) -> None:
        self._test = test
        self._stems = stems
        self._at_end = contextlib.ExitStack()
        self._reports: list[m.Reported | m.Warned] = []
        base, head = self._at_end.enter_context(stems.observers(seed))
        self._base, self._head = base, head
        self._group = replace(
            test.group, forward=self._reports.append, workers=[], reporter=head, at_end=contextlib.ExitStack()
        )
        self._at_end.callback(_leave, [base, head])

    @property
    def is_forked(self) -> bool:
        """Whether no other test waits for these processes."""
        return self._head.stem.forks

    def reads(self) -> Reads | None:
        """Return what both processes read in the test; None where that is not known."""
        try:
            self._group.open([self._base, self._head])
            check([self._base, self._head])
            return self._stems.reads(self._base, self._head, _LONGEST_S)
        except WorkerStoppedError:
            return None

    def report(self) -> None:
        """Have head's process report the test, which ends the others with it."""
        group = self._test.group
        for message in self._reports:
            group.forward(message)
        self._head.forward = group.forward
        group.reports_by(self._head)
        group.at_end.callback(self.close)

    def close(self) -> None:
        """Have both processes leave the test, and let them go."""
        self._at_end.close()


def _leave(workers: Sequence[Worker]) -> None:
    """Let workers leave the test, those that still can."""
    for leave in (methodcaller("start_leaving"), methodcaller("leave")):
        for worker in workers:
            with contextlib.suppress(WorkerStoppedError):
                leave(worker)


def _refuse(read: Reads) -> None:
    """Raise UnpairedError where a file that a side needs is in no copy, or is no build of its own."""
    if read.missing:
        raise UnpairedError(reasons.NotCopied(min(read.missing)))
    if read.compiled:
        raise UnpairedError(reasons.NotBuilt(min(read.compiled)))
