"""``rlperf show``, ``diff`` and ``machine``: what runs and baselines hold, and how two of them differ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import (
    Command,
    Exit,
    UsageError,
    add_choice,
    chosen,
    has_color,
    listed,
    print_text,
    table_width,
)
from pytest_rlperf.cli.files import DIRECTORY, exit_code, outcomes_of, provenances_of, read, results_of
from pytest_rlperf.model import Machine, Outcome, Result, Status

if TYPE_CHECKING:
    from pytest_rlperf.cli.files import Recorded
    from pytest_rlperf.report.recorded import Difference
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.summary import Summary

_FORMATS = ("text", "json", "markdown", "github")
_DIFFER = "times stored on one are INCOMPARABLE on the other; live pairs are not."
_EQUAL = "They are of one class: times stored on one are compared with times of the other."


# --------------------------------------------------------------------------- show


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help=f"what --rlperf-json wrote, a baseline, {DIRECTORY}, or - for standard input"
    )
    add_choice(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every test's phases, and what its figures rest on"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="of a run: the table (text, the default), a few figures a verdict (json), the table for a README or an "
        "issue (markdown), or the job summary, short enough for a comment (github)",
    )


def _run_show(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.printable import shown

    path, recorded = read(arguments.file)
    keys = chosen(results_of(recorded), arguments.patterns)
    if arguments.format == _FORMATS[0]:
        title = "" if path == arguments.file else f"{shown(path)}:\n\n"
        print_text(title + _rendered(recorded, keys, verbose=arguments.verbose))
    else:
        print_text(_formatted(recorded, keys, arguments.format, path))
    outcomes, results = outcomes_of(recorded), results_of(recorded)
    return exit_code([outcomes[key] for key in keys if key in outcomes], [results[key] for key in keys])


def _formatted(recorded: Recorded, keys: list[str], form: str, path: str) -> str:
    """Return verdicts for a program or for Markdown; UsageError where there are none."""
    from pytest_rlperf.report.github import COMMENT_BYTES, GitHubRun, render_summary_markdown
    from pytest_rlperf.report.markdown import grid
    from pytest_rlperf.report.rows import verdict_table
    from pytest_rlperf.report.run_json import RunFile, short_verdicts

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--format={form} shows verdicts, which {path} has none of: leave it out, or give a run")
    outcomes = [recorded.tests[key] for key in keys]
    if form == "json":
        return short_verdicts(recorded, keys)
    if form == "markdown":
        return f"{grid(verdict_table(outcomes))}\n" if outcomes else ""
    run = GitHubRun(summary_of(recorded, outcomes), "", {}, (), {}, recorded.failed, recorded.strict, None)
    return render_summary_markdown(outcomes, run, COMMENT_BYTES)


def _rendered(recorded: Recorded, keys: list[str], *, verbose: bool) -> str:
    from pytest_rlperf.baseline.machine import describe
    from pytest_rlperf.model import Baseline
    from pytest_rlperf.report.recorded import render_baseline
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.selfcheck import render_selfcheck
    from pytest_rlperf.report.terminal import render_summary

    width, color, machine = table_width(), has_color(), describe(recorded.machine)
    if isinstance(recorded, Baseline):
        table = render_baseline(recorded, keys, width=width, verbose=verbose)
        return f"{table}\nmachine   {machine}\n"
    if isinstance(recorded, RunFile):
        outcomes = [recorded.tests[key] for key in keys]
        return render_summary(outcomes, summary_of(recorded, outcomes), width=width, color=color, verbose=verbose)
    checks = [recorded.tests[key] for key in keys]
    return render_selfcheck(checks, recorded.fitness, machine=machine, width=width, color=color)


def summary_of(run: RunFile, outcomes: Sequence[Outcome]) -> Summary:
    """Return the texts below the table of some of a run's outcomes."""
    from pytest_rlperf.report.merge import machine_lines
    from pytest_rlperf.report.summary import NextStep, Summary
    from pytest_rlperf.report.wording import SAVING, improved

    faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
    steps = [NextStep(improved(faster), (SAVING,))] if faster else []
    return Summary(machine_lines(run), run.compared, run.notes, steps)


SHOW = Command("show", "Show a run or a baseline as pytest showed it.", _add_show_arguments, _run_show)


# --------------------------------------------------------------------------- diff


def _add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=f"a run's JSON, a baseline, or {DIRECTORY}: what B is compared with")
    parser.add_argument("b", metavar="B", help="a second run or baseline; its verdicts decide the exit code")
    add_choice(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="every test's phases, and all of them")


