"""Reports a run to GitHub: a job summary in Markdown, annotations at the tests' lines, and the outputs of a step."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf import units
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.markdown import MOST_LINES, code, escape, fenced, folded, grid, listed
from pytest_rlperf.report.printable import shown_lines
from pytest_rlperf.report.statuses import EMOJI, GRAVEST_FIRST
from pytest_rlperf.report.summary import NextStep, Summary, acceptance, by_gravity, change_text, headline, now_s, was_s
from pytest_rlperf.report.tables import (
    device_tables,
    is_accepted,
    phase_table,
    share_table,
    verdict_kind,
    verdict_label,
    verdict_table,
)
from pytest_rlperf.report.wording import (
    SAVING,
    blame_text,
    count_text,
    improved,
    message,
    phases_note,
)

SUMMARY_BYTES = 1024 * 1024  # GitHub's limit for all that one step writes; over it nothing is shown
COMMENT_BYTES = 65_000  # GitHub allows 65,536 characters, of which the workflow adds a line
_FILES = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
_LONGEST_TITLE = 200
_FIRST = ("verdict", "test", "change", "since_first", "counts")


@dataclass(frozen=True)
class GitHubRun:
    """The parts of GitHub's reports beside the outcomes.

    ``command`` is the run's, as typed. ``lines`` has a test's file, as seen from the repository's root, and line, by
    its key. ``failed`` has the ids of tests and files that failed. ``against`` marks a run whose base the user named.
    ``json`` is where the run's JSON lies, if anywhere. The run of a shard never ``summarizes``.
    """

    summary: Summary
    command: str
    lines: Mapping[str, tuple[str, int]]
    failed: Collection[str]
    against: bool
    strict: bool
    json: Path | None
    summarizes: bool = True

    def other_failures(self, outcomes: Iterable[Outcome]) -> list[str]:
        """Return what failed and has no row of its own, such as a file that cannot be collected."""
        rows = {outcome.result.nodeid for outcome in outcomes if outcome.verdict.fails(self.strict)}
        return [key for key in sorted(self.failed) if key not in rows]

    def broken(self, outcomes: Sequence[Outcome]) -> int:
        """Return how many tests or files failed otherwise than by a comparison."""
        errors = sum(outcome.verdict.status is Status.ERROR for outcome in outcomes)
        return len(self.other_failures(outcomes)) + errors


def is_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def write_github(environ: Mapping[str, str], outcomes: Sequence[Outcome], run: GitHubRun) -> list[str]:
    """Append the summary and the outputs to GitHub's files, and return the workflow commands to be printed.

    Does nothing outside GitHub Actions. A command warns of a file that cannot be written.
    """
    if not is_github(environ):
        return []
    commands = annotation_commands(outcomes, run.lines, strict=run.strict)
    for name in _FILES if run.summarizes else _FILES[1:]:
        path = environ.get(name, "")
        try:
            with Path(path).open("ab") as file:
                if name == _FILES[0]:
                    # The output of the step's other commands counts, too.
                    text = render_summary_markdown(outcomes, run, SUMMARY_BYTES - file.tell())
                else:
                    text = _output_text(step_outputs(outcomes, run.json, strict=run.strict))
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            trouble = f"{name}={path} cannot be written ({error.strerror or error})"
            commands.append(command("warning", trouble, title="pytest-rlperf"))
    return commands


def render_summary_markdown(outcomes: Sequence[Outcome], run: GitHubRun, limit_bytes: int = SUMMARY_BYTES) -> str:
    """Return the job summary in Markdown, of at most ``limit_bytes`` in UTF-8.

    Where that is too little, the summary leaves out first details of tests, then tests, the gravest last of all, and
    states how many. Where there is no room for the headline there is no summary.
    """
    ordered = by_gravity(outcomes, strict=run.strict)
    for tests, detailed, with_rest in _sizes(len(ordered)):
        text = _page(ordered, run, tests, detailed, with_rest=with_rest)
        if len(text.encode()) <= limit_bytes:
            return text
    return ""


def place_of(path: Path, line: int, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return a file as seen from the repository's root, where it lies in it, with its line, counted from 1."""
    root = Path(environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    path = path.resolve()
    return (path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)), line


# --------------------------------------------------------------------------- the outputs of a step


def step_outputs(outcomes: Sequence[Outcome], json: Path | None, *, strict: bool) -> dict[str, str]:
    """Return the step's outputs: the gravest verdict, how many tests there are of some, and where the JSON is."""
    slower = [outcome for outcome in outcomes if outcome.verdict.status is Status.SLOWER]
    return {
        "verdict": _gravest(outcomes),
        "tests": str(len(outcomes)),
        "slower": str(sum(outcome.verdict.fails(strict) for outcome in slower)),
        "accepted": str(sum(is_accepted(outcome.verdict) for outcome in outcomes)),
        "json": "" if json is None else str(json),
    }


