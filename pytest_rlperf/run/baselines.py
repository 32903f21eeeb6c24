"""The baselines of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_rlperf.baseline.machine import differences, this_machine
from pytest_rlperf.baseline.provenance import changed_versions
from pytest_rlperf.baseline.store import OtherBaselines, Store
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.reasons import VersionChange
from pytest_rlperf.model.stored import Baseline, Provenance, StoredResult
from pytest_rlperf.options import Config
from pytest_rlperf.report.wording import origin_text
from pytest_rlperf.run.stored_counts import StoredCounts

WORKERS = 3  # the sample of a stored comparison


class Baselines:
    """The baselines of one name: this machine class's, and those of others.

    ``faults`` say why other files cannot be read, if this machine has no file. BaselineError if this machine's file
    cannot be read, or could not be written at the end.
    """

    def __init__(self, settings: Config, root: Path) -> None:
        self.machine = this_machine()
        self.store = Store(settings.baseline.parent, settings.baseline.name, self.machine)
        self.own: Baseline | None = self.store.read()
        self._settings = settings
        self._others, self.faults = self.store.others() if self.own is None else OtherBaselines([], [])
        self.differences = tuple(tuple(differences(other.machine, self.machine)) for other in self._others)
        self.counts = StoredCounts(self.own, root)
        if settings.save:
            self.store.check_writable()

    @property
    def commits(self) -> list[str]:
        """The commits whose code stored figures can be compared with live, the latest first."""
        known = self._others if self.own is None else [self.own]
        sessions = sorted((each for one in known for each in one.sessions.values()), key=lambda each: each.created)
        return list(dict.fromkeys(each.clean_commit for each in reversed(sessions) if each.settleable))

    def stored(self, key: str) -> StoredResult | None:
        """Return the figures of a test on this machine class."""
        return None if self.own is None else self.own.results.get(key)

    def commit_of(self, key: str) -> str | None:
        """Return the commit of a test's figures, those of this machine class before those of another."""
        return next((origin.commit for origin in self._origins(key) if origin.settleable), None)

    def commit_before(self, key: str) -> str | None:
        """Return the commit that a test's figures were measured at, or with changes on top of it."""
        return next((origin.commit for origin in self._origins(key) if origin.commit is not None), None)

    def unsettled(self, key: str) -> reasons.NotSettledLive | None:
        """Return why no code can be run in place of a test's figures; None if some may be, or without figures."""
        origins = self._origins(key)
        if not origins or any(origin.settleable for origin in origins):
            return None
        is_committed = any(origin.commit is not None for origin in origins)
        return reasons.NotSettledLive(reasons.NoCode.UNCOMMITTED if is_committed else reasons.NoCode.OUTSIDE_GIT)

    def _origins(self, key: str) -> list[Provenance]:
        """Return where a test's figures come from: this machine class or, if it has no baseline, others."""
        known = self._others if self.own is None else [self.own]
        return [each.sessions[each.results[key].session] for each in known if key in each.results]

    def uses_mean(self, key: str) -> bool | None:
        """Whether a test's figures are means of long calls; None if there are no figures."""
        stored = self.stored(key)
        return None if stored is None else stored.result.workers[0].long

    def versions_since(self, key: str) -> tuple[VersionChange, ...]:
        """Return the packages that have changed since a test's figures were stored."""
        stored = self.stored(key)
        if self.own is None or stored is None:
            return ()
        return tuple(changed_versions(self.own.sessions[stored.session].packages))

    def origin(self, outcome: Outcome) -> str:
        """Name the code or the baseline that an outcome was compared with."""
        if outcome.live is not None:
            return f"{outcome.live.head_label} with {outcome.live.base_label}, live"
        if self._settings.against is not None:
            return f"today's code with {self._settings.against}"
        session = None
        if self.own is not None and outcome.baseline is not None:
            session = self.own.sessions[outcome.baseline.session]
        return origin_text(self.store.name, session)

    def origins(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Name what outcomes were compared with, each name once."""
        compared = [outcome for outcome in outcomes if outcome.before]
        if self._settings.against is not None:
            compared = compared or list(outcomes)
        return list(dict.fromkeys(self.origin(outcome) for outcome in compared))
