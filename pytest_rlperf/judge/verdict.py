"""Policy and verdicts: what an estimate is taken to mean, and why."""

from __future__ import annotations

import math

from pytest_rlperf import units
from pytest_rlperf.judge.stats import welch
from pytest_rlperf.model import Estimate, Machine, Policy, Reason, Result, Status, StoredResult, Verdict

STORED_CONVICTION = 0.20  # below this, stored numbers tell days apart, not versions
CONFIDENCE = 0.99
WORKERS = 5
_IDLE_CPU_SHARE = 0.02
_PHASES_OVER = 1.02  # phases may not add up to more than the whole, reading errors aside


def stored_policy(
    *, tolerance: float | None, alpha: float, tests: int, min_change_s: float, gated: bool, accept: bool
) -> Policy:
    """Return the rules for a comparison with stored numbers; ``tolerance`` is what the user asked for, if anything."""
    return Policy(
        tolerance=STORED_CONVICTION if tolerance is None else tolerance,
        conviction=max(STORED_CONVICTION, tolerance or 0.0),
        confidence=CONFIDENCE,
        alpha=alpha,
        tests=tests,
        min_change_s=min_change_s,
        gated=gated,
        accept=accept,
    )


def judge_stored(result: Result, stored: StoredResult | None, others: list[Machine], policy: Policy) -> Verdict:
    """Judge a result against the stored one; ``others`` are the machine classes a baseline has instead of this one."""
    verdict = _Judge(policy)
    invalid = _invalid(result)
    if invalid is not None:
        return verdict.say(Status.INVALID, *invalid)
    if stored is None and others:
        return verdict.say(Status.INCOMPARABLE, "machine", _other_machines(others))
    if stored is None:
        return verdict.say(Status.NEW, "new", "no baseline yet: store one with --rlperf-save-baseline")
    base = stored.result
    changed = _incomparable(base, result)
    if changed is not None:
        return verdict.say(Status.INCOMPARABLE, "workload", changed)
    if min(len(base.workers), len(result.workers)) < 2:
        return verdict.say(
            Status.UNDECIDED,
            "workers",
            f"{len(result.workers)} worker(s) against {len(base.workers)} stored: too few to tell a change from noise",
        )
    estimate = welch(
        [worker.relative for worker in base.workers],
        [worker.relative for worker in result.workers],
        confidence=policy.confidence,
        alpha=policy.alpha / policy.tests,
    )
    return verdict.weigh(estimate, base.call_s * (estimate.ratio - 1))


class _Judge:
    """Says verdicts under one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def say(
        self,
        status: Status,
        code: str,
        message: str,
        estimate: Estimate | None = None,
        smallest_seen: float | None = None,
    ) -> Verdict:
        return Verdict(
            status=status,
            reason=Reason(code, message),
            estimate=estimate,
            smallest_seen=smallest_seen,
            gated=self._policy.gated,
            accepted=self._policy.accept,
        )

    def weigh(self, estimate: Estimate, change_s: float) -> Verdict:
        """Return what ``estimate`` is taken to mean; ``change_s`` is the change of a call in seconds."""
        policy = self._policy
        conviction, half = 1 + policy.conviction, 1 + policy.conviction / 2
        tolerance = 1 + policy.tolerance
        smallest = max(conviction, half * estimate.ratio / estimate.floor) - 1
        if estimate.ratio > conviction and estimate.floor > half:
            if change_s < policy.min_change_s:
                message = (
                    f"{units.seconds(change_s)} more a call, under min_change={units.seconds(policy.min_change_s)}"
                )
                return self.say(Status.SAME, "min_change", message, estimate, smallest)
            message = (
                f"stored numbers only: over {_bound(policy.conviction)} by the estimate and surely over half of it"
            )
            return self.say(Status.SLOWER, "stored", message, estimate, smallest)
        if estimate.ratio < 1 / conviction and estimate.ceiling < 1 / half:
            message = "stored numbers only: store a new baseline to hold on to it, with --rlperf-save-baseline"
            return self.say(Status.FASTER, "stored", message, estimate, smallest)
        if 1 / tolerance < estimate.low and estimate.high < tolerance:
            message = f"stored numbers certify less than ±{_bound(policy.tolerance)}"
            return self.say(Status.SAME, "stored", message, estimate, smallest)
        message = (
            f"stored numbers cannot certify ±{_bound(policy.tolerance)}; the smallest slowdown they could have called "
            f"SLOWER here is {units.change(1 + smallest)}"
        )
        return self.say(Status.UNDECIDED, "stored", message, estimate, smallest)


def _bound(fraction: float) -> str:
    """Write a tolerance: ``20 %``."""
    return f"{100 * fraction:g} %"


def _invalid(result: Result) -> tuple[str, str] | None:
    """Return why a measurement broke its own rules, if it did."""
    idle = max(worker.idle_cpu_share for worker in result.workers)
    if idle > _IDLE_CPU_SHARE:
        return (
            "background",
            f"background work: a worker used {units.percent(idle, signed=False)} of a CPU while it was not its turn; "
            "stop threads and child processes that run between calls, or measure them inside the call",
        )
    whole = result.traced_call_s
    parts = sum(phase.total_s for phase in result.phases if phase.depth == 0)
    if whole and parts > _PHASES_OVER * whole:
        return (
            "phases",
            f"timed phases add up to {units.seconds(parts)} of a call of {units.seconds(whole)}, more than there is",
        )
    return None


def _incomparable(base: Result, head: Result) -> str | None:
    """Return why two results do not measure the same thing, if they do not."""
    if (base.component, base.unit) != (head.component, head.unit):
        return f"the baseline measured {base.component} in {base.unit}s, this run {head.component} in {head.unit}s"
    # Env steps of a call vary with where episodes end; a call of another size is another workload.
    if not math.isclose(base.items, head.items, rel_tol=0.05):
        return (
            f"a call processed {units.quantity(base.items)} {base.unit}s in the baseline and "
            f"{units.quantity(head.items)} now: another workload; store it anew with --rlperf-save-baseline"
        )
    return None


def _other_machines(others: list[Machine]) -> str:
    known = "; ".join(f"{machine.cpu}, {machine.cores} cores, Python {machine.python}" for machine in others[:3])
    return f"the baseline is of another machine class ({known}): store one here with --rlperf-save-baseline"
