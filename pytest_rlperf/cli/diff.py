"""``rlperf diff``: two runs or baselines, test by test."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import (
    Command,
    Exit,
    UsageError,
    add_choice,
    chosen,
    complain,
    has_color,
    print_text,
    table_width,
)
from pytest_rlperf.cli.files import exit_code, outcomes_of, provenances_of, read, results_of
from pytest_rlperf.model import Outcome, Result, Status

if TYPE_CHECKING:
    from pytest_rlperf.report.difference import Difference
    from pytest_rlperf.report.reading import Recorded


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a run's JSON or a baseline: what B is compared with")
    parser.add_argument("b", metavar="B", help="a run's JSON or a baseline, whose verdicts make the exit code")
    add_choice(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="every test's phases, and all of them")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.difference import CAVEAT, render_differences
    from pytest_rlperf.report.printable import shown

    try:
        a, b = read(arguments.a), read(arguments.b)
        keys = chosen({**results_of(a), **results_of(b)}, arguments.patterns)
    except UsageError as error:
        complain(error)
        return Exit.USAGE
    found = _differences(a, b, keys)
    legend = [f"{name}  {shown(path)}{_origin(side)}" for name, path, side in _sides(arguments, a, b)]
    table = render_differences(found, width=table_width(), color=has_color(), verbose=arguments.verbose)
    print_text("\n".join([*legend, "", table, *_surroundings(a, b), CAVEAT, ""]))
    if not any(one.is_comparable for one in found):
        return Exit.NOTHING_MEASURED
    outcomes = outcomes_of(b)
    return exit_code([outcomes[key] for key in keys if key in outcomes], list(results_of(b).values()))


def _sides(arguments: argparse.Namespace, a: Recorded, b: Recorded) -> list[tuple[str, str, Recorded]]:
    return [("A", arguments.a, a), ("B", arguments.b, b)]


def _differences(a: Recorded, b: Recorded, keys: list[str]) -> list[Difference]:
    from pytest_rlperf.report.difference import Difference

    ones, others, verdicts = results_of(a), results_of(b), outcomes_of(b)
    return [
        Difference(
            key,
            ones.get(key),
            others.get(key),
            _verdict(verdicts[key]) if key in verdicts else "",
            _counters(ones.get(key), others.get(key)),
        )
        for key in keys
    ]


def _verdict(outcome: Outcome) -> str:
    accepted = outcome.verdict.status is Status.SLOWER and outcome.verdict.accepted
    return f"{outcome.verdict.status.value}{' (accepted)' if accepted else ''}{'' if outcome.verdict.gated else ' *'}"


def _counters(one: Result | None, other: Result | None) -> str:
    """Return the exact counts that differ, in words."""
    from pytest_rlperf.judge.counters import EVERY, compare, told

    if one is None or other is None or one.counting is None or other.counting is None:
        return ""
    return told(compare(one.counting, other.counting, EVERY))


def _origin(recorded: Recorded) -> str:
    """Say whose code a file's figures are of: its latest, where they are of several days."""
    provenances = provenances_of(recorded)
    if not provenances:
        return ""
    latest = provenances[-1]
    code = "" if latest.commit is None else f", commit {latest.commit[:12]}"
    return f"  ({latest.created.partition('T')[0]}{code}{', uncommitted changes' if latest.dirty else ''})"


def _surroundings(a: Recorded, b: Recorded) -> list[str]:
    """Return what else differs: machines and packages."""
    from pytest_rlperf.baseline.machine import differences

    lines = [f"machines differ: {difference}" for difference in differences(a.machine, b.machine)]
    if provenances_of(a) and provenances_of(b):
        then, now = provenances_of(a)[-1].packages, provenances_of(b)[-1].packages
        lines += [
            f"packages differ: {name} {then.get(name, 'none')} → {now.get(name, 'none')}"
            for name in sorted({**then, **now})
            if then.get(name) != now.get(name)
        ]
    return [*lines, ""] if lines else []


COMMAND = Command("diff", "Compare two runs or baselines test by test; no verdict is made of it.", _add_arguments, _run)
