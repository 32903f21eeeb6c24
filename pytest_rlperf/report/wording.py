"""English for verdicts: every reason, blame and note of the reports is written here; no code reads these texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from pytest_rlperf import units
from pytest_rlperf.errors import see, shown
from pytest_rlperf.model import facts, notes, reasons
from pytest_rlperf.model.device import Disturbance
from pytest_rlperf.model.facts import Fact
from pytest_rlperf.model.judged import (
    RARE,
    TRAILER,
    Allowance,
    Estimate,
    Fitness,
    Outcome,
    Remedy,
    RemedyKind,
    Selfcheck,
    Shard,
    Status,
    Verdict,
    pattern_of,
)
from pytest_rlperf.model.live import Contribution, OtherWork
from pytest_rlperf.model.measured import Compiled, CounterChange, Result, test_name
from pytest_rlperf.model.reach import MAIN, ChangedPart, Kind, Touched
from pytest_rlperf.model.reasons import MachineDifference, Reason, VersionChange, WrittenReason
from pytest_rlperf.model.stored import Provenance

SAVING = "pytest --rlperf-save-baseline"
_STORE_AGAIN = "store it again with --rlperf-save-baseline"
_OPERATIONS = "ops:"  # left out: the rest is the full name of PyTorch's operation
_TRACED_APART = 0.25  # of the median: with a larger difference a note says that phases do not add up to it
_COUNTS_MOST = 4  # of one phase
PARTS_MOST = 3  # of a change
_MACHINES_MOST = 3
_HEADROOM, _HEADROOM_PERCENT = 1.15, 2  # of what a line accepts over what was measured
_NAMED_MOST = 5  # tests that are kept back
_THROTTLED = "let the device cool down, raise its power limit, or use it alone"
_RECOMPILED = "compile every shape before the measured call, or keep shapes fixed"
_ALLOCATED = "do not empty the allocator's cache within a call, and keep the sizes of its tensors fixed"
_NO_CODE = {
    reasons.NoCode.OUTSIDE_GIT: f"the baseline's code is not in a git repository; commit, then {_STORE_AGAIN}",
    reasons.NoCode.UNCOMMITTED: f"the baseline was made from uncommitted changes; commit, then {_STORE_AGAIN}",
}
_UNDECIDED = {
    reasons.Code.UNCONFIRMED: "time ran out before another pair confirmed it",
    reasons.Code.PAIRS: "too few pairs",
    reasons.Code.SPREAD: "the pairs differ too much",
    reasons.Code.NEAR: "the change is so close to the tolerance that more pairs would not help",
    reasons.Code.MOVED: "expensive calls happened at other calls than on the base, too few to tell whether more often",
}
_REPLACE = f"unless a commit accepts it ({TRAILER}: TEST <= +N% REASON) or you move the file away"
_KEPT_BACK = {
    notes.KeptBack.FAILED: "failed",
    notes.KeptBack.INVALID: "measured INVALID",
    notes.KeptBack.INVALID_TIME: "their time was INVALID",
    notes.KeptBack.SLOWER: f"slower or inconclusive; the old figures stay, {_REPLACE}",
    notes.KeptBack.UNDECIDED: f"UNDECIDED by stored numbers; the old figures stay, {_REPLACE}",
    notes.KeptBack.SLOWER_AND_NEW: f"slower or inconclusive; nothing is stored for this machine, {_REPLACE}",
}


# ----------------------------------------------------------------------- a verdict


def message(outcome: Outcome) -> str:
    """Return why a test's verdict is what it is, in one or more lines."""
    lines = verdict_lines(outcome.verdict)
    if isinstance(outcome.verdict.reason, reasons.FullReason):
        return "\n".join(lines)
    if outcome.stored and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE):
        lines[0] += "; stored now"
    first = (more_work_text(outcome.verdict), *touched_lines(outcome), rare_text(outcome))
    return "\n".join([*filter(None, first), *lines])


