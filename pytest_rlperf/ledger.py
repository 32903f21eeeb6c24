"""What a run has found: each test's result beside its baseline, judged; and at the end, what of it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_rlperf.baseline.machine import differences, this_machine
from pytest_rlperf.baseline.provenance import make_provenance, read_tree
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.judge.verdict import judge_stored, stored_policy
from pytest_rlperf.measure.solo import WORKERS
from pytest_rlperf.model import Acceptance, Baseline, Outcome, Result, Status, StoredResult
from pytest_rlperf.options import Config
from pytest_rlperf.report.rows import origin_text
from pytest_rlperf.report.summary import Saved


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
        self.modules: set[str] = set()
        self.saved: Saved | None = None
        self._root = root
        self._gated = 1
        others = self.store.other_machines() if self.baseline is None else []
        self._others = [", ".join(differences(other, self.machine)) for other in others]
        if settings.save:
            self.store.check_writable()
            self._tree = read_tree(root, settings.baseline_dir)

    def expect(self, gated: int) -> None:
        """Fix how many gated tests share the run's error rate."""
        self._gated = max(1, gated)

    def enter(self, key: str, settings: Config, measured: Result, seconds: float) -> Outcome:
        """Judge a test's result and keep the outcome."""
        stored = None if self.baseline is None else self.baseline.results.get(key)
        policy = stored_policy(
            tolerance=settings.tolerance,
            alpha=settings.alpha,
            tests=self._gated,
            min_change_s=settings.min_change_s,
            gated=settings.gate,
            accept=settings.accept is not None,
        )
        verdict = judge_stored(measured, stored, self._others, policy)
        outcome = self.outcomes[key] = Outcome(measured, stored, verdict, seconds)
        return outcome

    def told_by_mean(self, key: str) -> bool | None:
        """Whether a test's stored figures are means of long calls, None where there are none to go by."""
        stored = None if self.baseline is None else self.baseline.results.get(key)
        return None if stored is None else stored.result.workers[0].long

    def origin(self, outcome: Outcome) -> str:
        """Say what an outcome was compared with."""
        session = None
        if self.baseline is not None and outcome.baseline is not None:
            session = self.baseline.sessions[outcome.baseline.session]
        return origin_text(self.settings.baseline, session)

    def origins(self) -> list[str]:
        """Say what all outcomes were compared with, each thing once."""
        return list(dict.fromkeys(self.origin(outcome) for outcome in self.outcomes.values() if outcome.baseline))

    def save(self, failed: Iterable[str], run_failed: bool) -> None:
        """Store what may be stored: nothing of a test that failed, and nothing over old figures in a run that did."""
        now = make_provenance(self._tree, read_tree(self._root, self.settings.baseline_dir), self.modules)
        self.saved = Saved(self.store.path, settleable=now.settleable)
        slower = any(outcome.verdict.status is Status.SLOWER for outcome in self.outcomes.values())
        locked = (run_failed or slower) and self.settings.accept is None
        failures = set(failed)
        session = now.created if now.commit is None else f"{now.created} {now.commit[:12]}"
        results = {}
        for key, outcome in self.outcomes.items():
            refusal = self._refusal(key, outcome, locked=locked, failed=key in failures)
            if refusal is None:
                results[key] = StoredResult(outcome.result, session, self._acceptance(outcome, now.created))
                self.saved.stored.append(key)
            else:
                self.saved.kept_back[key] = refusal
        if results:
            self.store.write(session, now, results)

    def _refusal(self, key: str, outcome: Outcome, *, locked: bool, failed: bool) -> str | None:
        """Return why a test's figures are not stored, None where they are."""
        if failed:
            return "it failed"
        if outcome.verdict.status is Status.INVALID:
            return "its measurement was INVALID"
        if len(outcome.result.workers) < WORKERS:
            return f"{len(outcome.result.workers)} of {WORKERS} workers measured it; raise --rlperf-max-time"
        if outcome.verdict.suspect and outcome.baseline is not None and self.settings.accept is None:
            return 'they may be slower than the old figures; --rlperf-accept="why" replaces them'
        if locked and outcome.baseline is not None:
            return 'a run with failures or something SLOWER keeps old figures; --rlperf-accept="why" replaces them'
        return None

    def _acceptance(self, outcome: Outcome, created: str) -> Acceptance | None:
        if self.settings.accept is None or outcome.baseline is None or outcome.verdict.status is not Status.SLOWER:
            return None
        return Acceptance(self.settings.accept, created, outcome.baseline.result.call_s)
