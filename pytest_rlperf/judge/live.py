"""Verdicts by live pairs: the stop rule, the phases that carry a change, and the fitness of a machine."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from pytest_rlperf.judge.policy import verdict
from pytest_rlperf.judge.stats import (
    LogNormal,
    Spread,
    binomial_tail,
    normal_chance,
    normal_quantile,
    squared_deviations,
)
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import (
    CONFIDENCE,
    Estimate,
    Fitness,
    Policy,
    Remedy,
    RemedyKind,
    Selfcheck,
    Status,
    Verdict,
)
from pytest_rlperf.model.live import PAIR_BLOCKS, Contribution, OtherWork, PairRecord, are_unrepeated, log_ratios
from pytest_rlperf.model.reasons import Code, PairsUndecided, Reason
from pytest_rlperf.model.stored import PairSpread

# The spread of pairs of equal code: about 1 % if one CPU runs both sides, far more if processes have two states or many
# threads.
PLACED_SPREAD = Spread.expected(LogNormal(0.6, 0.01, 0.4), LogNormal(0.4, 0.08, 1.2))
UNPLACED_SPREAD = Spread.expected(LogNormal(0.3, 0.02, 0.6), LogNormal(0.7, 0.09, 1.0))
UNPLACED_LEAST = 5  # pairs if the kernel places workers: these differ by more, and three may agree by chance
HISTORY_FREEDOM_MOST = 6.0  # for the test's earlier pairs, which were measured on another day
_ONE_WAY = 0.25  # chance that a pair of processes, each in one of two states, differs in a given direction: p(1 - p)
_AGREES = 0.25  # of the change: a pair that shows less does not agree with it
_HOPELESS = 0.05  # chance of a verdict by the most pairs: below it no more pairs are taken
# The chance by the spread as far as it is known. Runs that end early saw pairs closer together than most. So the chance
# has to be higher for 95 of 100 runs to find the slowdown that is named as the smallest one.
_FOUND = 0.985
_ESTIMATED = 1.1  # a bound by ten pairs is wider by this factor than with a known spread
_HALVINGS = 20  # of the interval in which the smallest slowdown lies
_LOG_MOST = 700.0
_NEAR = 4 / 3  # of the tolerance: an interval within it excludes a large change
_NEGLIGIBLE = 1e-9  # pairs
_LIKELY = 0.8  # chance of a verdict from which on a remedy is worth its time
WORTH = 0.3  # the same for pairs that take a run only time that it has to spare
PAIRS_MOST = 4  # times the most pairs: nobody waits for more
_TOLERABLE = 0.1  # a larger tolerance finds less than exact counts do
_SECONDS_STEP = 10
_DISTURBS = 0.1  # of the CPUs: more other work makes pairs differ


def slower_least(policy: Policy) -> int:
    """Return the fewest pairs for SLOWER or FASTER, including the confirming one.

    Processes with two states differ in one direction in at most a quarter of the pairs, however large the change. This
    number of pairs agrees by chance in a share ``alpha`` of runs.
    """
    return next(pairs for pairs in itertools.count(1) if _ONE_WAY**pairs <= policy.alpha / policy.tests)


def judge_records(
    records: Sequence[PairRecord],
    policy: Policy,
    *,
    final: bool,
    history: PairSpread | None = None,
    counted: bool = False,
) -> Verdict | None:
    """Judge the pairs so far; None requests one more pair.

    ``final`` if there can be no more pairs. ``history`` is the spread of earlier pairs of this test. ``counted`` if
    both sides have exact counts.
    """
    ratios = log_ratios(records)
    placed = are_placed(records)
    base_call_s = statistics.median(record.base.wall.call_s * record.base.mean_multiple for record in records)
    confirms = [record.loader is None or record.loader > 0 for record in records]
    error = shared_error(records)
    found = judge_pairs(
        ratios, policy, base_call_s, final=final, placed=placed, history=history, confirms=confirms, error=error
    )
    if found is None or not isinstance(found.reason, PairsUndecided):
        return found
    reason = replace(found.reason, other_work=_disturbing([record.other_work for record in records]))
    # If time was short, pairs were short too.
    pair_s = statistics.fmean(record.seconds * max(1.0, PAIR_BLOCKS / record.blocks) for record in records)
    judge = _LiveJudge(policy, base_call_s, placed=placed, history=history, error=error)
    return replace(
        found, reason=reason, remedy=judge.remedy(reason, ratios, pair_s, can_count=counted and not policy.gates)
    )


def shared_error(records: Sequence[PairRecord]) -> float:
    """Return the standard error that all pairs share, as a logarithm: total times have none."""
    return 0.0 if are_unrepeated(records) else max(record.moved_error for record in records)


def are_placed(records: Sequence[PairRecord]) -> bool:
    """Whether pairs differ as little as those on one CPU; total times differ by all that the machine does."""
    return not are_unrepeated(records) and all(record.placed is not None for record in records)


def judge_pairs(
    log_ratios: Sequence[float],
    policy: Policy,
    base_call_s: float,
    *,
    final: bool,
    placed: bool = True,
    history: PairSpread | None = None,
    confirms: Sequence[bool] = (),
    error: float = 0.0,
) -> Verdict | None:
    """Judge the pairs by the logarithms of their ratios head/base, in the order taken; None requests one more pair.

    The rule is applied from the first pair on, so that the verdict depends only on the sequence, and pairs after the
    deciding one change nothing. ``base_call_s`` turns ratios into seconds, for ``min_change_s``. ``final`` if there can
    be no more pairs. ``placed`` if one CPU ran both sides of every pair. ``history`` is the spread of earlier pairs of
    this test. ``confirms`` says which pairs can confirm a change, all if it is left out: pairs of one preload server
    may share an effect that is not chance. ``error`` is the standard error that all pairs share.
    """
    judge = _LiveJudge(policy, base_call_s, placed=placed, history=history, error=error)
    for count in range(judge.least, len(log_ratios) + 1):
        seen, fresh = log_ratios[:count], log_ratios[count : count + 1]
        if fresh and confirms and not confirms[count]:
            found = judge.look(seen, None, final=False)
        else:
            found = judge.look(seen, fresh[0] if fresh else None, final=final)
        if found is not None:
            return found
    return judge.cut_short(log_ratios) if final else None


def is_nearly_decided(
    log_ratios: Sequence[float],
    policy: Policy,
    *,
    placed: bool = True,
    history: PairSpread | None = None,
    error: float = 0.0,
) -> bool:
    """Whether the fewest pairs for a verdict are not there yet and would most likely be enough, by those so far."""
    return _LiveJudge(policy, 1.0, placed=placed, history=history, error=error).is_nearly_decided(log_ratios)


def fewest_worthwhile(
    log_ratios: Sequence[float],
    policy: Policy,
    most: int,
    *,
    placed: bool = True,
    history: PairSpread | None = None,
    error: float = 0.0,
) -> int | None:
    """Return the fewest pairs, more than the policy's most, that may well decide; None if not even ``most`` do."""
    judge = _LiveJudge(policy, 1.0, placed=placed, history=history, error=error)
    return judge.fewest(log_ratios, range(max(len(log_ratios), judge.most) + 1, most + 1), WORTH)


