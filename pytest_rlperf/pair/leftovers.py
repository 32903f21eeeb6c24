"""What a worker's calls leave outside of all processes: shared memory that nobody unlinks.

No system says who has made a block of it. But the sides of a pair take turns, and blocks that are there after a turn
and were not before it are of the worker whose turn it was, or of any other program. So a worker has to prove that its
calls leave blocks, in turns and pauses in an order by chance.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.model.measured import SliceKind, SliceRecord, Usage
from pytest_rlperf.pair.processes import Worker
from pytest_rlperf.wire import ReadUsage, Take

PLACE = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory that has a name
_LEAST = 3  # blocks that are worth a proof
_TRIALS = 10  # blocks that others make at random seem to be the worker's in one proof of 2 ** 10
_PROOF_S = 3.0
_ALIKE = 4  # first letters that names of one program's blocks have in common
_TIMES = 2  # what a pause has, and an equal turn with it where others make blocks at an even pace


class Held(NamedTuple):
    """How much shared memory this machine has: blocks and bytes."""

    blocks: int
    bytes: int

    @classmethod
    def now(cls) -> Held:
        """Return what there is, which one system call tells; nothing on a system without such a place."""
        try:
            found = os.statvfs(PLACE)
        except OSError:
            return cls(0, 0)
        return cls(found.f_files - found.f_ffree, (found.f_blocks - found.f_bfree) * found.f_frsize)

    def since(self, before: Held) -> Held:
        """Return how much more there is than before."""
        return Held(self.blocks - before.blocks, self.bytes - before.bytes)


class Leftovers:
    """What there is more of after the turns of each worker of a pair than before them."""

    def __init__(
        self,
        held: Callable[[], Held] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        is_there = os.path.ismount(PLACE)  # else it is a folder of a disk, which has other files, too
        self._held = held or (Held.now if is_there else lambda: Held(0, 0))
        self._clock = clock
        self._wait = wait
        self._left: defaultdict[Worker, Held] = defaultdict(lambda: Held(0, 0))
        self._turn_s = 0.0

    def take(self, worker: Worker, kind: SliceKind) -> SliceRecord:
        """Let a worker take a slice, and count what it leaves."""
        __tracebackhide__ = True
        before, started_s = self._held(), self._clock()
        record = worker.ask(Take(kind))
        self._turn_s = self._clock() - started_s
        more = self._held().since(before)
        left = self._left[worker]
        self._left[worker] = Held(left.blocks + more.blocks, left.bytes + more.bytes)
        return record

    def usage(self, worker: Worker) -> Usage:
        """Return what a worker holds, and what its slices have left so far."""
        left = self._left[worker]
        return replace(worker.ask(ReadUsage()), shared_blocks=left.blocks, shared_bytes=left.bytes)

    def proved(self, worker: Worker) -> str | None:
        """Return how the names of the blocks begin that a worker's calls leave; None where they are not proved to.

        More than twice as many have to come in each turn as in a pause as long beside it, wherever any come, and a coin
        puts them in order: so what others make falls into turns as often as into pauses.
        """
        __tracebackhide__ = True
        if self._left[worker].blocks < _LEAST:
            return None
        before, end_s, proofs = _names(), self._clock() + _PROOF_S, 0
        while proofs < _TRIALS:
            if self._clock() + 2 * (_TRIALS - proofs) * self._turn_s > end_s:
                return None
            is_turn_first = os.urandom(1)[0] % 2
            paused = 0 if is_turn_first else self._pause()
            left = self._left[worker].blocks
            self.take(worker, SliceKind.PLAIN)
            left = self._left[worker].blocks - left
            paused = self._pause() if is_turn_first else paused
            if left <= _TIMES * paused and (left or paused):
                return None
            proofs += left > 0
        return _beginning(_names() - before)

    def _pause(self) -> int:
        """Wait as long as the last turn took; return how many blocks came meanwhile."""
        before = self._held()
        self._wait(self._turn_s)
        return self._held().since(before).blocks


def _beginning(names: set[str]) -> str:
    """Return how most names begin, up to the number of a process or of a block; others may have made the rest."""
    usual = Counter(name[:_ALIKE] for name in names).most_common(1)
    alike = [name for name in names if usual and name.startswith(usual[0][0])]
    return re.split(r"\d", os.path.commonprefix(alike))[0]  # noqa: RUF071 - of no paths


def _names() -> set[str]:
    with suppress(OSError):
        return {path.name for path in Path(PLACE).iterdir()}
    return set()