def verdict_message(verdict: Verdict) -> str:
    """Return why a verdict is what it is, in one or more lines."""
    return "\n".join(verdict_lines(verdict))


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the reason that decides, the remedy, other reasons, and the commit that accepts a slowdown."""
    if isinstance(verdict.reason, reasons.FullReason):
        return reason_lines(verdict.reason)
    found = reason_lines(verdict.reason)
    if verdict.remedy is not None:
        found.append(remedy_text(verdict.remedy, verdict.reason))
    found += [line for reason in verdict.also for line in reason_lines(reason)]
    return found if verdict.allowance is None else [*found, accepted_text(verdict.allowance)]


def accepted_text(allowance: Allowance) -> str:
    """Write the slowdown that a commit accepts: ``accepted up to 9 % by 1a2b3c4d5e6f: larger networks``."""
    extent = f"accepted up to {bound(allowance.most)}" if allowance.most else "counts accepted"
    return f"{extent} by {allowance.commit}: {allowance.reason}"


def bound(fraction: float) -> str:
    """Write a tolerance: ``20 %``."""
    return f"{100 * fraction:g} %"


def reason_lines(reason: Reason) -> list[str]:
    """Return a reason in English, in lines that fit 80 columns if its facts are short."""
    for write in (_nothing_compared, _broken, _stored, _live, _beside_times):
        text = write(reason)
        if text is not None:
            return text.split("\n")
    assert isinstance(reason, WrittenReason), reason
    return reason.message.split("\n")


def _nothing_compared(reason: Reason) -> str | None:
    match reason:
        case reasons.NoBaseline(stores):
            return (
                "no baseline yet: nothing to compare with"
                if stores
                else "no baseline yet: store one with --rlperf-save-baseline"
            )
        case reasons.OtherMachines(differences, stores):
            machines = "; or ".join(map(machine_text, differences[:_MACHINES_MOST]))
            advice = "" if stores else "; store one of this machine with --rlperf-save-baseline"
            return f"the baseline belongs to another machine class ({machines}){advice}"
        case reasons.Incomparable(_, what, was, now, base_label, stores):
            where = "in the baseline" if base_label is None else f"on {base_label}"
            return f"{what}: {was} {where}, {now} now{_again(stores or base_label is not None)}"
        case reasons.NothingLoaded(error):
            return error
        case reasons.NotCopied(file):
            return (
                f"git ignores {file}, which is too large to be copied by default: rlperf_also = {file} in "
                "pytest's settings copies it"
            )
        case reasons.Edited(file):
            return f"{file} was changed while it was measured: run this again"
        case reasons.NotBuilt(file, source):
            return (
                f"both sides load the same {file}, which git ignores, although {source} differs, from which it may "
                "have been built: let a pyproject.toml or a setup.py build it, so that both sides can be built; or "
                "build another checkout and compare with that, --rlperf-against=dir:PATH"
            )
        case reasons.NotOnBase(lacks=lacks, base_label=base_label) if lacks:
            return (
                f"{base_label} needs {', '.join(lacks)}, which is not installed here: install it, then run this again"
            )
        case reasons.NotOnBase(base_label, ended, error):
            endings = {"missing": "cannot be collected", "passed": "never calls its fixture"}
            ending = endings.get(ended, ended)
            return f"on {base_label} the test {ending}{f': {error}' if error else ''}"
    return None


def _again(stores: bool) -> str:
    return "" if stores else f"; {_STORE_AGAIN}"


def machine_text(differences: Sequence[MachineDifference]) -> str:
    """Write how a machine differs from this one: ``cpu: Neoverse there, EPYC here``."""
    return ", ".join(f"{each.field}: {each.one} there, {each.other} here" for each in differences)


def _broken(reason: Reason) -> str | None:
    match reason:
        case reasons.TestFailed(when, error):
            return f"the test failed{'' if when == 'call' else f' in its {when}'}: {error}"
        case reasons.BackgroundWork(share):
            return (
                f"background work: a worker used {units.percent(share, signed=False)} of a CPU while it was not its "
                "turn; stop threads and child processes between calls, or measure them inside the call"
            )
        case reasons.PhasesOverCall(phases_s, call_s):
            return (
                f"the timed phases of a call add up to {units.seconds(phases_s)}, more than the "
                f"{units.seconds(call_s)} that it takes; time no phase twice"
            )
        case reasons.DeviceDisturbed(device, disturbances):
            advice = "; ".join(_advice(disturbances))
            return f"{device} could not be measured reliably: {disturbances_text(disturbances)}; {advice}"
    return None


def disturbances_text(tries: Sequence[Disturbance]) -> str:
    """Write each distinct disturbance of a slice's tries, and how many of the tries had it."""
    counts = Counter(tries).items()
    return ", ".join(f"{disturbance_text(each)}, {times} of {len(tries)} times" for each, times in counts)


def disturbance_text(disturbance: Disturbance) -> str:
    """Write why one try of a slice on a device does not count."""
    parts = [f"it was throttled ({', '.join(disturbance.throttled)})"] if disturbance.throttled else []
    parts += ["code was recompiled"] if disturbance.recompiled else []
    parts += ["memory was requested from it"] if disturbance.allocated else []
    return " and ".join(parts)


def _advice(disturbances: Sequence[Disturbance]) -> list[str]:
    """Return remedies against disturbances on a device."""
    return [
        *([_THROTTLED] if any(each.throttled for each in disturbances) else []),
        *([_RECOMPILED] if any(each.recompiled for each in disturbances) else []),
        *([_ALLOCATED] if any(each.allocated for each in disturbances) else []),
    ]


def _stored(reason: Reason) -> str | None:
    match reason:
        case reasons.TooFewWorkers(now, stored):
            return (
                f"figures of {units.counted(now, 'worker')}, and of {stored} in the baseline: a comparison needs two "
                "of each; raise --rlperf-max-time"
            )
        case reasons.StoredSame(tolerance):
            return f"stored numbers show a change of less than ±{bound(tolerance)}"
        case reasons.StoredSlower(threshold):
            return f"stored numbers only: over {bound(threshold)} slower, and at least {bound(threshold / 2)}"
        case reasons.StoredFaster(stores):
            return f"stored numbers only{'' if stores else '; keep the gain with --rlperf-save-baseline'}"
        case reasons.StoredSpread(tolerance, smallest_seen):
            return (
                f"stored numbers are too noisy to rule out a change of ±{bound(tolerance)}; they find slowdowns from "
                f"{units.change(1 + smallest_seen)} on"
            )
        case reasons.StoredPaces(interpreter, memory, smallest_seen):
            return (
                "the machine may have changed since the baseline was stored: relative to its speed in Python code the "
                f"change is {units.change(interpreter)}; relative to its speed in memory it is {units.change(memory)}. "
                f"Stored numbers find slowdowns from {units.change(1 + smallest_seen)} on"
            )
        case reasons.UnderMinimum(change_s, least_s, at_most):
            extent = "at most " if at_most else ""
            return f"{extent}{units.seconds(change_s)} more a call, less than min_change={units.seconds(least_s)}"
    return None


def _live(reason: Reason) -> str | None:
    match reason:
        case reasons.PairsSame(pairs, tolerance):
            return f"{units.counted(pairs, 'live pair')} together show a change of less than ±{bound(tolerance)}"
        case reasons.PairsDiffer(pairs, is_slower, all_agree, fresh):
            each = f", each {'slower' if is_slower else 'faster'}" if all_agree else ""
            return f"{units.counted(pairs, 'live pair')}{each}\nconfirmed by a fresh pair ({units.change(fresh)})"
        case reasons.PairsUndecided():
            return _undecided(reason)
    return None