def _gravest(outcomes: Sequence[Outcome]) -> str:
    """Return the gravest verdict of the gated tests; accepted slowdowns are ``ACCEPTED``, none is ``""``."""
    gated = [outcome for outcome in outcomes if outcome.verdict.gated]
    words = {"ACCEPTED" if is_accepted(outcome.verdict) else outcome.verdict.status.value for outcome in gated}
    order = [status.value for status in GRAVEST_FIRST]
    order.insert(order.index(Status.FASTER.value), "ACCEPTED")
    return next((word for word in order if word in words), "")


def _output_text(values: Mapping[str, str]) -> str:
    """Return outputs as the runner reads them from its file; no value can end early or begin another."""
    # A delimiter that nobody can know beforehand.
    delimiter = f"rlperf-{uuid.uuid4()}"
    return "".join(f"{name}<<{delimiter}\n{value}\n{delimiter}\n" for name, value in values.items())


# --------------------------------------------------------------------------- annotations


def annotation_commands(
    outcomes: Sequence[Outcome], lines: Mapping[str, tuple[str, int]], *, strict: bool
) -> list[str]:
    """Return a workflow command for each test that fails, the gravest first: GitHub shows the first ten of a step.

    ``lines`` has a test's file, as seen from the repository's root, and its line, by the test's key.
    """
    failing = [outcome for outcome in by_gravity(outcomes, strict=strict) if outcome.verdict.fails(strict)]
    return [_annotation(outcome, lines.get(outcome.result.nodeid)) for outcome in failing]


def command(level: str, text: str, **properties: str) -> str:
    """Return a workflow command, in one line whatever the text has in it; what is not printable is written out."""
    written = ",".join(f"{name}={_property(shown_lines(value))}" for name, value in properties.items())
    return f"::{level} {written}::{_data(shown_lines(text))}"


def _annotation(outcome: Outcome, place: tuple[str, int] | None) -> str:
    verdict = outcome.verdict
    how = "by what it does" if verdict.by_counts else change_text(outcome)
    title = f"{verdict.status.value} {how}".rstrip() + f": {outcome.result.name[:_LONGEST_TITLE]}"
    now, was = now_s(outcome), was_s(outcome)
    pace = "" if now is None else f"{units.seconds(now)} a call"
    if pace and was is not None:
        pace += f", was {units.seconds(was)}"
    text = "\n".join(part for part in (pace, message(outcome), blame_text(outcome)) if part)
    if place is None:
        return command("error", text, title=title)
    return command("error", text, file=place[0], line=str(place[1]), title=title)


def _data(text: str) -> str:
    """Escape a message as the runner unescapes it: ``%``, carriage return and line feed."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, which ends at a comma or a colon."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# --------------------------------------------------------------------------- the page


def _sizes(total: int) -> Iterator[tuple[int, int, bool]]:
    """Yield how many tests to show, how many of them with details, and whether with the rest, from all to nothing."""
    tests = detailed = total
    yield tests, detailed, True
    while tests:
        if detailed:
            detailed //= 2
        else:
            tests //= 2
        yield tests, detailed, True
    yield 0, 0, False


def _page(ordered: Sequence[Outcome], run: GitHubRun, tests: int, detailed: int, *, with_rest: bool) -> str:
    gated = [outcome for outcome in ordered[:tests] if outcome.verdict.gated]
    others = [outcome for outcome in ordered[:tests] if not outcome.verdict.gated]
    accepting = acceptance(ordered, "pytest", against=run.against)
    bad = run.broken(ordered) or any(outcome.verdict.fails(run.strict) for outcome in ordered)
    blocks = [
        f"## {'❌' if bad else '✅'} {escape(headline(ordered, run.broken(ordered), strict=run.strict))}",
        "<br>".join(f"Compared {escape(origin)}." for origin in run.summary.origins[:MOST_LINES]) if with_rest else "",
        escape(_advice(ordered, run, accepting)),
        escape(_improvements(ordered)),
        *(fenced("text", step.lines) for step in accepting if with_rest),
        grid(verdict_table(gated).leading(*_FIRST)),
        _left_out(len(ordered), tests, detailed),
        _accepted(ordered[:tests]),
        *(_details(outcome) for outcome in ordered[:detailed] if _has_details(outcome)),
        folded("Not gated: these fail nothing", grid(verdict_table(others).leading(*_FIRST))),
        folded("Phases of the other tests", _other_phases(ordered[:detailed])),
        *(_rest(ordered, run) if with_rest else []),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _rest(outcomes: Sequence[Outcome], run: GitHubRun) -> list[str]:
    """Return the blocks about the run rather than its tests' verdicts."""
    facts = [*(" ".join(note.split()) for note in run.summary.notes), *run.summary.machines]
    small = [escape(fact) for fact in facts[:MOST_LINES]]
    return [
        listed("Not judged", [f"{code(key)}: failed" for key in run.other_failures(outcomes)]),
        f"Run it again:\n\n{fenced('console', [run.command])}" if run.command else "",
        f"<sub>{' · '.join(small)}</sub>" if small else "",
    ]


