"""What a run has found: each test's result beside its baseline, judged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_rlperf.baseline.machine import differences, this_machine
from pytest_rlperf.baseline.provenance import Tree, changed_versions, make_provenance, read_tree
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.judge.counters import combine, uncounted
from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.judge.policy import LIVE_TOLERANCE, make_policy
from pytest_rlperf.judge.stored import can_certify, creep, judge_stored
from pytest_rlperf.judge.verdict import allow, unmatched
from pytest_rlperf.model import (
    Allowance,
    Baseline,
    Fitness,
    Live,
    Outcome,
    Policy,
    Provenance,
    Result,
    Selfcheck,
    Status,
    StoredResult,
    Verdict,
    VersionChange,
    reasons,
)
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.options import Config
from pytest_rlperf.report.summary import Saved, Uncompared
from pytest_rlperf.report.wording import machine_text, origin_text, unmatched_text, version_text
from pytest_rlperf.run.stored_counts import Memory, live_counts, tree_top
from pytest_rlperf.sides.git import git_user, read_allowances


@dataclass(frozen=True)
class Plan:
    """How a test is to be compared with what is stored.

    ``commit`` is the code that can settle it live, if any. ``at_once`` says that nothing else can: the stored numbers
    are another machine's, or differ too much among themselves.
    """

    commit: str | None
    at_once: bool


class Ledger:
    """The outcomes of a run, and the baseline they are compared with.

    Raises BaselineError where the baseline cannot be read, or could not be written in the end.
    """

    def __init__(self, settings: Config, root: Path) -> None:
        self.settings = settings
        self.machine = this_machine()
        self.store = Store(settings.baseline_dir, settings.baseline, self.machine)
        self.baseline: Baseline | None = self.store.read()
        self.outcomes: dict[str, Outcome] = {}
        self.selfchecks: dict[str, Selfcheck] = {}
        self.modules: set[str] = set()
        self.saved: Saved | None = None
        self.uncompared: dict[str, Uncompared] = {}
        self.notes: list[str] = []
        self._allowances: dict[str, list[Allowance]] = {}
        self._root = root
        self._gated = 1
        self._elsewhere = self.store.others() if self.baseline is None else []
        self._others = [tuple(differences(other.machine, self.machine)) for other in self._elsewhere]
        self._memory = Memory(
            self.machine,
            self.baseline,
            self.store.others if self.baseline is not None else lambda: self._elsewhere,
            settings.packages,
            tree_top(root),
        )
        self.traces: list[Trace] = []
        self._provenance: Provenance | None = None
        if settings.save:
            self.store.check_writable()
        if settings.save or settings.json is not None or settings.benchmark_json is not None:
            self._tree = self._read_tree()

    @property
    def keys(self) -> set[str]:
        """The tests that were measured."""
        return {*self.outcomes, *self.selfchecks}

    @property
    def fitness(self) -> Fitness | None:
        """Whether this machine can tell what is asked of it; None where it was not checked."""
        if not self.selfchecks:
            return None
        return judge_fitness(list(self.selfchecks.values()), self.settings.tolerance or LIVE_TOLERANCE)

    def expect(self, gated: int) -> None:
        """Fix how many gated tests share the run's error rate."""
        self._gated = max(1, gated)

    def plan(self, key: str, settings: Config) -> Plan:
        """Say whether and when a test's comparison is settled live."""
        commit = self.commit_of(key)
        if commit is None or settings.confirm == "never":
            return Plan(None, at_once=False)
        stored = self.stored(key)
        hopeless = stored is None or not can_certify(stored.result, self.policy(settings))
        return Plan(commit, at_once=hopeless or settings.confirm == "always")

    def stored(self, key: str) -> StoredResult | None:
        """Return what the baseline has of a test on this machine class."""
        return None if self.baseline is None else self.baseline.results.get(key)

    def commit_of(self, key: str) -> str | None:
        """Return the commit that a test's baseline remembers, this machine class's before another's."""
        for baseline in [self.baseline] if self.baseline is not None else self._elsewhere:
            stored = baseline.results.get(key)
            if stored is not None and baseline.sessions[stored.session].settleable:
                return baseline.sessions[stored.session].commit
        return None

    def tolerance(self, key: str, settings: Config) -> float:
        """Return what a measured test's time may change and still be the same."""
        if self.outcomes[key].live is not None:
            return self.policy(settings).tolerance
        policy = self.policy(settings)
        return policy.stored_tolerance if self.plan(key, settings).commit is None else policy.tolerance

    def policy(self, settings: Config) -> Policy:
        """Return the rules of a test."""
        return make_policy(
            tolerance=settings.tolerance,
            alpha=settings.alpha,
            tests=self._gated,
            min_change_s=settings.min_change_s,
            gated=settings.gate,
            accept=settings.accept is not None,
            stores=self.settings.save,
            gates=settings.counters.gates,
            named=settings.counters.named,
        )

    def judge(self, key: str, measured: Result, policy: Policy, *, settleable: bool) -> Verdict:
        """Judge a result by stored numbers."""
        return judge_stored(measured, self.stored(key), self._others, policy, settleable=settleable)

    def with_counts(self, result: Result, base: Result | None, verdict: Verdict, settings: Config) -> Verdict:
        """Return ``verdict`` with what exact counts say: of ``base`` in a live comparison, else of the stored ones."""
        now = result.counting
        if now is None:
            return verdict
        remembered = self._memory.find(result) if base is None else live_counts(base, settings.against)
        obstacle = remembered.obstacle if now.workers else "; ".join(now.notes)
        if obstacle:
            self.uncompared[result.nodeid] = Uncompared(obstacle, bool(settings.counters.gates))
        if remembered.counting is None or obstacle:
            return verdict
        gates = settings.counters.gates
        missing = uncounted(remembered.counting, now, gates, settings.counters.named)
        if missing:
            notes = dict.fromkeys((*now.notes, *remembered.counting.notes))
            not_counted = f"{', '.join(missing)} was not counted on both sides"
            self.uncompared[result.nodeid] = Uncompared("; ".join([not_counted, *notes]), gates=True)
        verdict = combine(verdict, remembered.counting, now, gates)
        if verdict.counters and remembered.origin:
            verdict = replace(verdict, also=(*verdict.also, reasons.CountedElsewhere(remembered.origin)))
        return verdict

    def allow(self, key: str, verdict: Verdict, base: str | None) -> Verdict:
        """Return ``verdict`` accepted where commits since ``base``, a full SHA, say that so much slower is meant.

        Where nothing is slower, only the messages that can still be amended are read: those of the change at hand.
        """
        if base is None or (verdict.status is not Status.SLOWER and self.settings.against is None):
            return verdict
        if base not in self._allowances:
            self._allowances[base], notes = read_allowances(self._root, base)
            self.notes += [note for note in notes if note not in self.notes]
        return allow(verdict, key, self._allowances[base])

    def note_unmatched(self, keys: Collection[str]) -> None:
        """Take note of what commits allow of none of the tests of ``keys``, all that could have been measured."""
        allowances = dict.fromkeys(each for found in self._allowances.values() for each in found)
        self.notes += [unmatched_text(*found) for found in unmatched(list(allowances), keys)]

    def gates_outdated(self, result: Result, settings: Config) -> bool:
        """Whether counts gate a test and those stored are of other versions, so that only live sides can tell."""
        asked = settings.counters.gates and result.counting is not None
        return bool(asked) and self._memory.find(result).is_outdated

    def enter(self, key: str, result: Result, live: Live | None, verdict: Verdict, seconds: float) -> Outcome:
        """Keep a test's outcome."""
        # A side that was asked for is what there is to compare with, also where nothing was measured.
        stored = self.stored(key) if live is not None or self.settings.against is None else None
        # Live pairs tell the last step where they ran the code that the stored figures are of.
        ratio = verdict.estimate.ratio if live and verdict.estimate and self.settings.against is None else None
        outcome = Outcome(result, stored, live, verdict, seconds, creep(result, stored, ratio))
        self.outcomes[key] = outcome
        return outcome

    def amend(self, outcome: Outcome) -> Outcome:
        """Keep an outcome of which more is known by now."""
        self.outcomes[outcome.result.nodeid] = outcome
        return outcome

    def versions_since(self, key: str) -> tuple[VersionChange, ...]:
        """Return the packages that have changed since a test's figures were stored."""
        stored = self.stored(key)
        if stored is None or self.baseline is None:
            return ()
        return tuple(changed_versions(self.baseline.sessions[stored.session].packages))

    def changes(self) -> list[str]:
        """Say what is different now from when the figures were stored that outcomes were compared with."""
        if self.settings.against is not None:
            return []
        if self.baseline is None:
            return [f"the machine: {machine_text(other)}" for other in self._others if other]
        then: dict[str, str] = {}
        for key in sorted({outcome.baseline.session for outcome in self.outcomes.values() if outcome.baseline}):
            then.update(self.baseline.sessions[key].packages)
        return [version_text(change) for change in changed_versions(then)]

    def told_by_mean(self, key: str) -> bool | None:
        """Whether a test's stored figures are means of long calls, None where there are none to go by."""
        stored = self.stored(key)
        return None if stored is None else stored.result.workers[0].long

    def origin(self, outcome: Outcome) -> str:
        """Say what an outcome was compared with."""
        if outcome.live is not None:
            return f"{outcome.live.head_label} with {outcome.live.base_label}, live"
        if self.settings.against is not None:
            return f"today's code with {self.settings.against}"
        session = None
        if self.baseline is not None and outcome.baseline is not None:
            session = self.baseline.sessions[outcome.baseline.session]
        return origin_text(self.settings.baseline, session)

    def origins(self) -> list[str]:
        """Say what all outcomes were compared with, each thing once."""
        told = [outcome for outcome in self.outcomes.values() if outcome.before]
        if self.settings.against is not None:
            told = told or list(self.outcomes.values())
        return list(dict.fromkeys(self.origin(outcome) for outcome in told))

    def provenance(self) -> Provenance:
        """Return where the figures come from, as it is when this is first asked: at the end of the run."""
        if self._provenance is None:
            self._provenance = make_provenance(self._tree, self._read_tree(), self.modules)
        return self._provenance

    def user(self) -> str:
        """Return whose run this is, as git knows; empty where it does not."""
        return git_user(self._root)

    def _read_tree(self) -> Tree:
        """Return the state of the tree, in which what the run itself writes does not count."""
        settings = self.settings
        outputs = (settings.json, settings.html, settings.benchmark_json, settings.trace)
        return read_tree(self._root, settings.baseline_dir, [path for path in outputs if path is not None])