def _undecided(reason: reasons.PairsUndecided) -> str:
    """Write the upper bound, the slowdown that pairs would find, why they do not decide, and what disturbed them."""
    lines = [] if reason.at_most is None else [f"change at most {units.change(reason.at_most)}"]
    if reason.smallest_seen is not None:
        lines = ["; ".join([*lines, f"would detect {units.change(1 + reason.smallest_seen)} in 95 of 100 runs"])]
    cause = _UNDECIDED[reason.code]
    if reason.pair_sd is not None:
        cause += f", by {units.percent(reason.pair_sd, signed=False)}"
    lines.append(cause if reason.placed else f"{cause}; tests with one thread and one process vary less")
    if reason.other_work is not None:
        lines.append(_other_work(reason.other_work))
    return "\n".join(lines)


def _other_work(work: OtherWork) -> str:
    """Write what CPU others used: ``other processes used 52 % of the CPUs, python (mostly pid 47) 87 % of one``."""
    if not work.process:
        return f"other containers or virtual machines used {100 * work.unseen_share:.0f} % of the machine's CPUs"
    everything, named = (f"{100 * share:.0f} %" for share in (work.seen_share, work.cpu_share))
    name = f"{shown(work.process)} (mostly pid {work.pid})"
    return f"other processes used {everything} of the CPUs, {name} {named} of one"


def longer(remedy: Remedy) -> str:
    """Return the option that gives a test more time or pairs, "" if the remedy is another one."""
    options = {RemedyKind.TIME: "--rlperf-max-time=", RemedyKind.PAIRS: "-o rlperf_pairs=3.."}
    return f"{options[remedy.kind]}{remedy.amount:g}" if remedy.kind in options else ""


def remedy_text(remedy: Remedy, reason: Reason) -> str:
    """Write the one change that would most likely decide."""
    amount = remedy.amount or 0.0
    match remedy.kind:
        case RemedyKind.TIME | RemedyKind.PAIRS:
            return f"measure it with {longer(remedy)}"
        case RemedyKind.TOLERANCE:
            return f"raise --rlperf-tolerance to {100 * amount:g}%"
        case RemedyKind.CALLS:
            return "make a call longer, such as a whole episode, or many calls: [f() for _ in range(100)]"
        case RemedyKind.COUNTS:
            return "fail on exact counts instead: --rlperf-findings=counts=gate"
        case RemedyKind.QUIET:
            work = reason.other_work if isinstance(reason, reasons.PairsUndecided) else None
            if work is None or not work.process:
                return "measure again on a quieter machine"
            return f"measure again without other work, such as that of {shown(work.process)}"


# Resources by their names in figures: the words for one and for several, or those after a number of bytes.
_NUMBERS = {
    "objects": ("block of Python memory", "blocks of Python memory"),
    "open_files": ("open file", "open files"),
    "threads": ("thread", "threads"),
    "processes": ("child process", "child processes"),
    "shared_blocks": ("block of shared memory", "blocks of shared memory"),
    "temporary_files": ("temporary file", "temporary files"),
    "segments": ("System V segment or semaphore", "System V segments or semaphores"),
    "garbage_files": ("open file", "open files"),
    "garbage_threads": ("thread", "threads"),
    "garbage_processes": ("child process", "child processes"),
}
_BYTES = {
    "private_bytes": "of memory",
    "device_bytes": "of device memory",
    "shared_bytes": "of shared memory",
    "temporary_bytes": "of temporary files",
    "segment_bytes": "of System V segments",
    "waiting_bytes": "that wait for the garbage collector",
    "garbage_bytes": "of memory",
    "tensor_garbage_bytes": "of tensors",
}
_STARTS = {"first_call_s": "the first call", "import_s": "importing the tests"}


def finding_line(fact: Fact) -> str:
    """Return the line of a finding."""
    match fact:
        case facts.InWords(text):
            return text
        case facts.Drift(ratio, calls):
            return f"gets slower while it runs: {units.change(ratio)} within {units.counted(calls, 'call')}"
        case facts.SlowStart(parts):
            takes = "{} takes {}, {} on the base".format
            return "; ".join(takes(_STARTS[name], units.seconds(now), units.seconds(was)) for name, was, now in parts)
        case facts.Growth(more, places):
            allocated = f"; allocated at {', '.join(places)}" if places else ""
            return f"each call leaves {_grown(more)} more than on the base{allocated}"
        case facts.Garbage(parts):
            left = (f"{_amount(name, head)} ({_figure(name, base)} on the base)" for name, base, head in parts)
            return f"each call leaves to the garbage collector: {', '.join(left)}"
        case facts.Compiles(base, head, last):
            most = f"{units.number(head)} program{'s' * (units.number(head) != '1')}"
            named = "".join(f"; {_compiled(each)}" for each in last)
            return f"each call compiles {most}, {units.number(base) if base else 'none'} on the base{named}"
        case facts.OtherOutput(path, how):
            return f"returns other numbers from the first call on: {path} {finding_line(how)}"
        case facts.OnOneSide():
            return "exists only on one side"
        case facts.OtherKind(base, head):
            return f"is {head}, {base} on the base"
        case facts.OtherNumbers(most, whole):
            return f"by up to {units.number(most)} of {units.number(whole, 3)}"
        case facts.OtherBits():
            return "differs"
        case facts.SlowerPhases(phases):
            slower = [f"{path} {units.change(by)}, at least {units.change(least)}" for path, by, least in phases]
            return f"slower in a phase: {'; '.join(slower)}"
        case facts.Scale(small, large, laws):
            return f"from {units.number(small, 12)} to {units.number(large, 12)}: {'; '.join(map(_law, laws))}"
        case facts.Threads(parts):
            counts = (f"{units.counted(int(now), one)}, {was:g} on the base" for one, was, now in parts)
            return f"works with {'; '.join(counts)}"
    raise TypeError(f"no line for {fact!r}")


