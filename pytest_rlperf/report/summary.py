"""The sentences of a run and of a failing test: headline, origins of the base figures, notes, and commands to type."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import msgspec

from pytest_rlperf import units
from pytest_rlperf.errors import DOCS, for_log, shown
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.report.table import GRAVEST_FIRST
from pytest_rlperf.report.tables import is_accepted
from pytest_rlperf.report.wording import (
    blame_text,
    bounds_text,
    count_text,
    improved,
    longer,
    more_work_text,
    rare_text,
    touched_lines,
    trailer,
    verdict_lines,
)

_COMMANDS_MOST = 5  # for tests that are UNDECIDED
_UNSETTLED = {Status.ERROR, Status.INVALID, Status.UNDECIDED, Status.INCOMPARABLE}


class NextStep(msgspec.Struct, frozen=True):
    """Lines to type next, and their effect."""

    effect: str
    lines: tuple[str, ...]


class Summary(msgspec.Struct, frozen=True):
    """The texts of the summary beside the outcomes: machines, origins of the base figures, notes, and commands."""

    machines: Sequence[str]
    origins: Sequence[str]
    notes: Sequence[str]
    steps: Sequence[NextStep]

    def facts(self) -> list[tuple[str, str]]:
        """Return the texts above the commands, each with its term; control characters in names are written out."""
        return [
            *(("machine", shown(machine)) for machine in self.machines),
            *(("compared", shown(origin)) for origin in self.origins),
            *(("note", note) for note in self.notes),
        ]


def next_steps(
    outcomes: Sequence[Outcome],
    command: str,
    *,
    saved: bool,
    against: bool,
    verbose: bool,
    kept: bool = False,
    has_page: bool = False,
    alone: str = "pytest",
    typed: Callable[[str], str] = str,
) -> list[NextStep]:
    """Return the commands to type next; they begin with ``command``, or show the run again if it is ``kept``.

    A run that ``has_page`` has written its report as a page already. ``alone`` is the beginning of a command that
    measures one test. ``typed`` returns a test's key as that command names the test.
    """
    statuses = {outcome.verdict.status for outcome in outcomes}
    steps = advice(outcomes, command, saved=saved, against=against)
    if kept and not has_page and any(outcome.verdict.fails(strict=False) for outcome in outcomes):
        steps.append(NextStep("write the report as a page", ("rlperf show --html report.html",)))
    if statuses - {Status.ERROR} and not steps and not verbose:
        showing = "rlperf show -v" if kept else f"{command} --rlperf -v"
        steps.append(NextStep("show every test's phases and what its figures rest on", (showing,)))
    remedies = ((each.result.nodeid, longer(each.verdict.remedy)) for each in outcomes if each.verdict.remedy)
    if lines := [f"{alone} {shlex.quote(typed(key))} {option}" for key, option in remedies if option]:
        steps.append(NextStep("settle what is UNDECIDED", tuple(lines[:_COMMANDS_MOST])))
    unsettled = [status for status in GRAVEST_FIRST if status in statuses & _UNSETTLED]
    if unsettled:
        places = tuple(f"{DOCS}/reading-a-report.md#{status.value.lower()}" for status in unsettled)
        steps.append(NextStep("what helps", places))
    return steps


def advice(outcomes: Sequence[Outcome], command: str, *, saved: bool, against: bool) -> list[NextStep]:
    """Return how to store figures if they are not ``saved``, and how to accept slowdowns."""
    steps = []
    is_new = any(outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE) for outcome in outcomes)
    if not saved and is_new and not against:
        steps.append(NextStep("store these figures to compare with", (f"{command} --rlperf-save-baseline",)))
    faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
    if not saved and faster and not against:
        steps.append(NextStep(improved(faster), (f"{command} --rlperf-save-baseline",)))
    return steps + acceptance(outcomes, command, against=against)


def acceptance(outcomes: Sequence[Outcome], command: str, *, against: bool) -> list[NextStep]:
    """Return how to accept slowdowns: in a commit since the base, if the base is a commit.

    Unless the user named the base, the base is a baseline, and its figures are then stored again.
    """
    failing = [outcome for outcome in outcomes if outcome.verdict.fails(strict=False)]
    slower = [outcome for outcome in failing if outcome.verdict.status is Status.SLOWER]
    has_commit = (outcome for outcome in slower if not against or (outcome.live and outcome.live.base_commit))
    of_tests = [_trailers(outcome) for outcome in has_commit]
    lines = tuple(chain.from_iterable(of_tests))
    every = ", with both lines of a test" if any(len(each) > 1 for each in of_tests) else ""
    accept = NextStep(f"if the change is intended, accept it in a commit's message{every}", lines)
    store = NextStep("then store the new figures", (f"{command} --rlperf-save-baseline",))
    return [accept, *([] if against else [store])] if lines else []


def _trailers(outcome: Outcome) -> list[str]:
    """Return the lines of a commit message that accept how much slower a test is, and what else it does."""
    estimate = None if outcome.verdict.by_counts else outcome.verdict.estimate
    by_time = [] if estimate is None else [trailer(outcome.result.nodeid, estimate.ratio, estimate.high)]
    others = [trailer(outcome.result.nodeid, None, None)] if estimate is None or outcome.verdict.left else []
    return [f"{line} why" for line in (*by_time, *others)]


def failure_text(outcome: Outcome, origin: str, *, against: bool) -> str:
    """Return the text of a failing test at the user's line; ``origin`` names the base of the comparison.

    ``against`` marks a run whose base the user named.
    """
    verdict, result = outcome.verdict, outcome.result
    component = shown(result.component)
    mean = " on average" if outcome.has_rare_calls else ""
    takes = f"{component} takes {units.seconds(result.mean_call_s)} a call{mean}" if result.measured else component
    lines = verdict_lines(verdict)
    first = [f"{verdict.status.value} (more work): {lines.pop(0)}", takes] if verdict.by_counts else []
    compared = f"compared {'with ' if outcome.live is None else ''}{shown(origin)}"
    blame = blame_text(outcome)
    steps = [
        "\n".join([f"{step.effect}:", *step.lines]) for step in acceptance([outcome], "pytest", against=against)[:1]
    ]
    texts = [
        *(first or _times(outcome, takes)),
        more_work_text(verdict),
        *map(shown, touched_lines(outcome)),
        rare_text(outcome),
        compared,
        *lines,
        shown(blame) if blame else "",
        *steps,
    ]
    return for_log("\n".join(filter(None, texts)))


def _times(outcome: Outcome, takes: str) -> list[str]:
    """Return a verdict with the change and both times, and the interval with its basis."""
    verdict, live, before_s = outcome.verdict, outcome.live, outcome.before_call_s
    estimate = verdict.estimate
    if estimate is None or outcome.before is None:
        return [f"{verdict.status.value}: {takes}"]
    where = "in the baseline" if live is None else f"on {shown(live.base_label)}"
    if before_s is not None:
        takes = f"{takes}, {units.seconds(outcome.before.mean_call_s)} {where}"
    interval = bounds_text(estimate)
    pairs = "" if live is None else f"{units.counted(len(live.pairs), 'live pair')}, {live.clock} time"
    return [
        f"{verdict.status.value} {units.change(estimate.ratio)}: {takes}",
        f"{100 * estimate.confidence:.0f} % interval {interval}, {pairs or 'relative to the reference kernels'}",
    ]


def by_gravity(outcomes: Sequence[Outcome], *, strict: bool) -> list[Outcome]:
    """Return outcomes, failing ones first, then gated ones, then by verdict and by the largest change."""

    def place(outcome: Outcome) -> tuple[bool, bool, int, float]:
        verdict = outcome.verdict
        ratio = 0.0 if verdict.estimate is None else verdict.estimate.ratio
        return not verdict.fails(strict), not verdict.gated, GRAVEST_FIRST.index(verdict.status), -ratio

    return sorted(outcomes, key=place)


def is_plain(outcome: Outcome) -> bool:
    """Whether a test is the same, and there is nothing more to say: the same code may still take a different time."""
    verdict = outcome.verdict
    is_same = verdict.status is Status.SAME and verdict.reason.code != Code.ENVIRONMENT
    return is_same and not (outcome.result.notes or verdict.counters or verdict.findings)


def headline(ordered: Sequence[Outcome], broken: int, *, strict: bool) -> str:
    """Return the run's result in one sentence; ``broken`` tests or files failed for other reasons."""
    gated = [outcome for outcome in ordered if outcome.verdict.gated and outcome.verdict.status is not Status.ERROR]
    failing = [outcome for outcome in gated if outcome.verdict.fails(strict)]
    failures = f"{units.counted(broken, 'test')} failed"
    slower = [outcome for outcome in failing if outcome.verdict.status is Status.SLOWER]
    if slower:
        first = slower[0]
        which = ":" if len(slower) == 1 else ", most of all"
        found = f"{len(slower)} of {len(gated)} gated tests got slower{which} {first.result.name} {_slowdown(first)}"
        return f"{found}; {failures}" if broken else found
    if broken:
        return f"{failures}, but no gated test got slower"
    if failing:
        return f"{len(failing)} of {len(gated)} gated tests could not be shown to be as fast as before (strict)"
    if not gated:
        return "No gated test was measured"
    counts = Counter("accepted" if is_accepted(outcome.verdict) else outcome.verdict.status.value for outcome in gated)
    result = "All slowdowns were accepted" if counts["accepted"] else "No gated test got slower"
    if settles_nothing(ordered):
        result = "No gated test was settled"
    return f"{result}: {', '.join(f'{count} {word}' for word, count in counts.most_common())}"


