"""A self-check: today's code compared with itself, to learn which slowdowns this machine can find."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlperf.model.judged import Status, Verdict
from pytest_rlperf.model.live import PairRecord
from pytest_rlperf.model.measured import Result


@dataclass(frozen=True)
class Trial:
    """One known slowdown of today's code against itself, 0.05 being 5 % and 0.0 none, with its verdict."""

    slowdown: float
    verdict: Verdict
    pairs: tuple[PairRecord, ...]
    seconds: float

    @property
    def is_false_alarm(self) -> bool:
        """Whether unchanged code was called slower or faster."""
        return not self.slowdown and self.verdict.status in (Status.SLOWER, Status.FASTER)

    @property
    def is_found(self) -> bool:
        """Whether the verdict is right: SAME where nothing changed, else SLOWER."""
        return self.verdict.status is (Status.SLOWER if self.slowdown else Status.SAME)


@dataclass(frozen=True)
class Selfcheck:
    """One test's trials, by rising slowdown."""

    result: Result
    trials: tuple[Trial, ...]

    @property
    def smallest_found(self) -> float | None:
        """The smallest slowdown from which on every one was found, None where not even the largest was."""
        smallest = None
        for trial in reversed([trial for trial in self.trials if trial.slowdown]):
            if not trial.is_found:
                break
            smallest = trial.slowdown
        return smallest


# A slowdown of just the tolerance is found half of the time; from here on, as good as always.
_SURELY = 5 / 3


@dataclass(frozen=True)
class Fitness:
    """Whether a machine finds slowdowns of ``tolerance``; ``false_alarms`` are unchanged tests called otherwise."""

    tolerance: float
    is_fit: bool
    false_alarms: int

    @property
    def found_from(self) -> float:
        """The slowdown from which on a fit machine finds every one, 0.05 being 5 %."""
        return _SURELY * self.tolerance

    def is_large(self, trial: Trial) -> bool:
        """Whether a trial is one of those that a fit machine finds."""
        return trial.slowdown >= self.found_from - 1e-9
