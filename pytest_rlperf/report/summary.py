"""The sentences under the table: the origins of base's figures, the file they are stored in, and commands to type."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.wording import ACCEPTING, has_trailer, improved, trailer_of


@dataclass(frozen=True)
class NextStep:
    """Lines to type next, and their effect."""

    effect: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The texts of the summary beside the outcomes: machines, origins of base's figures, notes, and what to type."""

    machines: Sequence[str]
    origins: Sequence[str]
    notes: Sequence[str]
    steps: Sequence[NextStep]


def next_steps(
    outcomes: Sequence[Outcome], command: str, *, saved: bool, against: bool, verbose: bool
) -> list[NextStep]:
    """Return what to type next; commands begin with ``command``."""
    statuses = {outcome.verdict.status for outcome in outcomes}
    steps = []
    if not saved and statuses & {Status.NEW, Status.INCOMPARABLE} and not against:
        steps.append(NextStep("store these figures to compare with", (f"{command} --rlperf-save-baseline",)))
    faster = [outcome for outcome in outcomes if outcome.verdict.status is Status.FASTER and outcome.baseline]
    if not saved and faster:
        steps.append(NextStep(improved(len(faster)), (f"{command} --rlperf-save-baseline",)))
    steps += acceptance(outcomes, command, against=against)
    if statuses - {Status.ERROR} and not steps and not verbose:
        steps.append(NextStep("show every test's phases and what its figures rest on", (f"{command} --rlperf -v",)))
    return steps


def acceptance(outcomes: Sequence[Outcome], command: str, *, against: bool) -> list[NextStep]:
    """Return the one way to accept what is slower, if there is one: it goes by where base came from.

    A baseline's figures are stored anew; ``against`` what the user named, commits since then can accept it.
    """
    failing = [outcome for outcome in outcomes if outcome.verdict.fails(strict=False)]
    slower = [outcome for outcome in failing if outcome.verdict.status is Status.SLOWER]
    if slower and not against:
        return [NextStep("if the slowdown is intended, commit it and store its figures", (f"{command} {ACCEPTING}",))]
    lines = tuple(f"{trailer_of(outcome)} why" for outcome in slower if has_trailer(outcome))
    return [NextStep("if the slowdown is intended, accept it in a commit's message", lines)] if lines else []


# Options with a value that write files, which the command to measure again leaves out.
_WRITING = (
    "--rlperf-json",
    "--rlperf-html",
    "--rlperf-trace",
    "--rlperf-benchmark-json",
    "--rlperf-accept",
    "--junitxml",
    "--junit-xml",
)
_SAVE = "--rlperf-save-baseline"
_MEASURE = "--rlperf"


class _Typed(str):
    """An argument that is another object than any of the same text: Python keeps one ``"."`` for all."""

    __slots__ = ()


def without_paths(args: Sequence[str], parse: Callable[[list[str]], Iterable[str]]) -> list[str]:
    """Return the typed arguments without the paths of tests, so that the key of one test can stand for them.

    ``parse`` returns which of its arguments are positional, the very objects: an option's value may read the same.
    Where it fails, or returns others, all are kept: with the key behind them pytest runs more tests than the one.
    """
    typed = [_Typed(arg) for arg in args]
    try:
        positional = {id(arg) for arg in parse(list(typed))}
    except Exception:  # of an option that another plugin defines; a report is not lost to a command in it
        positional = set()
    return [str(arg) for arg in typed if id(arg) not in positional]


def reproducing(args: Sequence[str]) -> str:
    """Return the command that measures again, as it was typed, less what the run writes.

    ``args`` are what was typed behind ``pytest``, or what :func:`without_paths` leaves of it: the key of one test can
    be put behind the command.
    """
    # Last, as what takes a value at will, such as --cov, would take a key that stands behind it.
    return shlex.join(["pytest", *_less(args, _WRITING, (_MEASURE, _SAVE)), _MEASURE])


def continuing(args: Sequence[str]) -> str:
    """Return the command as it was typed, without the flags that measure, so that others can be put behind it."""
    return shlex.join(["pytest", *_less(args, ("--rlperf-accept",), (_MEASURE, _SAVE))])


def _less(args: Sequence[str], valued: Sequence[str], bare: Sequence[str]) -> list[str]:
    """Return ``args`` less the options named, those that have a value with it; paths behind ``--`` come first.

    There no option takes them for its value, and what is put behind the command is not taken for a path.
    """
    at = args.index("--") if "--" in args else len(args)
    kept, rest = list(args[at + 1 :]), iter(args[:at])
    for arg in rest:
        if arg in valued:
            next(rest, None)
        elif arg not in bare and not arg.startswith(tuple(f"{flag}=" for flag in valued)):
            kept.append(arg)
    return kept