def settles_nothing(outcomes: Iterable[Outcome]) -> bool:
    """Whether no gated test has a verdict that says that it is as fast as before, faster, slower or new."""
    return all(outcome.verdict.status in _UNSETTLED for outcome in outcomes if outcome.verdict.gated)


def _slowdown(outcome: Outcome) -> str:
    """Return how much slower a test is."""
    if outcome.verdict.by_counts:
        first = f": {count_text(outcome.verdict.counters[0])}" if outcome.verdict.counters else ""
        return f"does more in a call than it did{first}"
    pace = pace_text(outcome)
    return f"{change_text(outcome)} ({pace})" if pace else change_text(outcome)


def change_text(outcome: Outcome) -> str:
    """Write the change of a test's time: ``+1.2 %``; empty if there is no estimate."""
    return "" if outcome.verdict.estimate is None else units.change(outcome.verdict.estimate.ratio)


def pace_text(outcome: Outcome) -> str:
    """Write the time of a call now and before: ``48.2 µs a call, was 44.1 µs``; empty without figures."""
    if not outcome.result.measured:
        return ""
    was = ""
    if outcome.before is not None and outcome.before_call_s is not None:
        was = f", was {units.seconds(outcome.before.mean_call_s)}"
    return f"{units.seconds(outcome.result.mean_call_s)} a call{was}"


def compares_nothing(outcomes: Iterable[Outcome]) -> bool:
    """Whether no gated test could be compared, which is not a pass unless all of them are new."""
    gated = [outcome.verdict for outcome in outcomes if outcome.verdict.gated]
    if gated and all(verdict.status is Status.INCOMPARABLE for verdict in gated):
        return True
    ran = [verdict for verdict in gated if verdict.status is not Status.ERROR]
    is_nothing = bool(ran) and all(verdict.reason.code == Code.BASE for verdict in ran)
    return is_nothing and not all(verdict.status is Status.NEW for verdict in ran)