def _left_out(total: int, tests: int, detailed: int) -> str:
    """Return what was left out to keep within GitHub's size."""
    reason = "GitHub allows no longer text. The run's JSON has them all."
    if tests < total:
        return f"**{total - tests} more tests are left out: {reason}**"
    if detailed < total:
        return f"**The details of {units.counted(total - detailed, 'test')} are left out: {reason}**"
    return ""


def _accepted(outcomes: Sequence[Outcome]) -> str:
    """Return why slower tests were accepted."""
    accepted = [
        (outcome.result.name, "; ".join(message(outcome).splitlines()))
        for outcome in outcomes
        if is_accepted(outcome.verdict)
    ]
    return listed("Slower on purpose", [f"{code(name)}: {escape(why)}" for name, why in accepted])


# --------------------------------------------------------------------------- the run in a sentence


def _advice(ordered: Sequence[Outcome], run: GitHubRun, accepting: Sequence[NextStep]) -> str:
    """Return what to do about it, in one sentence without markup; empty where there is nothing to do."""
    failing = [outcome for outcome in ordered if outcome.verdict.fails(run.strict)]
    if any(outcome.verdict.status is Status.SLOWER for outcome in failing):
        where = "counts and other findings" if all(one.verdict.by_counts for one in failing) else "phases that carry it"
        steps = "".join(f"; {step.effect}, as below" for step in accepting)
        return f"Look at the {where} below, and make it as fast as it was{steps}."
    if run.broken(ordered):
        return "Read the failures in the job's log."
    if failing:
        return "Read why below: --rlperf-strict lets only SAME and FASTER pass."
    if any(outcome.verdict.status is Status.UNDECIDED and outcome.verdict.gated for outcome in ordered):
        return "Nothing has to be done; UNDECIDED tests show below which slowdown they would have found."
    return ""


def _improvements(outcomes: Sequence[Outcome]) -> str:
    """Return how to store what got faster than its baseline; empty where nothing did."""
    faster = [one for one in outcomes if one.verdict.status is Status.FASTER and one.baseline is not None]
    return f"{improved(len(faster))}, with {SAVING}." if faster else ""


# --------------------------------------------------------------------------- tests


def _has_details(outcome: Outcome) -> bool:
    """Whether a test's reason is worth a place of its own."""
    verdict = outcome.verdict
    return verdict.status is not Status.SAME or bool(outcome.result.notes or verdict.counters or verdict.findings)


def _details(outcome: Outcome) -> str:
    """Return a test's reason, blame and phases, folded away below the line that names it."""
    verdict, blame = outcome.verdict, blame_text(outcome)
    title = f"{EMOJI[verdict_kind(verdict)]} {verdict_label(verdict)} {code(outcome.result.name)}"
    if blame:
        title += f": {escape(blame)}"
    lines = [*message(outcome).splitlines(), *outcome.result.notes]
    sentences = [escape(line) for line in lines if line.strip()][:MOST_LINES]
    counts = listed("Exact counts that changed", [escape(count_text(change)) for change in outcome.verdict.counters])
    parts = (code(outcome.result.nodeid), "<br>".join(sentences), counts, _phases(outcome), *_other_tables(outcome))
    return folded(title, "\n\n".join(part for part in parts if part))


def _other_tables(outcome: Outcome) -> list[str]:
    """Return where the time goes, and the figures on a device."""
    return [
        f"{table.title}:\n\n{grid(table)}" for table in (share_table(outcome), *device_tables(outcome)) if table.rows
    ]


def _other_phases(outcomes: Sequence[Outcome]) -> str:
    """Return the phases of tests that have no details."""
    found = [(outcome, _phases(outcome)) for outcome in outcomes if not _has_details(outcome)]
    return "\n\n".join(f"{code(outcome.result.name)}\n\n{phases}" for outcome, phases in found if phases)


def _phases(outcome: Outcome) -> str:
    table, note = phase_table(outcome), phases_note(outcome.result)
    return "\n\n".join(part for part in (grid(table), escape(note) if table.rows else "") if part)
