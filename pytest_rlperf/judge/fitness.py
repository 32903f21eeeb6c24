"""Whether a machine can tell what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model import Fitness, Selfcheck

# A slowdown of just the tolerance is found half of the time; from here on, as good as always.
_SURELY = 5 / 3


def judge_fitness(checks: Sequence[Selfcheck], tolerance: float) -> Fitness:
    """Say whether every unchanged test was SAME, and every slowdown well over ``tolerance`` was SLOWER."""
    trials = [trial for check in checks for trial in check.trials]
    alarms = sum(trial.is_false_alarm for trial in trials)
    unchanged = [trial for trial in trials if not trial.slowdown]
    large = [trial for trial in trials if trial.slowdown >= _SURELY * tolerance - 1e-9]
    same, found = sum(trial.is_found for trial in unchanged), sum(trial.is_found for trial in large)
    asked = f"{100 * _SURELY * tolerance:.3g} %"
    reasons = [
        f"{units.counted(alarms, 'false alarm')}; {same} of {units.counted(len(unchanged), 'unchanged test')} SAME",
        f"{found} of {units.counted(len(large), 'slowdown')} of {asked} or more found, "
        f"as a tolerance of {100 * tolerance:g} % asks"
        if large
        else f"no slowdown of {asked} or more was tried, as a tolerance of {100 * tolerance:g} % asks: add one to "
        "rlperf_slowdowns",
    ]
    return Fitness(
        tolerance=tolerance,
        is_fit=alarms == 0 and same == len(unchanged) and bool(large) and found == len(large),
        false_alarms=alarms,
        reasons=tuple(reasons),
    )