class _LiveJudge:
    """Looks at the pairs so far; the next pair may be known or not yet taken."""

    def __init__(
        self, policy: Policy, base_call_s: float, *, placed: bool, history: PairSpread | None, error: float = 0.0
    ) -> None:
        self.least, self.most = (max(pairs, 0 if placed else UNPLACED_LEAST) for pairs in policy.pairs)
        self._policy = policy
        self._base_call_s = base_call_s
        self._placed = placed
        self._error = error
        self._expected = PLACED_SPREAD if placed else UNPLACED_SPREAD
        if history is not None and history.freedom > 0:
            weight = min(1.0, HISTORY_FREEDOM_MOST / history.freedom)
            self._expected = self._expected.after(weight * history.squares, weight * history.freedom)
        self._slower_least = slower_least(policy)
        self._level = policy.alpha / policy.tests
        self._one_sided, self._two_sided = normal_quantile(1 - self._level), normal_quantile(0.5 + CONFIDENCE / 2)
        self._over, self._half = math.log1p(policy.tolerance), math.log1p(policy.tolerance / 2)

    def look(self, seen: Sequence[float], fresh: float | None, *, final: bool) -> Verdict | None:
        """Return the verdict by the pairs ``seen``; None if they need more, or a ``fresh`` one that is missing.

        A fresh pair that fails to confirm joins the others at the next look.
        """
        estimate, spread = self._learn(seen)
        count, most = len(seen), self.most
        if _within(estimate, self._policy.tolerance):
            return self._verdict(Status.SAME, reasons.PairsSame(count, self._policy.tolerance), estimate, spread)
        status = self._leaning(estimate)
        trifling = self._trifling(estimate, status)
        if trifling is not None:
            return self._verdict(Status.SAME, trifling, estimate, spread)
        if status is not None and count <= most and (count < most or self._slower_least <= most + 1):
            if fresh is not None:
                return self._confirm(status, [*seen, fresh])
            unconfirmed = reasons.PairsUndecided(Code.UNCONFIRMED, estimate.high, time_is_short=True)
            return self._verdict(Status.UNDECIDED, unconfirmed, estimate, spread) if final else None
        if count >= most:
            return self._at_the_most(seen, status, estimate, spread)
        if self._is_hopeless(seen, spread):
            return self._give_up(seen, estimate, spread)
        return None

    def is_nearly_decided(self, seen: Sequence[float]) -> bool:
        """Whether the fewest pairs that can decide on a change are not there yet, and will most likely decide."""
        fewest = max(self.least + 1, self._slower_least)
        return 1 < len(seen) < fewest <= self.most and self._chance(seen, self._learn(seen)[1], fewest) >= _LIKELY

    def cut_short(self, seen: Sequence[float]) -> Verdict:
        """Return the verdict by pairs that do not decide, if there can be no more."""
        if not seen:
            few = reasons.PairsUndecided(Code.PAIRS, None, time_is_short=True)
            return verdict(self._policy, Status.UNDECIDED, few)
        estimate, spread = self._learn(seen)
        if len(seen) < self.least:
            # With fewer than the least pairs it could not have seen any change, however large.
            few = reasons.PairsUndecided(Code.PAIRS, estimate.high, time_is_short=True)
            return verdict(self._policy, Status.UNDECIDED, few, estimate)
        smallest = self._smallest(spread, len(seen))
        short = replace(self._differing(seen, estimate, smallest), time_is_short=True)
        return verdict(self._policy, Status.UNDECIDED, short, estimate, smallest)

    def _learn(self, seen: Sequence[float]) -> tuple[Estimate, Spread]:
        """Return the change by the pairs so far, and the spread of pairs."""
        spread = self._expected.after(squared_deviations(seen), len(seen) - 1)
        return spread.estimate(seen, self._level, self._error), spread

    @property
    def _is_moved(self) -> bool:
        """Whether no number of pairs could show that nothing has changed, because of the error that all pairs share."""
        return self._two_sided * self._error > self._over

    def _leaning(self, estimate: Estimate) -> Status | None:
        """Return the status by the estimate, if a fresh pair confirms it."""
        threshold, half = 1 + self._policy.tolerance, 1 + self._policy.tolerance / 2
        if estimate.ratio > threshold and estimate.floor > half:
            return Status.SLOWER
        if estimate.ratio < 1 / threshold and estimate.ceiling < 1 / half:
            return Status.FASTER
        return None

    def _trifling(self, estimate: Estimate, status: Status | None) -> Reason | None:
        """Return the reason if the change is below the least one that matters, else None.

        If there is a change, its estimate decides, as with stored numbers; if there may be none, the whole interval
        does.
        """
        least_s, base_s = self._policy.min_change_s, self._base_call_s
        change_s = base_s * (estimate.ratio - 1)
        if status is Status.SLOWER and change_s < least_s:
            return reasons.UnderMinimum(change_s, least_s, at_most=False)
        if status is None and _within(estimate, least_s / base_s):
            return reasons.UnderMinimum(base_s * max(0.0, estimate.high - 1), least_s, at_most=True)
        return None

    def _confirm(self, status: Status, seen: Sequence[float]) -> Verdict | None:
        """Return SLOWER or FASTER if a fresh pair confirms it, None if it does not.

        The pair confirms it if it changed by more than half the tolerance in that direction, if the estimate of all
        pairs, with the last, gives the same status, and if more pairs agree than would by chance.
        """
        fresh, (estimate, spread) = seen[-1], self._learn(seen)
        sign = 1 if status is Status.SLOWER else -1
        if sign * fresh <= self._half or not self._agree([sign * ratio for ratio in seen]):
            return None
        if self._leaning(estimate) is not status or self._trifling(estimate, status) is not None:
            return None
        reason = reasons.PairsDiffer(
            pairs=len(seen),
            is_slower=status is Status.SLOWER,
            all_agree=all(sign * ratio > 0 for ratio in seen),
            fresh=math.exp(fresh),
        )
        return self._verdict(status, reason, estimate, spread)

    def _agree(self, changes: Sequence[float]) -> bool:
        """Whether more pairs show the change than processes with two states would by chance.

        The estimate does not bound this chance, as these pairs are alike. All pairs agree by chance at the error rate
        of one test. If some do not agree, there were several occasions, so the rate is half of that.
        """
        least = max(self._half, _AGREES * statistics.fmean(changes))
        agreeing = sum(change > least for change in changes)
        level = self._level if agreeing == len(changes) else self._level / 2
        return binomial_tail(agreeing, len(changes), _ONE_WAY) <= level

    def _at_the_most(self, seen: Sequence[float], status: Status | None, estimate: Estimate, spread: Spread) -> Verdict:
        """Return the verdict by the most pairs, which do not decide."""
        most = self.most
        smallest = self._smallest(spread, most)
        if status is not None and self._slower_least > most + 1:
            reason = PairsUndecided(Code.PAIRS, estimate.high, smallest)
        else:
            reason = self._differing(seen, estimate, smallest)
        return verdict(self._policy, Status.UNDECIDED, reason, estimate, smallest)

    def _give_up(self, seen: Sequence[float], estimate: Estimate, spread: Spread) -> Verdict:
        """Return UNDECIDED, as not even the most pairs would decide."""
        smallest = self._smallest(spread, self.most)
        reason = self._differing(seen, estimate, smallest)
        if _within(estimate, _NEAR * self._policy.tolerance) and not self._is_moved:
            reason = PairsUndecided(Code.NEAR, estimate.high, smallest)
        return verdict(self._policy, Status.UNDECIDED, reason, estimate, smallest)

    def _differing(self, seen: Sequence[float], estimate: Estimate, smallest: float | None) -> PairsUndecided:
        """Return why pairs do not decide: how much they differ, or that expensive calls have moved."""
        pair_sd = math.sqrt(squared_deviations(seen) / (len(seen) - 1))
        if self._is_moved or self._error > pair_sd / math.sqrt(len(seen)):
            return PairsUndecided(Code.MOVED, estimate.high)
        return PairsUndecided(Code.SPREAD, estimate.high, smallest, pair_sd=pair_sd, placed=self._placed)

    def _verdict(self, status: Status, reason: Reason, estimate: Estimate, spread: Spread) -> Verdict:
        return verdict(self._policy, status, reason, estimate, self._smallest(spread, self.most))

    # These predict the most pairs, as one look at all of them with a known spread.

    def _slower_from(self, sd: float, pairs: int) -> float:
        """Return the least mean with which ``pairs`` pairs are SLOWER, as a logarithm."""
        return max(self._over, self._half + self._width(self._one_sided, sd, pairs))

    def _width(self, quantile: float, sd: float, pairs: int) -> float:
        """Return half of the interval of ``pairs`` pairs, at a quantile of the normal distribution."""
        return quantile * math.hypot(_ESTIMATED * sd / math.sqrt(pairs), self._error)

    def _is_hopeless(self, seen: Sequence[float], spread: Spread) -> bool:
        """Whether the most pairs would hardly decide, given those seen."""
        return self._is_moved or self._chance(seen, spread, self.most) < _HOPELESS

    def _chance(self, seen: Sequence[float], spread: Spread, pairs: int) -> float:
        """Return the chance that ``pairs`` pairs decide, given those seen."""
        count, mean = len(seen), abs(statistics.fmean(seen))
        unseen = math.sqrt(max(_NEGLIGIBLE, pairs - count) / (count * pairs))

        def decided(sd: float) -> float:
            error = sd * unseen  # of the mean of all pairs, predicted by that of the pairs seen
            slower_from, same_to = self._slower_from(sd, pairs), self._over - self._width(self._two_sided, sd, pairs)
            changed = normal_chance((mean - slower_from) / error) + normal_chance((-mean - slower_from) / error)
            same = normal_chance((same_to - mean) / error) - normal_chance((-same_to - mean) / error)
            return changed + max(0.0, same)

        return spread.average(decided)

    def fewest(self, seen: Sequence[float], among: Iterable[int], chance: float) -> int | None:
        """Return the first of so many pairs that decide with a chance of ``chance``, given those seen."""
        spread = self._learn(seen)[1]
        return next((pairs for pairs in among if self._chance(seen, spread, pairs) >= chance), None)

    def remedy(self, undecided: PairsUndecided, seen: Sequence[float], pair_s: float, *, can_count: bool) -> Remedy:
        """Return the one change that would most likely decide, given the pairs seen, which took ``pair_s`` each.

        ``can_count`` if both sides have exact counts that gate nothing yet.
        """
        count, most = len(seen), self.most
        spread, is_spread = self._learn(seen)[1], undecided.code is Code.SPREAD
        pairs: int | None = None
        if undecided.code is Code.UNCONFIRMED:
            pairs = count + 1
        elif undecided.code is Code.MOVED:
            return Remedy(RemedyKind.CALLS)
        elif undecided.code is Code.PAIRS:
            pairs = max(self.least, self._slower_least - 1)
        elif is_spread:
            pairs = self.fewest(seen, range(count + 1, PAIRS_MOST * most + 1), _LIKELY)
        if undecided.time_is_short and pairs is not None and (pairs <= most or not is_spread):
            return Remedy(RemedyKind.TIME, _SECONDS_STEP * math.ceil(pairs * pair_s / _SECONDS_STEP))
        # More pairs settle it also beside other work, which a user of a shared machine cannot end.
        if pairs is not None and not undecided.time_is_short:
            return Remedy(RemedyKind.PAIRS, pairs)
        if is_spread and undecided.other_work is not None:
            return Remedy(RemedyKind.QUIET)
        wider = (percent / 100 for percent in range(1, 101) if percent / 100 > self._policy.tolerance)
        judges = ((tolerance, self._with_tolerance(tolerance)) for tolerance in wider)
        decide = (tolerance for tolerance, judge in judges if judge._chance(seen, spread, max(count, most)) >= _LIKELY)
        tolerance = next(decide, None)
        if can_count and (tolerance is None or tolerance > _TOLERABLE):
            return Remedy(RemedyKind.COUNTS)
        return Remedy(RemedyKind.QUIET) if tolerance is None else Remedy(RemedyKind.TOLERANCE, tolerance)

    def _with_tolerance(self, tolerance: float) -> _LiveJudge:
        policy = replace(self._policy, tolerance=tolerance)
        return _LiveJudge(policy, self._base_call_s, placed=self._placed, history=None, error=self._error)

    def _smallest(self, spread: Spread, pairs: int) -> float | None:
        """Return the slowdown that ``pairs`` pairs find 95 times of 100; None if they cannot find any."""
        if self._slower_least > pairs + 1:
            return None

        def found(slowdown: float) -> float:
            return spread.average(
                lambda sd: normal_chance(
                    (slowdown - self._slower_from(sd, pairs)) / math.hypot(sd / math.sqrt(pairs), self._error)
                )
            )

        low, high = self._over, 2 * self._over
        while found(high) < _FOUND:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if found(middle) < _FOUND else (low, middle)
        return max(math.expm1(min(high, _LOG_MOST)), self._policy.min_change_s / self._base_call_s)


