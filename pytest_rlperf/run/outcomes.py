"""The state of a run: its outcomes, beside the baselines that they are compared with."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_rlperf.baseline.provenance import Tree, make_provenance, read_tree
from pytest_rlperf.errors import SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.judge.findings import scale
from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.judge.verdict import unmatched
from pytest_rlperf.model.judged import (
    LIVE_TOLERANCE,
    OFF,
    Allowance,
    Finding,
    Fitness,
    Outcome,
    Policy,
    Selfcheck,
    Shard,
)
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.notes import Note, Saved, SkippedBaseline, TextNote, UncomparedCounts, UnmatchedAllowance
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.options import Config
from pytest_rlperf.report.run_json import RunFile
from pytest_rlperf.run.baselines import Baselines
from pytest_rlperf.sides.git import git_user, read_allowances

# The settings that verdicts depend on.
_UNKNOWN = Tree(None, None, dirty=True)  # without git's answer any file may have changed
_JUDGING = ("against", "baseline", "tolerance", "pairs", "findings", "strict")


@dataclass
class Outcomes:
    """The outcomes of a run's tests by their keys, and what else workers have recorded of them.

    ``modules`` are the top-level modules that workers had loaded.
    """

    tests: dict[str, Outcome] = field(default_factory=dict)
    selfchecks: dict[str, Selfcheck] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)

    @property
    def keys(self) -> set[str]:
        """The tests that were measured."""
        return {*self.tests, *self.selfchecks}

    def add(self, outcome: Outcome) -> None:
        """Keep a test's outcome, in the place of an earlier one of less."""
        self.tests[outcome.result.nodeid] = outcome


