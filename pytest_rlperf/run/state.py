"""The state of a run: its baselines, its outcomes, and what it stores of these."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path

import pytest

from pytest_rlperf.baseline.history import session_name
from pytest_rlperf.baseline.machine import differences, this_machine
from pytest_rlperf.baseline.provenance import (
    Tree,
    changed_versions,
    free_distributions,
    make_provenance,
    read_tree,
)
from pytest_rlperf.baseline.store import OtherBaselines, Store, keep_first, read_anchor
from pytest_rlperf.errors import SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.judge.findings import scale
from pytest_rlperf.judge.history import link_of
from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.judge.stats import squared_deviations
from pytest_rlperf.judge.validity import broken_rule
from pytest_rlperf.judge.verdict import unmatched
from pytest_rlperf.model import notes, reasons
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import (
    LIVE_TOLERANCE,
    Allowance,
    Finding,
    Fitness,
    Outcome,
    Policy,
    Selfcheck,
    Shard,
    Status,
)
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Counting, PhaseCounts, Result
from pytest_rlperf.model.reasons import Code, VersionChange
from pytest_rlperf.model.stored import (
    Acceptance,
    Anchor,
    Baseline,
    PairSpread,
    Provenance,
    StoredResult,
    session_figures,
)
from pytest_rlperf.options import Config
from pytest_rlperf.pair.one_side import WORKERS
from pytest_rlperf.report.run_json import RunFile
from pytest_rlperf.report.wording import origin_text
from pytest_rlperf.sides.git import git_user, read_allowances
from pytest_rlperf.sides.installs import normalized

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
        self._read = cache(partial(read_allowances, root))
        self._noted: set[str] = set()

    def since(self, base: str | None) -> tuple[Allowance, ...]:
        """Return what commits after ``base``, a full SHA, accept; nothing where there is no such base."""
        return () if base is None else tuple(self._read(base)[0])

    def heed(self, base: str) -> list[notes.Note]:
        """Count the allowances since ``base`` among those that should match a test; return the notes on trailers."""
        self._noted.add(base)
        return [notes.TextNote(text) for text in self._read(base)[1]]

    def unmatched(self, keys: Collection[str]) -> list[notes.Note]:
        """Return notes on allowances that match none of the tests of ``keys``, all that could have been measured."""
        allowances = dict.fromkeys(allowance for base in self._noted for allowance in self._read(base)[0])
        return [notes.UnmatchedAllowance(*found) for found in unmatched(list(allowances), keys)]


class RunState:
    """A measured run: its settings, its baselines, its outcomes, and its notes, all in one list.

    ``gated`` is how many gated tests share the run's error rate. ``shard`` has the tests of this run, and of others,
    where tests are divided. ``merged`` is the run as other machines have measured and judged it, None where this one
    did. BaselineError where a baseline cannot be used, SideError where git refuses to read the tree whose figures are
    to be stored.
    """

    def __init__(self, settings: Config, root: Path, begun: Iterable[notes.Note] = ()) -> None:
        self.settings = settings
        self.baselines = Baselines(settings, root)
        self.outcomes = Outcomes()
        self.accepted = AcceptedSlowdowns(root)
        self.series = Series(())
        self.notes: list[notes.Note] = [*begun]
        self.note(*map(notes.SkippedBaseline, self.baselines.faults))
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

    def note(self, *added: notes.Note) -> None:
        """Add notes that are not there yet; of one test's counts the latest stays."""
        for note in added:
            if isinstance(note, notes.UncomparedCounts):
                kept = (old for old in self.notes if not isinstance(old, type(note)) or old.key != note.key)
                self.notes[:] = kept
            if note not in self.notes:
                self.notes.append(note)

    @property
    def saved(self) -> notes.Saved | None:
        """The stored figures' note, None where nothing was to be stored."""
        return next((note for note in reversed(self.notes) if isinstance(note, notes.Saved)), None)

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
        outputs = (settings.json, settings.html, settings.benchmark_json, settings.trace)
        return read_tree(self._root, settings.baseline_dir, [path for path in outputs if path is not None])


# ----------------------------------------------------------------------- a run's baselines


# Counts that depend on the interpreter, and not on the code alone.
_OF_THE_INTERPRETER = frozenset(
    {"python_calls", "native_calls", "host_peak_bytes", "host_net_bytes", "collections", "objects_left", "garbage"}
)