def _within(estimate: Estimate, tolerance: float) -> bool:
    """Whether both bounds lie within a tolerance."""
    return 1 / (1 + tolerance) < estimate.low and estimate.high < 1 + tolerance


def _disturbing(each: Sequence[OtherWork | None]) -> OtherWork | None:
    """Return the other work beside the usual pair; None if it is too little to make pairs differ.

    The work names no process if processes that cannot be seen used more.
    """
    works = sorted((work for work in each if work is not None), key=_used)
    usual = works[len(works) // 2] if works else None
    if usual is None or _used(usual) < _DISTURBS:
        return None
    return usual if usual.seen_share >= usual.unseen_share else replace(usual, process="", pid=0, cpu_share=0.0)


def _used(work: OtherWork) -> float:
    return max(work.seen_share, work.unseen_share)


# ----------------------------------------------------------------------- the phases that carry a change

TRACED_LEAST = 3  # blocks: fewer do not show a spread
_SURELY = 2.0  # standard errors
_MAD_TO_SD = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)  # standard errors of the two, of a normal distribution
_CARRIES = 0.8  # of the change: enough phases named
_NAMED_MOST = 3
_MINOR = 0.1  # of the change: not worth a name
_MOSTLY = 0.5  # of the change: below it, the named phases do not explain it