class Series:
    """Tests that are the same but for one number, by which the time of a call follows a law.

    Lanes may add tests at the same time.
    """

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._place: dict[str, tuple[str, float]] = {}
        for item in items:
            parameters = dict(getattr(getattr(item, "callspec", None), "params", {}))
            numbers = {
                name: value
                for name, value in parameters.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
            if len(numbers) == 1:
                ((name, size),) = numbers.items()
                others = sorted((other, repr(value)) for other, value in parameters.items() if other != name)
                self._place[result_key(item)] = f"{item.nodeid.partition('[')[0]} {others}", float(size)
        self._wanted = Counter(series for series, _ in self._place.values())
        self._points: dict[str, dict[float, scale.Point]] = {}
        self._lock = threading.Lock()

    def add(self, head: Result, live: Live | None, policy: Policy) -> Finding | None:
        """Add a test's figures; return the finding of its series where it is the last one of that."""
        series, size = self._place.get(head.nodeid, ("", 0.0))
        if not series or live is None or len(live.pairs) < 2 or policy.findings["scale"] == OFF:
            return None
        counts = (_exact(live.base), _exact(head))
        with self._lock:
            points = self._points.setdefault(series, {})
            points[size] = scale.Point(size, live.log_ratios, live.base.call_s, *counts)
            is_last = len(points) == self._wanted[series] >= scale.POINTS_LEAST
        return scale.find(list(points.values()), policy) if is_last else None


def _exact(result: Result) -> Mapping[str, int]:
    """Return the exact counts of a whole call."""
    phases = () if result.counting is None else result.counting.phases
    return next((phase.exact for phase in phases if not phase.path), {})


class AcceptedSlowdowns:
    """The slowdowns that commits accept, read once for each base.

    Call :meth:`heed` where those since a base were of use: it returns notes on trailers that cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, tuple[list[Allowance], list[str]]] = {}
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    def since(self, base: str | None) -> tuple[Allowance, ...]:
        """Return what commits after ``base``, a full SHA, accept; nothing where there is no such base."""
        if base is None:
            return ()
        with self._lock:
            if base not in self._read:
                self._read[base] = read_allowances(self._root, base)
        return tuple(self._read[base][0])

    def heed(self, base: str) -> list[Note]:
        """Count the allowances since ``base`` among those that should match a test; return the notes on trailers."""
        self._noted.add(base)
        return [TextNote(text) for text in self._read[base][1]]

    def unmatched(self, keys: Collection[str]) -> list[Note]:
        """Return notes on allowances that match none of the tests of ``keys``, all that could have been measured."""
        allowances = dict.fromkeys(allowance for base in self._noted for allowance in self._read[base][0])
        return [UnmatchedAllowance(*found) for found in unmatched(list(allowances), keys)]


class RunState:
    """A measured run: its settings, its baselines, its outcomes, and its notes, all in one list.

    ``gated`` is how many gated tests share the run's error rate. ``shard`` has the tests of this run, and of others,
    where tests are divided. ``merged`` is the run as other machines have measured and judged it, None where this one
    did. BaselineError where a baseline cannot be used, SideError where git refuses to read the tree whose figures are
    to be stored.
    """

    def __init__(self, settings: Config, root: Path, notes: list[Note] | None = None) -> None:
        self.settings = settings
        self.baselines = Baselines(settings, root)
        self.outcomes = Outcomes()
        self.accepted = AcceptedSlowdowns(root)
        self.series = Series(())
        self.notes: list[Note] = [] if notes is None else notes
        self.note(*map(SkippedBaseline, self.baselines.faults))
        self.gated = 1
        self.shard: Shard | None = None
        self.merged: RunFile | None = None
        self._root = root
        self._provenance: Provenance | None = None
        try:
            self._tree = self._read_tree()
        except SideError:
            if settings.save:
                raise
            self._tree = _UNKNOWN

    def note(self, *notes: Note) -> None:
        """Add notes that are not there yet; of one test's counts the latest stays."""
        for note in notes:
            if isinstance(note, UncomparedCounts):
                self.notes[:] = [old for old in self.notes if not _is_about(old, note.key)]
            if note not in self.notes:
                self.notes.append(note)

    @property
    def saved(self) -> Saved | None:
        """The stored figures' note, None where nothing was to be stored."""
        return next((note for note in reversed(self.notes) if isinstance(note, Saved)), None)

    @property
    def fitness(self) -> Fitness | None:
        """Whether this machine is fit for its tolerance; None where it was not checked."""
        checks = list(self.outcomes.selfchecks.values())
        return judge_fitness(checks, self.settings.tolerance or LIVE_TOLERANCE) if checks else None

    def policy(self, settings: Config) -> Policy:
        """Return the rules of a test with these settings."""
        return Policy(
            tolerance=settings.tolerance or LIVE_TOLERANCE,
            tests=max(1, self.gated),
            min_change_s=settings.min_change_s,
            gated=settings.gate,
            accept=settings.accept is not None,
            stores=self.settings.save,
            gates=settings.gating_counts,
            findings=settings.findings,
            pairs=settings.pairs,
        )

    def provenance(self) -> Provenance:
        """Return where the figures come from, read when this is first called: at the end of the run."""
        if self._provenance is None:
            try:
                after = self._read_tree()
            except SideError:
                after = _UNKNOWN
            self._provenance = make_provenance(self._tree, after, self.outcomes.modules)
        return self._provenance

    def shard_of(self, number: int, count: int, keys: Iterable[str]) -> Shard:
        """Return one of ``count`` shards of the tests ``keys``; all of one run have the same in common."""
        collected = tuple(dict.fromkeys(keys))
        digest = hashlib.sha256("\n".join(sorted(collected)).encode("utf-8", "replace")).hexdigest()
        common = {
            "shards": count,
            "tests": f"{len(collected)}, digest {digest[:8]}",
            "gated tests": self.gated,
            "commit": self._tree.commit,
            **{name: getattr(self.settings, name) for name in _JUDGING},
        }
        return Shard(number, count, collected, {fact: str(value) for fact, value in common.items()})

    def user(self) -> str:
        """Return the user's name and address by git; empty where it has none."""
        return git_user(self._root)

    def _read_tree(self) -> Tree:
        """Return the state of the tree, in which what the run itself writes does not count."""
        settings = self.settings
        outputs = (settings.json, settings.html, settings.benchmark_json)
        return read_tree(self._root, settings.baseline_dir, [path for path in outputs if path is not None])


def _is_about(note: Note, key: str) -> bool:
    return isinstance(note, UncomparedCounts) and note.key == key