class Baselines:
    """The baselines of one name: this machine class's, and those of others.

    ``faults`` are why files beside this machine's, which has none, cannot be read. BaselineError where this machine's
    cannot be read, or could not be written in the end.
    """

    def __init__(self, settings: Config, root: Path) -> None:
        self.machine = this_machine()
        self.store = Store(settings.baseline_dir, settings.baseline, self.machine)
        self.own: Baseline | None = self.store.read()
        self._settings = settings
        self._others, self.faults = self.store.others() if self.own is None else OtherBaselines([], [])
        self.differences = tuple(tuple(differences(other.machine, self.machine)) for other in self._others)
        self.counts = StoredCounts(self.own, root)
        if settings.save:
            self.store.check_writable()

    @cached_property
    def anchor(self) -> Anchor | None:
        """The commit that saving does not move; BaselineError where its file cannot be read."""
        return read_anchor(self.store.directory)

    def last_commit(self) -> str | None:
        """Return the commit of the latest session, on this machine class before others; None where none has one."""
        baselines = [self.own] if self.own else self._others
        sessions = [session for each in baselines for session in each.sessions.values()]
        known = sorted((session for session in sessions if session.commit), key=lambda session: session.created)
        return known[-1].commit if known else None

    def stored(self, key: str) -> StoredResult | None:
        """Return the figures of a test on this machine class."""
        return None if self.own is None else self.own.results.get(key)

    def commit_of(self, key: str) -> str | None:
        """Return the commit that a test's figures are of, on this machine class before another."""
        return next((origin.commit for origin in self._origins(key) if origin.settleable), None)

    def unsettled(self, key: str) -> reasons.NotSettledLive | None:
        """Return why no code can be run in the place of a test's figures; None where there may be, or no figures."""
        origins = self._origins(key)
        if not origins or any(origin.settleable for origin in origins):
            return None
        is_committed = any(origin.commit is not None for origin in origins)
        return reasons.NotSettledLive(reasons.NoCode.UNCOMMITTED if is_committed else reasons.NoCode.OUTSIDE_GIT)

    def _origins(self, key: str) -> list[Provenance]:
        """Return where a test's figures come from: those of this machine class or, where it has none, of others."""
        known = self._others if self.own is None else [self.own]
        return [each.sessions[each.results[key].session] for each in known if key in each.results]

    def uses_mean(self, key: str) -> bool | None:
        """Whether a test's figures are means of long calls, None where there are no figures."""
        stored = self.stored(key)
        return None if stored is None else stored.result.workers[0].long

    def versions_since(self, key: str) -> tuple[VersionChange, ...]:
        """Return the packages that have changed since a test's figures were stored."""
        stored = self.stored(key)
        if self.own is None or stored is None:
            return ()
        return tuple(changed_versions(self.own.sessions[stored.session].packages))

    def origin(self, outcome: Outcome) -> str:
        """Name what an outcome was compared with."""
        if outcome.live is not None:
            return f"{outcome.live.head_label} with {outcome.live.base_label}, live"
        if self._settings.against is not None:
            return f"today's code with {self._settings.against}"
        session = None
        if self.own is not None and outcome.baseline is not None:
            session = self.own.sessions[outcome.baseline.session]
        return origin_text(self._settings.baseline, session)

    def origins(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Name what outcomes were compared with, each thing once."""
        compared = [outcome for outcome in outcomes if outcome.before]
        if self._settings.against is not None:
            compared = compared or list(outcomes)
        return list(dict.fromkeys(self.origin(outcome) for outcome in compared))


# ----------------------------------------------------------------------- exact counts


@dataclass(frozen=True)
class OtherCounts:
    """Counts to compare with, None where none can be; ``obstacle`` is why, where that is worth a note."""

    counting: Counting | None
    obstacle: notes.Obstacle | None = None


def live_counts(base: Result, against: str | None = None) -> OtherCounts:
    """Return the counts of a live comparison's base, without those that differ between interpreters where it is one."""
    counting = base.counting
    if counting is not None and not counting.workers:
        return OtherCounts(counting, notes.NothingCounted(counting.notes, on_base=True))
    if counting is not None and against is not None and against.startswith("python:"):
        counting = _without(counting, _OF_THE_INTERPRETER)
    return OtherCounts(counting)


@dataclass
class StoredCounts:
    """The counts that this machine class's baseline holds.

    The versions of what lies in the tree around ``root`` may differ, as that is what is tested.
    """

    own: Baseline | None
    root: Path

    def find(self, result: Result) -> OtherCounts:
        """Return the counts that a test's can be compared with."""
        stored = None if self.own is None else self.own.results.get(result.nodeid)
        if self.own is None or stored is None or not stored.result.is_same_work(result):
            return OtherCounts(None)
        then, now = stored.result.counting, result.counting
        if then is None or not then.workers:
            return OtherCounts(None, notes.NoStoredCounts())
        if min(then.workers, 0 if now is None else now.workers) < 2:
            return OtherCounts(None, notes.OneWorkerCounted())
        packages = self.own.sessions[stored.session].packages
        differing = changed_versions({name: packages[name] for name in packages if normalized(name) not in self._free})
        return OtherCounts(None, notes.OtherVersions(tuple(differing))) if differing else OtherCounts(then)

    @cached_property
    def _free(self) -> frozenset[str]:
        """The distributions whose versions do not matter."""
        return free_distributions(self.root, tree_top(self.root))


def tree_top(directory: Path) -> Path:
    """Return the directory of the repository that ``directory`` lies in, else itself."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), directory)


def _without(counting: Counting, names: frozenset[str]) -> Counting:
    """Return ``counting`` less some of its counters."""
    phases = tuple(
        PhaseCounts(
            phase.path,
            {name: value for name, value in phase.exact.items() if name.partition(":")[0] not in names},
            {name: value for name, value in phase.inexact.items() if name.partition(":")[0] not in names},
        )
        for phase in counting.phases
    )
    return replace(counting, phases=phases)


# ----------------------------------------------------------------------- storing


def save(run: RunState, failed: Collection[str]) -> notes.Saved:
    """Store what may be stored, and note which that was; ``failed`` are the keys of tests that failed.

    BaselineError where the file cannot be written.
    """
    now, outcomes, store = run.provenance(), run.outcomes.tests, run.baselines.store
    session = session_name(now)
    refusals = {key: _refusal(outcome, failed=key in failed) for key, outcome in outcomes.items()}
    kept_back = {key: why for key, why in refusals.items() if why is not None}
    results = {key: _entry(run, outcome, session, now) for key, outcome in outcomes.items() if key not in kept_back}
    if results:
        store.write(session, now, results)
        keep_first(store.directory, run.baselines.own, now, run.user())
    few = {
        key: len(outcomes[key].result.workers) for key, why in kept_back.items() if why is notes.KeptBack.FEW_WORKERS
    }
    saved = notes.Saved(store.path, now.settleable, tuple(results), kept_back, few, WORKERS)
    run.note(saved)
    for key in results:
        run.outcomes.add(replace(outcomes[key], stored=True))
    return saved


def _entry(run: RunState, outcome: Outcome, session: str, now: Provenance) -> StoredResult:
    """Return a test's entry, with what this session adds to the earlier ones'."""
    key = outcome.result.nodeid
    before = run.baselines.commit_of(key)
    head = now.commit if now.settleable else None
    link = link_of(before, head, outcome, run.baselines.versions_since(key))
    return StoredResult(
        replace(outcome.result, shares=()),  # which are shown for their own sake, and compared with nothing
        session,
        _acceptance(run, outcome, now.created),
        pairs=_pair_spread(outcome.live),
        history=(session_figures(outcome.result, session, same_code=_is_same_code(run, outcome)),),
        links=() if link is None else (link,),
    )


def _pair_spread(live: Live | None) -> PairSpread | None:
    """Return how much a comparison's pairs differed, by the clock that decided; None where there were too few."""
    if live is None or len(live.pairs) < 2:
        return None
    return PairSpread(squared_deviations(live.log_ratios), len(live.pairs) - 1.0)


def _is_same_code(run: RunState, outcome: Outcome) -> bool:
    """Whether code and packages are as fast as the baseline's, as shown by something else than stored numbers.

    From such sessions the spread between sessions is learned: stored numbers that called them SAME would have chosen
    those that lie close together.
    """
    verdict, estimate = outcome.verdict, outcome.verdict.estimate
    if run.settings.against is not None or run.baselines.versions_since(outcome.result.nodeid):
        return False
    if verdict.status is not Status.SAME or verdict.reason.code not in (Code.LIVE, Code.CODE, Code.ENVIRONMENT):
        return False
    within = 1 + LIVE_TOLERANCE  # whatever the test tolerates
    return estimate is None or 1 / within < estimate.low <= estimate.high < within


def _refusal(outcome: Outcome, *, failed: bool) -> notes.KeptBack | None:
    """Return why a test's figures are not stored, None where they are."""
    verdict, is_new = outcome.verdict, outcome.baseline is None
    # One that fails as slower by its time has good figures.
    if verdict.status is Status.ERROR or (failed and not verdict.fails(strict=False)):
        return notes.KeptBack.FAILED
    if verdict.status is Status.INVALID:
        return notes.KeptBack.INVALID
    if len(outcome.result.workers) < WORKERS:
        return notes.KeptBack.FEW_WORKERS
    # A verdict by counts holds whatever became of the time; a figure does not.
    if broken_rule(outcome.result) is not None:
        return notes.KeptBack.INVALID_TIME
    if _may_be_slower(outcome):
        return notes.KeptBack.SLOWER_AND_NEW if is_new else notes.KeptBack.SLOWER
    # Stored numbers alone could not decide, and nobody has accepted that.
    is_undecided = verdict.status is Status.UNDECIDED and not verdict.accepted
    if is_undecided and not is_new and any(reason.code == Code.UNSETTLED for reason in verdict.also):
        return notes.KeptBack.UNDECIDED
    return None


def _may_be_slower(outcome: Outcome) -> bool:
    """Whether figures would take the place of better ones, or be the first of something slower, unaccepted."""
    verdict = outcome.verdict
    suspect = verdict.suspect and outcome.baseline is not None
    if verdict.accepted:
        # A commit that accepts counts alone accepts no time that may be slower.
        return suspect and verdict.allowance is not None and not verdict.allowance.most
    return suspect or verdict.status is Status.SLOWER


def _acceptance(run: RunState, outcome: Outcome, created: str) -> Acceptance | None:
    verdict, allowance = outcome.verdict, outcome.verdict.allowance
    if not verdict.accepted or outcome.baseline is None or verdict.status is not Status.SLOWER:
        return None
    reason = run.settings.accept or ("" if allowance is None else f"{allowance.reason} ({allowance.commit})")
    return Acceptance(reason, created, outcome.baseline.result.call_s, run.user())
