"""The state of a run: its settings, its baselines, its outcomes and its notes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from pytest_rlperf.baseline.provenance import TreeState, make_provenance, read_tree
from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.judge.untouched import shared_shift
from pytest_rlperf.judge.verdict import unmatched
from pytest_rlperf.model import notes
from pytest_rlperf.model.judged import LIVE_TOLERANCE, Allowance, Fitness, Outcome, Policy, Selfcheck, Shard
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.options import Config
from pytest_rlperf.reach.coverage import Coverage
from pytest_rlperf.report.run_json import RunFile
from pytest_rlperf.run.baselines import Baselines
from pytest_rlperf.run.series import Series
from pytest_rlperf.sides.git import git_user, read_allowances

_UNKNOWN = TreeState(None, None, dirty=True)  # without git's answer any file may have changed
# The settings that verdicts depend on.
_JUDGING = ("against", "tolerance", "pairs", "findings", "strict")


@dataclass
class Outcomes:
    """The outcomes of a run's tests by their keys, and other records of their workers.

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
        """Store a test's outcome, replacing an earlier one that says less."""
        self.tests[outcome.result.nodeid] = outcome


class AcceptedSlowdowns:
    """The slowdowns that commits accept, read once per base.

    Call :meth:`heed` if the slowdowns accepted since a base were used: it returns notes on trailers that cannot be
    read.
    """

    def __init__(self, root: Path) -> None:
        self._read = cache(partial(read_allowances, root))
        self._noted: set[str] = set()

    def since(self, base: str | None) -> tuple[Allowance, ...]:
        """Return the slowdowns that commits after ``base``, a full SHA, accept; nothing without a base."""
        return () if base is None else tuple(self._read(base)[0])

    def heed(self, base: str) -> list[notes.Note]:
        """Expect the allowances since ``base`` to match a test; return the notes on trailers."""
        self._noted.add(base)
        return [notes.TextNote(text) for text in self._read(base)[1]]

    def unmatched(self, keys: Collection[str]) -> list[notes.Note]:
        """Return notes on allowances that match no test of ``keys``, which are all that could have been measured."""
        allowances = dict.fromkeys(allowance for base in self._noted for allowance in self._read(base)[0])
        return [notes.UnmatchedAllowance(*found) for found in unmatched(list(allowances), keys)]


class RunState:
    """A measured run: its settings, its baselines, its outcomes, and its notes, all in one list.

    ``gated`` is how many gated tests share the run's error rate. If tests are divided, ``shard`` has the tests of this
    run, and of the others. ``is_selection`` if the user selected some tests, as by -k. ``merged`` is the run as other
    machines have measured and judged it, None if this one did. BaselineError if a baseline cannot be used. SideError if
    git refuses to read the tree whose figures are to be stored.
    """

    def __init__(self, settings: Config, root: Path, begun: Iterable[notes.Note] = ()) -> None:
        self.settings = settings
        self.baselines = Baselines(settings, root)
        self.outcomes = Outcomes()
        self.accepted = AcceptedSlowdowns(root)
        self.series = Series(())
        self.coverage = Coverage()
        self.notes: list[notes.Note] = [*begun]
        self.note(*map(notes.SkippedBaseline, self.baselines.faults))
        self.gated = 1
        self.is_selection = False
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

    def note(self, *added: notes.Note) -> None:
        """Add notes that are not there yet; of the notes on one test's counts only the latest stays."""
        for note in added:
            if isinstance(note, notes.UncomparedCounts):
                kept = (old for old in self.notes if not isinstance(old, type(note)) or old.key != note.key)
                self.notes[:] = kept
            if note not in self.notes:
                self.notes.append(note)

    def note_reach(self) -> None:
        """Note which changed functions no test runs, and whether tests that the change cannot affect have moved."""
        coverage, tests = self.coverage, self.outcomes.tests
        if coverage.untested and self.shard is None and self.settings.bisect is None:
            may = tuple(sorted({*coverage.unknown}))  # tests end in any order
            self.note(notes.Untested(len(coverage.changed), tuple(coverage.untested), may, self.is_selection))
        verdicts = (outcome.verdict for key, outcome in tests.items() if key in coverage.untouched)
        estimates = [verdict.estimate for verdict in verdicts if verdict.estimate is not None]
        shift = shared_shift(estimates)
        if shift is not None:
            self.note(notes.UntouchedMoved(len(estimates), shift))

    @property
    def saved(self) -> notes.Saved | None:
        """The note on the stored figures; None if nothing was to be stored."""
        return next((note for note in reversed(self.notes) if isinstance(note, notes.Saved)), None)

    @property
    def fitness(self) -> Fitness | None:
        """Whether this machine is fit for its tolerance; None if it was not checked."""
        checks = list(self.outcomes.selfchecks.values())
        return judge_fitness(checks, self.settings.tolerance or LIVE_TOLERANCE) if checks else None

    def policy(self, settings: Config) -> Policy:
        """Return the rules for a test with these settings."""
        return Policy(
            tolerance=settings.tolerance or LIVE_TOLERANCE,
            tests=max(1, self.gated),
            min_change_s=settings.min_change_s,
            gated=settings.fail,
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
        """Return one of ``count`` shards of the tests ``keys``; all shards of a run share the same facts."""
        collected = tuple(dict.fromkeys(keys))
        digest = hashlib.sha256("\n".join(sorted(collected)).encode("utf-8", "replace")).hexdigest()
        common = {
            "shards": count,
            "tests": f"{len(collected)}, digest {digest[:8]}",
            "gated tests": self.gated,
            "commit": self._tree.commit,
            "baseline": self.baselines.store.name,
            **{name: getattr(self.settings, name) for name in _JUDGING},
        }
        return Shard(number, count, collected, {fact: str(value) for fact, value in common.items()})

    def user(self) -> str:
        """Return the user's name and address from git; empty if git has none."""
        return git_user(self._root)

    def _read_tree(self) -> TreeState:
        """Return the state of the tree, without the files that the run itself writes."""
        settings = self.settings
        outputs = (settings.json, settings.html, settings.trace)
        return read_tree(self._root, settings.baseline.parent, [path for path in outputs if path is not None])