def _run_diff(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.recorded import CAVEAT, render_differences

    (path_a, a), (path_b, b) = read(arguments.a), read(arguments.b)
    keys = chosen({**results_of(a), **results_of(b)}, arguments.patterns)
    found = _differences(a, b, keys)
    legend = [f"A  {shown(path_a)}{_origin(a)}", f"B  {shown(path_b)}{_origin(b)}"]
    table = render_differences(found, width=table_width(), verbose=arguments.verbose)
    print_text("\n".join([*legend, "", table, *_surroundings(a, b), CAVEAT, ""]))
    if not any(one.is_comparable for one in found):
        return Exit.NOTHING_MEASURED
    outcomes = outcomes_of(b)
    return exit_code([outcomes[key] for key in keys if key in outcomes], list(results_of(b).values()))


def _differences(a: Recorded, b: Recorded, keys: list[str]) -> list[Difference]:
    from pytest_rlperf.report.recorded import Difference
    from pytest_rlperf.report.rows import verdict_label

    ones, others, verdicts = results_of(a), results_of(b), outcomes_of(b)
    return [
        Difference(
            key,
            ones.get(key),
            others.get(key),
            verdict_label(verdicts[key].verdict) if key in verdicts else "",
            _counters(ones.get(key), others.get(key)),
        )
        for key in keys
    ]


def _counters(one: Result | None, other: Result | None) -> str:
    """Return the exact counts that differ, in words."""
    from pytest_rlperf.judge.counters import EVERY, compare
    from pytest_rlperf.report.wording import changes_text

    if one is None or other is None or one.counting is None or other.counting is None:
        return ""
    return changes_text(compare(one.counting, other.counting, EVERY))


def _origin(recorded: Recorded) -> str:
    """Return the date and commit of a file's figures, the latest where there are several."""
    provenances = provenances_of(recorded)
    if not provenances:
        return ""
    latest = provenances[-1]
    code = "" if latest.commit is None else f", commit {latest.commit[:12]}"
    return f"  ({latest.created.partition('T')[0]}{code}{', uncommitted changes' if latest.dirty else ''})"


def _surroundings(a: Recorded, b: Recorded) -> list[str]:
    """Return what else differs: machines and packages."""
    from pytest_rlperf.baseline.machine import differences

    lines = [f"machines differ: {each.field}: {each.one} / {each.other}" for each in differences(a.machine, b.machine)]
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


DIFF = Command(
    "diff", "Compare two runs or baselines test by test; no verdict is made of it.", _add_diff_arguments, _run_diff
)


# --------------------------------------------------------------------------- machine


def _add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a run's JSON or a baseline: its machine beside this one, or beside that of a second file",
    )


def _run_machine(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.baseline.machine import differences, slug, this_machine
    from pytest_rlperf.report.recorded import render_machines

    if len(arguments.files) > 2:
        parser.error("name two files at most: a machine is compared with one other")
    files = dict(zip("AB", map(read, arguments.files), strict=False))
    found = [each for name, (path, recorded) in files.items() for each in _machines(name, path, recorded)]
    machines = {name: machine for name, _, machine in found}
    if len(files) < 2:
        machines["this machine"] = this_machine()
    legend = [f"{name}  {source}\n" for name, source, _ in found]
    text = render_machines(machines, width=table_width())
    classes = [f"class of {name}: {slug(machine)}\n" for name, machine in machines.items()]
    comparison = ""
    if len(machines) == 2:
        names = [difference.field for difference in differences(*machines.values())]
        comparison = f"\nThey differ ({', '.join(names)}): {_DIFFER}\n" if names else f"\n{_EQUAL}\n"
    print_text("\n".join([*(["".join(legend)] if legend else []), text, "".join(classes)]) + comparison)
    return Exit.NOTHING_SLOWER


def _machines(name: str, path: str, recorded: Recorded) -> list[tuple[str, str, Machine]]:
    """Return a file's machine classes, each with a name and its source: of a merged run the parts measured there."""
    from pytest_rlperf.report.merge import machine_parts
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.run_json import RunFile

    parts = machine_parts(recorded) if isinstance(recorded, RunFile) else {}
    if len(parts) < 2:
        return [(name, shown(path), recorded.machine)]
    return [
        (f"{name}{number}", f"{shown(path)}: {listed([part.name for part in own])}", machine)
        for number, (machine, own) in enumerate(parts.items(), 1)
    ]


MACHINE = Command(
    "machine", "Show what identifies this machine, or how two machines differ.", _add_machine_arguments, _run_machine
)
