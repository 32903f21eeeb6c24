"""``rlperf diff``: two runs or baselines, test by test."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Command, Exit, add_choice, chosen, has_color, print_text, table_width
from pytest_rlperf.cli.files import DIRECTORY, exit_code, located, outcomes_of, provenances_of, read, results_of
from pytest_rlperf.model import Outcome, Result, Status

if TYPE_CHECKING:
    from pytest_rlperf.report.difference import Difference
    from pytest_rlperf.report.reading import Recorded


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=f"a run's JSON, a baseline, or {DIRECTORY}: what B is compared with")
    parser.add_argument("b", metavar="B", help="the same, whose verdicts make the exit code")
    add_choice(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="every test's phases, and all of them")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.difference import CAVEAT, render_differences
    from pytest_rlperf.report.printable import shown

    paths = located(arguments.a), located(arguments.b)
    a, b = map(read, paths)
    keys = chosen({**results_of(a), **results_of(b)}, arguments.patterns)
    found = _differences(a, b, keys)
    legend = [f"{name}  {shown(path)}{_origin(side)}" for name, path, side in zip("AB", paths, (a, b), strict=True)]
    table = render_differences(found, width=table_width(), color=has_color(), verbose=arguments.verbose)
    print_text("\n".join([*legend, "", table, *_surroundings(a, b), CAVEAT, ""]))
    if not any(one.is_comparable for one in found):
        return Exit.NOTHING_MEASURED
    outcomes = outcomes_of(b)
    return exit_code([outcomes[key] for key in keys if key in outcomes], list(results_of(b).values()))


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
        lines += _package_lines(_packages(a), _packages(b))
    return [*lines, ""] if lines else []


def _packages(recorded: Recorded) -> dict[str, str]:
    """Return the versions of what the measured code had loaded; where sessions differ, the latest one's."""
    return {name: version for session in provenances_of(recorded) for name, version in session.packages.items()}


def _package_lines(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what differs in packages; one that was loaded on one side only may well be installed on the other."""
    lines = [
        f"packages differ: {name} {then[name]} → {now[name]}"
        for name in sorted(then.keys() & now.keys())
        if then[name] != now[name]
    ]
    for side, loaded, others in (("A", then, now), ("B", now, then)):
        alone = [f"{name} {loaded[name]}" for name in sorted(loaded.keys() - others.keys())]
        lines += [f"loaded in {side} only: {', '.join(alone)}"] if alone else []
    return lines


COMMAND = Command("diff", "Compare two runs or baselines test by test; no verdict is made of it.", _add_arguments, _run)
