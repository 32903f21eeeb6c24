"""What today's code is compared with live: prepared once, and kept with its workers for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pytest_rlperf.errors import SideError
from pytest_rlperf.measure.launch import Launch
from pytest_rlperf.measure.pool import Pool
from pytest_rlperf.measure.process import Worker
from pytest_rlperf.measure.sides.prepare import commit_sides
from pytest_rlperf.measure.sides.verify import check_loaded
from pytest_rlperf.model import Project, Side, Sides

MakePool = Callable[[Launch], Pool]
MakeLaunch = Callable[[str, Side, Sides | None], Launch]


class Opponent:
    """A base side, and the pools that a pair's workers come from."""

    def __init__(self, sides: Sides, base: Pool, head: Pool) -> None:
        self.sides = sides
        self.base = base
        self.head = head

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def owns(self, worker: Worker) -> bool:
        """Whether ``worker`` is one of base's."""
        return worker in self.base

    def check_collected(self, keys: Collection[str]) -> None:
        """Raise SideError, with base's own words, where base's first worker has collected none of ``keys``."""
        (first,) = self.base.ensure(1)
        if first.keys.isdisjoint(keys):
            raise SideError(
                f"none of the {len(keys)} measured tests can be collected on {self.sides.base.label}, so there is "
                f"nothing to compare with:\n{first.errors or 'no test of the same name is there'}"
            )

    def may_differ(self, base: Worker, head: Worker) -> bool:
        """Verify what a pair has loaded so far; return whether it may differ.

        SideError where a side has loaded the other's.
        """
        differs = check_loaded(self.sides, base.loaded, head.loaded, base.importers | head.importers)
        return differs or base.has_children or head.has_children  # whose files nobody sees

    def trim(self) -> None:
        """End the pairs that only one test needed."""
        self.base.trim()
        self.head.trim()


class Opponents:
    """The opponents of a run, by the commit that a baseline names."""

    def __init__(self, project: Project, heads: Pool, own: Side, launch: MakeLaunch, make_pool: MakePool) -> None:
        self._project = project
        self._heads = heads
        self._own = own
        self._launch = launch
        self._make_pool = make_pool
        self._known: dict[str, Opponent | SideError] = {}
        self._pools: list[Pool] = []
        self._bases: list[Pool] = []

    def meet(self, sides: Sides) -> Opponent:
        """Return the opponent that ``sides`` describe."""
        base = self.pool(self._launch("base worker", sides.base, sides))
        self._bases.append(base)
        alike = _starts(sides.head) == _starts(self._own)
        head = self._heads if alike else self.pool(self._launch("head worker", sides.head, sides))
        return Opponent(sides, base, head)

    def of_commit(self, sha: str, progress: Callable[[str], None]) -> Opponent:
        """Return the opponent that is the code of ``sha``; SideError where it cannot be had, every time."""
        if sha not in self._known:
            try:
                self._known[sha] = self.meet(commit_sides(sha, self._project, progress))
            except SideError as error:
                self._known[sha] = error
        found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def is_base(self, worker: Worker) -> bool:
        """Whether ``worker`` is one of a base side's."""
        return any(worker in base for base in self._bases)

    def give_up(self, opponent: Opponent, error: SideError) -> None:
        """Remember that ``opponent`` cannot be compared with after all."""
        for sha, known in self._known.items():
            if known is opponent:
                self._known[sha] = error

    def close(self) -> None:
        """End every worker but those of the run's own pool."""
        for pool in self._pools:
            pool.close()

    def pool(self, launch: Launch) -> Pool:
        """Return a pool of workers that ends with the run."""
        pool = self._make_pool(launch)
        self._pools.append(pool)
        return pool


def _starts(side: Side) -> tuple[object, ...]:
    """Return all that a worker's start depends on."""
    return side.python, side.path, side.directory, side.args, side.files, dict(side.environment)
