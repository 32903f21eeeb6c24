"""What a worker's calls leave outside all processes: shared memory and temporary files that nobody removes.

No system says who has made them. But the sides of a pair take turns. What is new after a turn comes from the worker
whose turn it was, or from any other program. So a worker has to prove that its calls leave something, in turns and
pauses in random order. System V's segments and semaphores have their process's number.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from pytest_rlperf.model.measured import SliceKind, SliceRecord, Usage
from pytest_rlperf.pair.processes import Worker
from pytest_rlperf.spawn.guardian import files_mark
from pytest_rlperf.wire import Order, ReadUsage, Take

PLACE = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory that has a name
SHARED, TEMPORARY = "shared", "temporary"
_LEAST = 3  # entries that are worth a proof
_TRIALS = 10  # what others make at random seems to be the worker's in one proof of 2 ** 10
_PROOF_S, _PROOF_MOST_S = 3.0, 30.0  # the second is for proofs in which nearly every turn leaves something
_SPARE = 1.25  # times the turns, for those that leave nothing
_ALIKE = 4  # first letters that the names of one program's blocks share
_TIMES = 2  # what a pause has; others who make blocks at an even pace give an equal turn as many
_TICK_NS = 20_000_000  # the clock of files may stand still for this long

T = TypeVar("T")


class Amount(NamedTuple):
    """How much a place has: entries and bytes."""

    entries: int
    bytes: int

    def since(self, before: Amount) -> Amount:
        """Return how much more there is than before."""
        return Amount(self.entries - before.entries, self.bytes - before.bytes)

    def with_more(self, more: Amount) -> Amount:
        """Return the sum of both."""
        return Amount(self.entries + more.entries, self.bytes + more.bytes)


_NOTHING = Amount(0, 0)


def shared_memory() -> Amount:
    """Return the shared memory with names, by one system call; nothing on a system without such a place."""
    try:
        found = os.statvfs(PLACE)
    except OSError:
        return _NOTHING
    return Amount(found.f_files - found.f_ffree, (found.f_blocks - found.f_bfree) * found.f_frsize)


class TemporaryFiles:
    """The entries that a directory has gained; it is listed again only if its entries may have changed.

    Entries whose names have a run's mark tell which of its sessions has made them.
    """

    def __init__(self, place: Path, mark: str) -> None:
        self._place = place
        self._mark = re.compile(rf"{re.escape(mark)}(\d+)_")
        self._changed_ns = self._listed_ns = 0
        self._sizes: dict[str, int] = {}
        self._held: dict[int | None, Amount] = {}  # by session
        for name in _names(self._place):
            self._add(name, 0)  # the sizes of earlier entries do not count

    def held(self) -> Amount:
        """Return how many entries without a mark there are, with the bytes of the new ones."""
        return self.held_by(None)

    def held_by(self, session: int | None) -> Amount:
        """Return how many entries one of the run's sessions has made, with their bytes."""
        with suppress(OSError):
            changed_ns = self._place.stat().st_mtime_ns
            if changed_ns != self._changed_ns or abs(self._listed_ns - changed_ns) < _TICK_NS:
                self._changed_ns, self._listed_ns = changed_ns, time.time_ns()
                self._list()
        return self._held.get(session, _NOTHING)

    def _list(self) -> None:
        """Count what has come and gone: the directory may have thousands of others' entries."""
        names, known = _names(self._place), self._sizes.keys()
        for name in known - names:
            self._count(name, Amount(-1, -self._sizes.pop(name)))
        for name in names - known:
            self._add(name, _size(self._place / name))

    def _add(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self._count(name, Amount(1, size))

    def _count(self, name: str, more: Amount) -> None:
        marked = self._mark.search(name)
        session = None if marked is None else int(marked[1])
        self._held[session] = self._held.get(session, _NOTHING).with_more(more)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a directory, without those that others have removed by now."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            return sum(map(_size, path.iterdir()))
        return path.lstat().st_size
    return 0


def with_left(usage: Usage, left: Mapping[str, Amount], places: Collection[str]) -> Usage:
    """Return what a worker holds, together with what its slices have left in some places."""
    shared, files = (left.get(place, _NOTHING) if place in places else _NOTHING for place in (SHARED, TEMPORARY))
    return replace(
        usage,
        shared_blocks=usage.shared_blocks + shared.entries,
        shared_bytes=usage.shared_bytes + shared.bytes,
        temporary_files=usage.temporary_files + files.entries,
        temporary_bytes=usage.temporary_bytes + files.bytes,
    )


class Leftovers:
    """What each worker's turns in a pair have added to ``places``."""

    def __init__(
        self,
        places: Mapping[str, Callable[[], Amount]],
        files: TemporaryFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._places = places
        self._files = files
        self._clock = clock
        self._wait = wait
        self._left: defaultdict[tuple[Worker, str], Amount] = defaultdict(lambda: _NOTHING)
        self._turns: Counter[Worker] = Counter()
        self._leaving_turns: Counter[tuple[Worker, str]] = Counter()
        self._turn_s = 0.0

    @classmethod
    def of_run(cls, scratch: Path) -> Leftovers:
        """Return the watch over this machine's places for a run, by the run's scratch directory."""
        files = TemporaryFiles(scratch.parent, files_mark(str(scratch)))
        is_there = os.path.ismount(PLACE)  # else it is a folder on a disk, which has other files, too
        return cls({TEMPORARY: files.held} | ({SHARED: shared_memory} if is_there else {}), files)

    def take(self, worker: Worker, kind: SliceKind) -> SliceRecord:
        """Let a worker take a slice, and count what it leaves."""
        __tracebackhide__ = True
        started_s = self._clock()
        record, more = self._ask(worker, Take(kind))
        self._turn_s = self._clock() - started_s
        self._turns[worker] += 1
        self._leaving_turns.update((worker, place) for place, found in more.items() if found.entries > 0)
        return record

    def usage(self, worker: Worker) -> tuple[Usage, Mapping[str, Amount]]:
        """Return what a worker holds, and what its slices may have left so far; its collection may have removed some.

        The usage includes what is known to be the worker's.
        """
        usage, _ = self._ask(worker, ReadUsage())
        own, files = worker.segments(), _NOTHING if self._files is None else self._files.held_by(worker.pid)
        sizes = sum(segment.bytes for segment in own)
        usage = with_left(usage, {TEMPORARY: files}, {TEMPORARY})
        return replace(usage, segments=len(own), segment_bytes=sizes), {p: self._left[worker, p] for p in self._places}

    def proved(self, worker: Worker) -> dict[str, str]:
        """Return the places in which a worker's calls provably leave something, with the beginning of its names.

        If any entries come, each turn has to bring more than twice as many as a pause of equal length beside it. A coin
        decides which comes first, so what others make falls into turns as often as into pauses.
        """
        __tracebackhide__ = True
        limit_s = _limit_s(self._turn_s)
        proving = {place for place in self._places if self._is_worth(worker, place, limit_s)}
        before, began_s, proofs = _names(PLACE), self._clock(), Counter[str]()
        while waiting := {place for place in proving if proofs[place] < _TRIALS}:
            missing = max(_TRIALS - proofs[place] for place in waiting)
            limit_s = max(limit_s, _limit_s(self._turn_s))  # turns take longer where other work begins
            if self._clock() - began_s + 2 * missing * self._turn_s > limit_s:
                proving -= waiting
                break
            turn, pause = self._turn_and_pause(worker)
            for place in waiting:
                left, others = turn[place].entries, pause[place].entries
                if left <= _TIMES * others and (left or others):
                    proving.discard(place)
                proofs[place] += left > 0
        return {place: _beginning(_names(PLACE) - before) if place == SHARED else "" for place in proving}

    def _is_worth(self, worker: Worker, place: str, limit_s: float) -> bool:
        """Whether a worker's turns have left enough, and often enough for a proof to have time."""
        turns = self._turns[worker] * _TRIALS / max(1, self._leaving_turns[worker, place])
        return self._left[worker, place].entries >= _LEAST and 2 * turns * self._turn_s <= limit_s

    def _turn_and_pause(self, worker: Worker) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
        """Return what comes in a turn, and in a pause of equal length before or after it."""
        __tracebackhide__ = True
        if os.urandom(1)[0] % 2:
            return self._turn(worker), self._pause()
        pause = self._pause()
        return self._turn(worker), pause

    def _turn(self, worker: Worker) -> Mapping[str, Amount]:
        __tracebackhide__ = True
        before = {place: self._left[worker, place] for place in self._places}
        self.take(worker, SliceKind.PLAIN)
        return {place: self._left[worker, place].since(before[place]) for place in self._places}

    def _pause(self) -> Mapping[str, Amount]:
        """Wait for as long as the last turn took; return what came meanwhile."""
        before = self._held()
        self._wait(self._turn_s)
        return self._since(before)

    def _ask(self, worker: Worker, order: Order[T]) -> tuple[T, Mapping[str, Amount]]:
        """Return a worker's answer to an order, and what has been added since."""
        __tracebackhide__ = True
        before = self._held()
        answer = worker.ask(order)
        more = self._since(before)
        for place, found in more.items():
            self._left[worker, place] = self._left[worker, place].with_more(found)
        return answer, more

    def _held(self) -> Mapping[str, Amount]:
        return {place: held() for place, held in self._places.items()}

    def _since(self, before: Mapping[str, Amount]) -> Mapping[str, Amount]:
        return {place: held.since(before[place]) for place, held in self._held().items()}


def _limit_s(turn_s: float) -> float:
    """Return how long a proof by turns of that length may take."""
    return max(_PROOF_S, min(_PROOF_MOST_S, 2 * _TRIALS * _SPARE * turn_s))


def _beginning(names: set[str]) -> str:
    """Return the beginning of most names, up to a process's or block's number; others may have made the rest."""
    usual = Counter(name[:_ALIKE] for name in names).most_common(1)
    alike = [name for name in names if usual and name.startswith(usual[0][0])]
    return re.split(r"\d", os.path.commonprefix(alike))[0]  # noqa: RUF071 - not paths


def _names(place: str | Path) -> set[str]:
    """Return the names of a directory's entries; none if the system lacks it."""
    with suppress(OSError):
        return set(os.listdir(place))  # noqa: PTH208 - only names, as there may be many
    return set()