def left_behind_text(grown: facts.Growth) -> str:
    """Return a note on what calls leave behind, for one side without another to compare with."""
    return f"each call leaves {_grown(grown.more)} behind: a leak, or a cache that is not full yet"


def _grown(more: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, amount) for name, amount in more.items())


def _compiled(program: Compiled) -> str:
    """Write which function was compiled, and for which new types."""
    if program.why:
        return f"{shown(program.function)}: {shown(' '.join(program.why.split()))}"
    if not program.inputs or program.before is None:
        return shown(program.function)
    pairs = zip_longest(program.before, program.inputs, fillvalue="none")
    changed = [f"{shown(now)} after {shown(was)}" for was, now in pairs if was != now]
    return f"{shown(program.function)}: {', '.join(changed) or 'compiled again for the same types'}"


def _amount(name: str, amount: float) -> str:
    figure = _figure(name, amount)
    return f"{figure}B {_BYTES[name]}" if name in _BYTES else f"{figure} {_NUMBERS[name][figure != '1']}"


def _figure(name: str, amount: float) -> str:
    return units.quantity(amount) if name in _BYTES else units.number(amount)


def _law(law: facts.Law) -> str:
    """Write how a figure grows from one size to another on each side, and the law of the head's extra time if known."""
    times = [units.number(large / (small or 1.0)) if large else "1" for small, large in (law.head, law.base)]
    added = "" if law.exponent is None else f", what is added ∝ size^{law.exponent:.1f}"
    return f"{law.name} ×{times[0]} (base ×{times[1]}){added}"


def _beside_times(reason: Reason) -> str | None:
    match reason:
        case reasons.SameCode() | reasons.Unreached():
            return _same_code(reason)
        case reasons.OtherEnvironment(ratio, versions, same_code):
            found = "the code is as fast as it was" if same_code is None else _same_code(same_code)
            change = "another time" if ratio is None else units.change(ratio)
            return f"{found}; stored numbers show {change}: {_cause(versions)}"
        case reasons.CountsChanged(changes, also):
            return f"{'also counted: ' if also else ''}{changes_text(changes)}"
        case reasons.TimeAlone(status, time):
            return f"by time only: {status}, {'; '.join(reason_lines(time))}"
        case reasons.Found(lines, also):
            return "\n".join(f"{'also: ' if also else ''}{finding_line(line)}" for line in lines)
        case reasons.BeyondAllowance(commit, _, _, kinds) if kinds:
            return f"{commit} accepts more time, but not {' or '.join(kinds)}"
        case reasons.BeyondAllowance(commit, most, ratio):
            if not most:
                return f"it is slower by its time, and {commit} accepts only its counts"
            return f"{units.change(ratio)} is more than the {bound(most)} that {commit} accepts"
        case reasons.NotSettledLive(why, error):
            return f"no live comparison: {_NO_CODE.get(why, error)}"
    return None


def _same_code(reason: reasons.SameCode | reasons.Unreached) -> str:
    if isinstance(reason, reasons.Unreached):
        if not reason.functions:
            return f"unchanged: runs and reads nothing that differs from {reason.base_label}"
        functions = "the one function" if reason.functions == 1 else f"0 of the {reason.functions} functions"
        runs = "does not run" if reason.functions == 1 else "runs"
        return f"unchanged: {runs} {functions} that this change touches"
    if reason.files is not None and not reason.code_files:
        return "this test loads only test files and none of your code, so no change of your code can make it slower"
    if reason.files is not None:
        files = "the one file read does" if reason.files == 1 else f"the {reason.files} files read do"
        return f"{files} not differ from {reason.base_label}"
    return f"same code as {reason.base_label}"


def _cause(versions: Sequence[VersionChange]) -> str:
    """Write what has changed since figures were stored, and the option that shows its cost."""
    if not versions:
        return "no package has changed, so the machine has"
    first = versions[0]
    return (
        f"{', '.join(map(version_text, versions))}; --rlperf-against=pip:{first.name}=={first.then} shows the cost of "
        "that"
    )


def version_text(change: VersionChange) -> str:
    """Write a change of version: ``numpy 1.26.4 → 2.0.0``."""
    return f"{change.name} {change.then} → {change.now or 'none'}"


# ----------------------------------------------------------------------- what accepts a slowdown, and keeps a gain


def trailer(key: str, ratio: float | None, high: float | None) -> str:
    """Return the line of a commit message that accepts the slowdown of the test ``key``, without the reason.

    ``ratio`` is the change and ``high`` its upper bound; None for a test that is slower by its counts.
    """
    if ratio is None:
        return f"{TRAILER}: {pattern_of(key)} counts"
    known = [100 * (each - 1) for each in (ratio, high) if each is not None and math.isfinite(each)]
    most = max([0.0, *known])
    # A second measurement will differ, and one on another machine more so.
    return f"{TRAILER}: {pattern_of(key)} <= +{math.ceil(round(_HEADROOM * most, 6)) + _HEADROOM_PERCENT}%"


def improved(count: int) -> str:
    """Advise to store tests that got faster than their baseline by more than the tolerance."""
    return f"{units.counted(count, 'test')} faster than in the baseline: store the new figures to keep the gain"