def contributions(
    blocks: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], base_call_s: float, change_s: float
) -> tuple[Contribution, ...]:
    """Return the part of every phase in a change of ``change_s`` per call, in seconds, those that carry it first.

    ``blocks`` are traced blocks: each side's seconds in a phase and none of its children, by path, as multiples of that
    block's base call, so that the machine's pace cancels. A phase that a side does not have takes no time there. The
    last entry, with an empty path, is the part that no phase accounts for: untimed code, and differences too small to
    be distinguished from noise. So all parts add up to the change. If there are too few blocks, there are no parts.
    """
    if len(blocks) < TRACED_LEAST:
        return ()
    paths = dict.fromkeys(path for block in blocks for side in block for path in side)
    found = []
    for path in paths:
        differences = [head.get(path, 0.0) - base.get(path, 0.0) for base, head in blocks]
        median = statistics.median(differences)
        if abs(median) > _SURELY * _standard_error(differences):
            found.append(Contribution(path, base_call_s * median))
    found.sort(key=lambda part: part.change_s, reverse=change_s >= 0)
    return (*found, Contribution("", change_s - math.fsum(part.change_s for part in found)))


def carriers(contributions: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """Return the few phases that carry a change; none if they do not explain it."""
    change_s = math.fsum(part.change_s for part in contributions)
    named: list[Contribution] = []
    for part in contributions:
        if not part.path or part.change_s * change_s <= _MINOR * change_s**2 or len(named) == _NAMED_MOST:
            break
        named.append(part)
        if _share(named, change_s) >= _CARRIES:
            break
    return tuple(named) if named and _share(named, change_s) >= _MOSTLY else ()


def _share(named: Sequence[Contribution], change_s: float) -> float:
    """Return the share of the change that the named phases add up to."""
    return math.fsum(part.change_s for part in named) / change_s


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a median, by the median absolute deviation, which one stall does not move."""
    center = statistics.median(values)
    deviation = statistics.median(abs(value - center) for value in values)
    return _MEDIAN_TO_MEAN * _MAD_TO_SD * deviation / math.sqrt(len(values))


# ----------------------------------------------------------------------- a machine's fitness


def judge_fitness(checks: Sequence[Selfcheck], tolerance: float) -> Fitness:
    """Return whether every unchanged test was SAME, and every slowdown well over ``tolerance`` was SLOWER."""
    trials = [trial for check in checks for trial in check.trials]
    alarms = sum(trial.is_false_alarm for trial in trials)
    fitness = Fitness(tolerance, is_fit=False, false_alarms=alarms)
    large = [trial for trial in trials if fitness.is_large(trial)]
    needed = [*large, *(trial for trial in trials if not trial.slowdown)]
    is_fit = not alarms and bool(large) and all(trial.is_found for trial in needed)
    return Fitness(tolerance, is_fit, alarms)
