"""Policy and verdicts: what an estimate is taken to mean, and why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_rlperf import units
from pytest_rlperf.judge.devices import broken_by_device, other_device
from pytest_rlperf.judge.saying import CONFIDENCE, Judge, bound, under_minimum
from pytest_rlperf.judge.stats import welch
from pytest_rlperf.model import Estimate, Figures, Policy, Result, Status, StoredResult, Verdict

STORED_CONVICTION = 0.20  # below this, stored numbers tell days apart, not versions
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


def judge_stored(result: Result, stored: StoredResult | None, others: Sequence[str], policy: Policy) -> Verdict:
    """Judge a result against the stored one; ``others`` say how the machine classes that a baseline has differ."""
    verdict = _Judge(policy)
    invalid = broken_rule(result)
    if invalid is not None:
        return verdict.say(Status.INVALID, *invalid)
    if stored is None and others:
        return verdict.say(Status.INCOMPARABLE, "machine", _elsewhere(others))
    if stored is None:
        return verdict.say(Status.NEW, "new", "no baseline yet: store one with --rlperf-save-baseline")
    base = stored.result
    changed = _incomparable(base, result)
    if changed is not None:
        return verdict.say(Status.INCOMPARABLE, "workload", changed)
    elsewhere = other_device(base, result)
    if elsewhere is not None:
        message = f"in the baseline {elsewhere}; store it anew with --rlperf-save-baseline"
        return verdict.say(Status.INCOMPARABLE, "device", message)
    if min(len(base.workers), len(result.workers)) < 2:
        return verdict.say(
            Status.UNDECIDED,
            "workers",
            f"{len(result.workers)} worker(s) against {len(base.workers)} stored: too few to tell a change from noise",
        )
    # CPU time stands in where it may on both sides; both are told by the same clock.
    clock = "cpu" if base.clock == result.clock == "cpu" else "wall"
    then, now = _figures(base, clock), _figures(result, clock)
    interpreter, memory = (
        welch(
            [getattr(figures, pace) for figures in then],
            [getattr(figures, pace) for figures in now],
            confidence=policy.confidence,
            alpha=policy.alpha / policy.tests,
        )
        for pace in ("relative", "relative_memory")
    )
    return verdict.weigh(_Paces(interpreter, memory), then, now)


def can_certify(base: Result, policy: Policy) -> bool:
    """Whether a baseline's own spread would let stored numbers call unchanged code SAME."""
    if len(base.workers) < 2:
        return False
    figures = _figures(base, base.clock)
    likely = [
        welch(sample, sample, confidence=policy.confidence, alpha=policy.alpha / policy.tests)
        for sample in ([each.relative for each in figures], [each.relative_memory for each in figures])
    ]
    return min(estimate.high for estimate in likely) < 1 + policy.tolerance


def _figures(result: Result, clock: str) -> list[Figures]:
    """Return the workers' figures by one clock."""
    return [getattr(worker, clock) for worker in result.workers]


class _Paces(NamedTuple):
    """The same comparison at the interpreter's pace and at the memory's.

    They differ where the machine has changed in one and not in the other, and which of them the workload goes by is
    not known. So stored numbers convict of what both say.
    """

    interpreter: Estimate
    memory: Estimate

    @property
    def sharper(self) -> Estimate:
        """The one with the narrower interval: its pace goes better with the workload."""
        return min(self, key=_width)


def _width(estimate: Estimate) -> float:
    """Return the width of an interval, in logarithms."""
    return math.log(estimate.high / estimate.low)


class _Judge(Judge):
    """Weighs a comparison with stored numbers."""

    def weigh(self, paces: _Paces, then: Sequence[Figures], now: Sequence[Figures]) -> Verdict:
        """Return what the estimates are taken to mean: both say how much, the sharper one says how surely."""
        policy, sharper = self.policy, paces.sharper
        conviction, half = 1 + policy.conviction, 1 + policy.conviction / 2
        least = min(estimate.ratio for estimate in paces)
        most = max(estimate.ratio for estimate in paces)
        smallest = max(conviction * sharper.ratio / least, half * sharper.ratio / sharper.floor) - 1
        if least > conviction and sharper.floor > half:
            change_s = statistics.median(figures.call_s for figures in then) * (sharper.ratio - 1)
            if change_s < policy.min_change_s:
                return self.say(Status.SAME, "min_change", under_minimum(change_s, policy), sharper, smallest)
            message = f"stored numbers only: over {bound(policy.conviction)}, and surely over half of it"
            return self.say(Status.SLOWER, "stored", message, sharper, smallest)
        if most < 1 / conviction and sharper.ceiling < 1 / half:
            message = "stored numbers only: a new baseline holds on to it, with --rlperf-save-baseline"
            return self.say(Status.FASTER, "stored", message, sharper, smallest)
        tolerance = 1 + policy.tolerance
        # What one pace calls faster and the other the same is no slowdown; what one calls slower may be one.
        certain = [estimate for estimate in paces if 1 / tolerance < estimate.low and estimate.high < tolerance]
        if certain and most < tolerance:
            message = f"stored numbers certify less than ±{bound(policy.tolerance)}"
            return self.say(Status.SAME, "stored", message, min(certain, key=_width), smallest)
        return self.say(Status.UNDECIDED, *self._undecided(paces, then, now, smallest), sharper, smallest)

    def _undecided(
        self, paces: _Paces, then: Sequence[Figures], now: Sequence[Figures], smallest: float
    ) -> tuple[str, str]:
        """Say what stood in the way: a machine that has changed, or figures that differ too much among workers."""
        interpreter, memory = paces
        if abs(math.log(interpreter.ratio / memory.ratio)) > math.log1p(self.policy.tolerance):
            return (
                "machine",
                f"at the interpreter's pace {units.change(interpreter.ratio)}, at the memory's "
                f"{units.change(memory.ratio)}: reading memory takes this machine "
                f"{units.change(_memory_pace(then, now))} against the baseline's day, and stored numbers cannot tell "
                "slower code from that",
            )
        return (
            "spread",
            f"stored numbers cannot certify ±{bound(self.policy.tolerance)}; the smallest slowdown they could have "
            f"called SLOWER here is {units.change(1 + smallest)}",
        )


def _memory_pace(then: Sequence[Figures], now: Sequence[Figures]) -> float:
    """Return how long the memory kernel takes now, over what it took in the baseline."""
    before, after = (
        statistics.median(figures.call_s / figures.relative_memory for figures in side) for side in (then, now)
    )
    return after / before


def broken_rule(result: Result) -> tuple[str, str] | None:
    """Return why a measurement broke its own rules, if it did."""
    disturbed = broken_by_device(result)
    if disturbed is not None:
        return disturbed
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
    if {worker.long for worker in base.workers} != {worker.long for worker in head.workers}:
        return (
            "the baseline tells slices by another average (median or mean); store it anew with --rlperf-save-baseline"
        )
    # Env steps of a call vary with where episodes end; a call of another size is another workload.
    if not math.isclose(base.items, head.items, rel_tol=0.05):
        return (
            f"a call processed {units.quantity(base.items)} {base.unit}s in the baseline and "
            f"{units.quantity(head.items)} now: another workload; store it anew with --rlperf-save-baseline"
        )
    return None


def _elsewhere(others: Sequence[str]) -> str:
    """Say how the machines differ that the baseline does know."""
    return (
        f"the baseline is of another machine class (there / here: {'; or '.join(others[:3])}): store one here with "
        "--rlperf-save-baseline"
    )