# ----------------------------------------------------------------------- exact counts


def changes_text(changes: Iterable[CounterChange]) -> str:
    """Write changed counts in one line: ``update/critic: aten::mm 12 → 18; syncs 2 → 5``; the whole call first."""
    return " · ".join(phase_changes(sorted(changes, key=lambda change: change.path), _COUNTS_MOST))


def phase_changes(changes: Iterable[CounterChange], most: int | None) -> list[str]:
    """Return a line of changed counts for each phase, the largest changes first, ``most`` of them."""
    by_path: dict[str, list[CounterChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    lines = []
    for path, found in by_path.items():
        found.sort(key=lambda change: -abs(change.now - change.was))
        counts = [f"{each.name.removeprefix(_OPERATIONS)} {each.was} → {each.now}" for each in found]
        more = [f"{len(counts) - most} more"] if most is not None and len(counts) > most else []
        text = "; ".join([*counts[:most], *more])
        lines.append(f"{path}: {text}" if path else text)
    return lines


def count_text(change: CounterChange) -> str:
    """Write one changed count and its phase: ``update/critic: ops:aten::mm 12 → 18``."""
    return f"{change.path or 'the call'}: {change.name} {change.was:,} → {change.now:,}"


def more_work_text(verdict: Verdict) -> str:
    """Write the work that rose most if times decide nothing: ``a call does more: native_calls:builtins 1 → 9``."""
    if not verdict.more_work:
        return ""
    first, *others = verdict.more_work
    more = f" and {len(others)} more" if others else ""
    return f"a call does more: {shown(first.name.removeprefix(_OPERATIONS))} {first.was:,} → {first.now:,}{more}"


def open_text(status: Status, number: int, gated: int) -> str:
    """Write how many of the gated tests have a status, such as UNDECIDED, that does not say whether they got slower."""
    are = "is" if number == 1 else "are"
    return f"{number} of {units.counted(gated, 'gated test')} {are} {status.value}, and may have got slower"


# ----------------------------------------------------------------------- the parts of a change


def touched_lines(outcome: Outcome) -> list[str]:
    """Name the changed parts that a test runs and that may change its time, and their additional calls.

    ``changed: buffer.py:41 Buffer.sample · copy.deepcopy 0 → 8 a call · aten::clone 0 → 16``.
    """
    if outcome.verdict.status not in (Status.SLOWER, Status.FASTER, Status.UNDECIDED) or not outcome.touched:
        return []
    found, rest = outcome.touched[:PARTS_MOST], outcome.touched[PARTS_MOST:]
    lines = [f"changed: {_touched_text(each)}" for each in found]
    operations = [each for each in outcome.verdict.counters if each.name.startswith(_OPERATIONS) and not each.path]
    if operations:
        lines[0] += f" · {changes_text(operations)}"
    return [*lines, f"and {len(rest)} more changed part{'s' * (len(rest) > 1)}"] if rest else lines


def _touched_text(touched: Touched) -> str:
    base, head = touched.entries or (1, 1)
    if base != head:
        entered = [f"entered {base} → {head} times a call"]
    elif touched.part.kind is not Kind.FUNCTION or base == 1:
        entered = []
    else:
        entered = [f"entered {base} times a call" if base else "not entered in the counted calls"]
    calls = [f"{each.name} {each.was} → {each.now}" for each in touched.calls[:_COUNTS_MOST]]
    if calls:
        calls[0] += " a call"
    return " · ".join([part_text(touched.part), *entered, *calls])


def part_text(part: ChangedPart) -> str:
    """Name a part of a change: ``buffer.py:41 Buffer.sample``."""
    match part.kind:
        case Kind.FUNCTION:
            return f"{part.file}:{part.line} {part.name}"
        case Kind.BODY:
            whole = "the module" if part.name in ("", MAIN) else part.name
            return f"{part.file}:{part.differs} the body of {whole}{' as a program' if part.name == MAIN else ''}"
        case _:
            return part.file


def _at_a_time(lanes: int) -> str:
    return "one pair at a time is" if lanes == 1 else f"{lanes} pairs at a time are"


def _untested_text(note: notes.Untested) -> str:
    """Name the changed parts that no test runs, and if there are few, show how to write a test."""
    functions = [part.name for part in note.parts if part.kind is Kind.FUNCTION]
    is_little = len(note.parts) <= _NAMED_MOST
    names = ", ".join(map(_untested_name, note.parts)) if is_little else f"{_untested_name(note.parts[0])} and others"
    owner, _, name = functions[0].rpartition(".") if functions else ("", "", "")
    made = f"made = {owner}(...); " if owner and name != "__init__" else ""  # which is not measured
    call = f"made.{name}(...)" if made else f"{owner or name}(...)" if functions else "..."
    example = f"a test is short: def test_it(rlperf): {made}rlperf(lambda: {call})"
    kind = "changed function" if len(functions) == len(note.parts) else "changed part"
    few = f"the {kind}" if note.changed == 1 else f"{len(note.parts)} of {units.counted(note.changed, kind)}"
    they = "it" if len(note.may) == 1 else "they"
    may = f"; {_named(note.may)} may have, as {they} could not be observed in full" if note.may else ""
    end = example if is_little else "the run's JSON lists all of them"
    if note.is_selection:
        return f"none of the selected tests was seen to run {few}: {names}{may}; tests that are not selected may have"
    return f"no test of this run was seen to run {few}: {names}{may}; {end}{see('writing-tests.md')}"


def _untested_name(part: ChangedPart) -> str:
    return f"{part.name} ({part.file}:{part.line})" if part.kind is Kind.FUNCTION else part_text(part)


_DOUBTS = {
    notes.Doubt.CHILDREN: "child processes are not observed",
    notes.Doubt.UNSEEN: "a changed function may run without being observed",
    notes.Doubt.UNEVEN: "its two sides did not run the same functions, or load the same modules, in as many calls",
}


def _in_doubt(doubt: notes.Doubt, keys: Sequence[str]) -> str:
    """Write why tests were measured that were not seen to run any part of the change."""
    was = "was" if len(keys) == 1 else "were"
    why = _DOUBTS[doubt] if len(keys) == 1 else _DOUBTS[doubt].replace("its ", "their ")
    return f"{_named(keys)} {was} measured, although no changed function was seen to run: {why}"


# ----------------------------------------------------------------------- the phases that carry a change


def blame_text(outcome: Outcome) -> str:
    """Name the phases that carry a live change: ``critic +1.9 of +2.1 ms a call``; empty if nothing changed."""
    live = outcome.live
    if live is None or not (outcome.result.phases or live.base.phases):
        return ""
    by_time = outcome.verdict.status in (Status.SLOWER, Status.FASTER) and not outcome.verdict.by_counts
    return carriers_text(live.contributions, live.carriers) if live.contributions or by_time else ""


def rare_text(outcome: Outcome) -> str:
    """Write the time of a usual call, the mean, and the time of rare calls; empty without rare calls."""
    result, before = outcome.result, outcome.before
    if outcome.live is not None and outcome.live.are_unrepeated:
        return (
            f"a usual call takes {units.seconds(result.call_s)}, was {units.seconds(outcome.live.base.call_s)}; long "
            "calls come at other places in each process, so the total time of all calls decides"
        )
    if not outcome.has_rare_calls or not result.measured:
        return ""
    is_live = outcome.before_call_s is not None and outcome.live is not None
    times = [(result.call_s, result.mean_call_s)]
    if is_live:
        assert before is not None
        times.append((before.call_s, before.mean_call_s))
    usual, mean = (", was ".join(units.seconds(each[place]) for each in times) for place in (0, 1))
    rare = None if outcome.live is None else outcome.live.rare_calls
    is_gone = rare is not None and rare.head_s <= (1 + RARE) * result.call_s  # today they are as other calls
    each = ""
    if rare is not None and (is_live or not is_gone):
        takes, was = f"takes {units.seconds(rare.head_s)}", f", was {units.seconds(rare.base_s)}" * is_live
        if is_gone:
            takes, was = f"took {units.seconds(rare.base_s)}", ""
        each = f": 1 of {rare.one_of:.0f} {takes}{was}"
    return f"a usual call takes {usual}; a call on average {mean}{each}"


def carriers_text(contributions: Sequence[Contribution], carriers: Sequence[Contribution]) -> str:
    """Write the share of a change that its carriers have; there are no contributions if too little was traced."""
    if not contributions:
        return "too few traced calls to find the phase that explains it: raise --rlperf-max-time"
    if not carriers:
        return "no single phase explains it"
    whole_s = math.fsum(part.change_s for part in contributions)
    *parts, whole = units.changes_s([*(part.change_s for part in carriers), whole_s])
    phases = ", ".join(f"{carrier.path} {part}" for carrier, part in zip(carriers, parts, strict=True))
    return f"{phases} of {whole} a call"


def phases_note(result: Result) -> str:
    """Write the time that phases add up to if it is not about the median; else empty.

    Phases are means of traced calls, which a stall lengthens; the median leaves stalls out.
    """
    if not (result.measured and result.phases):
        return ""
    traced_s, median_s = result.traced_call_s, result.call_s
    if abs(traced_s - result.mean_call_s) <= _TRACED_APART * median_s:
        return ""
    traced, median = units.seconds(traced_s), units.seconds(median_s)
    return f"phase times come from traced calls ({traced} each); an untraced call takes {median}"


# ----------------------------------------------------------------------- the figures behind a test


def cost_text(outcome: Outcome) -> str:
    """Write how many calls and pairs a test's figures rest on, and the time that they cost."""
    if not outcome.result.measured:
        return f"{outcome.seconds:.1f} s"
    workers = outcome.result.workers
    parts = [
        units.counted(len(workers), "worker"),
        units.counted(sum(worker.calls for worker in workers), "call"),
        f"{outcome.result.clock} time",
        f"cpu/wall {outcome.result.cpu_share:.2f}",
        units.counted(sum(worker.collections for worker in workers), "collection"),
    ]
    if outcome.live is not None:
        pairs = outcome.live.pairs
        each = " ".join(units.change(math.exp(ratio)) for ratio in outcome.live.log_ratios)
        parts[:1] = [f"{units.counted(len(pairs), 'live pair')} ({each})"]
        parts[1] = f"{parts[1]} on each side"
        parts.append(f"set-up {sum(pair.setup_s for pair in pairs):.1f} s")
        parts.append(f"measured {sum(pair.seconds for pair in pairs):.1f} s")
    return ", ".join([*parts, f"{outcome.seconds:.1f} s in all"])


def bounds_text(estimate: Estimate) -> str:
    """Write the interval of a change within a sentence: ``-3.6 % to +4.4 %``."""
    return " to ".join(units.change(bound, estimate.ratio) for bound in (estimate.low, estimate.high))


def plot_legend(*, has_stored: bool, has_band: bool, is_cut: bool) -> str:
    """Explain the plot of all tests."""
    stored = ", dashed if it rests on stored figures" if has_stored else ""
    band = " The shaded band is the tolerance." if has_band else ""
    cut = " An arrow marks a change that is larger than the axis shows." if is_cut else ""
    return f"A line is the interval of a test's change{stored}; further to the right is slower.{band}{cut}"


def not_drawn_text(statuses: Iterable[Status]) -> str:
    """Write how many tests have no change that can be drawn, by status; empty if there are none."""
    counts = Counter(status.value for status in statuses)
    each = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"Not drawn, as their times were not compared: {each}." if counts else ""


def origin_text(name: str, provenance: Provenance | None) -> str:
    """Name the baseline that was compared with, its day and its commit."""
    if provenance is None:
        return f"baseline {name!r}, which has no figures for this test"
    baseline = f"baseline {name!r} of {provenance.created.partition('T')[0]}"
    if provenance.commit is None:
        return f"{baseline}, made outside git, so live pairs cannot run its code"
    if provenance.dirty:
        changes = f"uncommitted changes on {provenance.commit[:12]}"
        return f"{baseline}, made from {changes}, so live pairs cannot run its code"
    return f"{baseline}, commit {provenance.commit[:12]}"


# ----------------------------------------------------------------------- a self-check


def fitness_lines(checks: Sequence[Selfcheck], fitness: Fitness) -> list[str]:
    """Return why a machine is or is not fit to find slowdowns of the tolerance."""
    trials = [trial for check in checks for trial in check.trials]
    unchanged = [trial for trial in trials if not trial.slowdown]
    large = [trial for trial in trials if fitness.is_large(trial)]
    same, found = sum(trial.is_found for trial in unchanged), sum(trial.is_found for trial in large)
    least, needed = f"{100 * fitness.found_from:.3g} %", f"a tolerance of {bound(fitness.tolerance)} needs that"
    alarms = units.counted(fitness.false_alarms, "false alarm")
    return [
        f"{alarms}; {same} of {units.counted(len(unchanged), 'unchanged test')} SAME",
        f"{found} of {units.counted(len(large), 'slowdown')} of {least} or more found; {needed}"
        if large
        else f"no slowdown of {least} or more was tried; {needed}: check with a smaller --rlperf-tolerance",
    ]


# ----------------------------------------------------------------------- a run's progress in a log


def tests_text(tests: int, shard: Shard | None) -> str:
    """Write how many tests a run has: ``7 tests``, ``shard 1/4: 7 of 28 tests``."""
    if shard is None:
        return units.counted(tests, "test")
    return f"{shard.name}: {tests} of {units.counted(len(shard.collected), 'test')}"


def plan_text(plan: notes.Plan) -> str:
    """Write what a run is about to do: how many tests it has, what it does with each, and how long that takes."""
    tests, work = [tests_text(plan.tests, plan.shard)], []
    if plan.touched is not None and plan.touched < plan.tests:
        untouched = f"{plan.tests - plan.touched} not" if plan.touched else "none"
        tests.append(f"{untouched} touched by the change")
    if 0 < plan.measured < plan.tests:
        tests.append(f"{plan.measured} to measure")
    if plan.paired:
        least, most = plan.pairs
        pairs = units.counted(most, "pair") if least == most else f"{least} to {most} pairs"
        work.append(f"{pairs} {'each' if plan.paired == plan.measured else f'for {plan.paired} of them'}")
    if plan.expected_s:
        work.append(f"about {units.roughly(plan.expected_s)} (by earlier runs)")
    return "; ".join(filter(None, (", ".join(tests), ", ".join(work))))


def pace_text(others: int, expected_s: float) -> str:
    """Write how long the tests after the first one take, if no earlier run shows it."""
    those = "other test, if it takes" if others == 1 else f"other {others} tests, if each takes"
    return f"about {units.roughly(expected_s)} for the {those} as long as this one"


def under_way_text(
    spent_s: float, tests: Sequence[notes.UnderWay], done: int = 0, total: int = 0, left_s: float = 0.0
) -> str:
    """Write how long a run has lasted, what is being measured, and how far the run is."""
    shown_tests = [
        " ".join(filter(None, (shown(test.test) if test.test else "", shown(test.step))))
        + ("" if test.ratio is None else f", {units.change(test.ratio)} so far")
        for test in tests
    ]
    far = f"{done} of {total} tests done" if done else ""
    left = f"about {units.roughly(left_s)} left" if left_s >= 1 else ""
    position = ", ".join(filter(None, (far, left)))
    return f"{units.duration(spent_s)}: {'; '.join(filter(None, (*shown_tests, position)))}"


# ----------------------------------------------------------------------- notes of a run


def note_lines(found: Sequence[notes.Note], *, verbose: bool) -> list[str]:
    """Return notes in English, one line for each kind; if ``verbose``, with notes that decide nothing."""
    lines = [text for text in map(_note, found) if text]
    short = [note for note in found if isinstance(note, notes.ShortOfTime)]
    lines += [_short_of_time(short)] if short else []
    fresh: dict[str, list[str]] = {}
    of_all = {note.why for note in found if isinstance(note, notes.NotForked)}
    for note in found:
        if isinstance(note, notes.MeasuredFresh) and note.why not in of_all:
            fresh.setdefault(note.why, []).append(note.key)
    lines += [_measured_fresh(keys, why) for why, keys in fresh.items()]
    doubts: dict[notes.Doubt, list[str]] = {}
    for note in found:
        if isinstance(note, notes.MeasuredInDoubt):
            doubts.setdefault(note.doubt, []).append(note.key)
    lines += [_in_doubt(doubt, keys) for doubt, keys in doubts.items()]
    uncompared = [note for note in found if isinstance(note, notes.UncomparedCounts) and (note.gates or verbose)]
    obstacles = Counter(obstacle_text(note.obstacle) for note in uncompared)
    lines += [f"counts of {units.counted(tests, 'test')} not compared: {text}" for text, tests in obstacles.items()]
    saved = [line for note in found if isinstance(note, notes.Saved) for line in saved_lines(note)]
    return [*dict.fromkeys(lines), *saved]


def uncalled(calls: Mapping[str, str]) -> str:
    """Write which tests passed without calling their fixture, each with the missing call."""
    each = ", ".join(f"{nodeid} passed but never calls {call}" for nodeid, call in calls.items())
    return f"{each}: nothing was checked or measured{see('writing-tests.md#limits')}"


def _note(note: notes.Note) -> str:
    """Write a note that has its own line; empty if notes of its kind share one."""
    match note:
        case notes.TextNote(text):
            return text
        case notes.FewerLanes(lanes, wanted, quota):
            pairs = _at_a_time(lanes)
            if quota is not None:
                return f"{pairs} measured: the cgroup's quota is {quota:g} of {wanted} CPUs"
            return f"{pairs} measured, not {wanted}: this process may use {units.counted(lanes, 'CPU')}"
        case notes.ShortOfMemory(lanes, wanted, pair_bytes):
            each = f"each takes {units.number(pair_bytes / 1e6)} MB of memory"
            return f"{_at_a_time(lanes)} measured, not {wanted}: {each}, which has no room for more"
        case notes.LeftoversRemoved(resource, count, place):
            where = f" in {shown(place)}" if place else ""
            return f"removed {_amount(resource, count)} that the tests left{where}"
        case notes.SkippedBaseline(error):
            return f"skipped a baseline that is not this machine's: {error}"
        case notes.Untested():
            return _untested_text(note)
        case notes.UntouchedMoved(tests, ratio):
            return (
                f"most of {units.counted(tests, 'test')} that the change cannot affect changed, by "
                f"{units.change(ratio)}: the runs of today's tree may have been disturbed"
            )
        case notes.NotForked(why):
            return f"every process was a new interpreter, which takes longer: {shown(why)}"
        case notes.Unfinished(keys):
            return f"the run was stopped before it had reported {units.counted(len(keys), 'test')}: {_named(keys)}"
        case notes.NotWatched(why):
            return f"changed files that only libraries in other languages read are not seen: {shown(why)}"
        case notes.UnmatchedAllowance(allowance, near):
            close = f"; close to it is {near!r}" if near else ""
            pattern = f"{allowance.pattern!r} matches no measured test of this run"
            return f"{TRAILER} of {allowance.commit} accepts nothing: {pattern}{close}"
    return ""


def _named(keys: Sequence[str]) -> str:
    """Return the names of tests, only the first few if there are many."""
    more = [f"{len(keys) - _NAMED_MOST} more"] if len(keys) > _NAMED_MOST else []
    return ", ".join([*map(test_name, keys[:_NAMED_MOST]), *more])


def _measured_fresh(keys: Sequence[str], why: str) -> str:
    were = "was" if len(keys) == 1 else "were"
    return f"{_named(keys)} {were} measured in new interpreters, which takes longer: {shown(why)}"


def _short_of_time(short: Sequence[notes.ShortOfTime]) -> str:
    names = _named([note.key for note in short])
    least_s = min(note.limit_s for note in short)
    return (
        f"{units.counted(len(short), 'test')} not settled in the run's time, {units.seconds(least_s)} or more each: "
        f"{names}; a longer --rlperf-total-time gives more, --rlperf-shard=K/N divides the tests among machines"
    )


def shard_failures(keys: Sequence[str]) -> str:
    """Name the tests that failed in a shard, or did not run there, and have no failing verdict."""
    return f"{units.counted(len(keys), 'test')} failed or did not run ({_named(keys)}): see the shards' logs"


def collision_text() -> str:
    """Return why a port or a file may be taken, and the edits that help."""
    return (
        "several processes have a test open at the same time, also those of the base and the head: bind to port 0, and "
        f"create files below pytest's tmp_path{see('writing-tests.md#which-tests')}"
    )


def obstacle_text(obstacle: notes.Obstacle) -> str:
    """Write why counts are not compared."""
    match obstacle:
        case notes.NoStoredCounts():
            return f"the baseline has no counts: {_STORE_AGAIN}"
        case notes.OneWorkerCounted():
            return "only one worker had time to count, so no count is confirmed: raise --rlperf-max-time"
        case notes.OtherVersions(changes):
            return f"stored with other versions: {', '.join(map(version_text, changes))}"
        case notes.NothingCounted(why, on_base):
            return f"{'on the other side ' if on_base else ''}{'; '.join(why)}"
        case notes.GatesNotCounted(gates, why):
            names = f"{', '.join(gates)} {'was' if len(gates) == 1 else 'were'} not counted on both sides"
            return "; ".join([f"{names}, so not checked", *why])


def saved_lines(saved: notes.Saved) -> list[str]:
    """Return which results a run has stored, and why it did not store others."""
    lines = []
    if saved.stored:
        lines.append(f"stored {units.counted(len(saved.stored), 'result')} in\n{seen_from_here(saved.path)}")
        if not saved.settleable:
            lines.append(
                "not from a clean commit, so live pairs can never run this code: commit all that `git status` shows, "
                f"or name it in .gitignore, then store again{see('comparing.md#stored-baselines')}"
            )
    alike: dict[str, list[str]] = {}
    for key, why in saved.kept_back.items():
        few = f"{saved.workers.get(key, 0)} of {saved.needed} workers had time; raise --rlperf-max-time"
        alike.setdefault(_KEPT_BACK.get(why, few), []).append(key)
    return lines + [
        f"{units.counted(len(keys), 'result')} not stored: {_named(keys)}: {reason}" for reason, keys in alike.items()
    ]


def seen_from_here(path: Path) -> str:
    """Return ``path`` relative to the current directory if it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
