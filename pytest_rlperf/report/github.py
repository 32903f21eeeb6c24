"""Reports a run to GitHub: a job summary in Markdown, annotations at the tests' lines, and the outputs of a step."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_rlperf.errors import shown_lines
from pytest_rlperf.model.judged import OPEN, Outcome, Status
from pytest_rlperf.report.summary import (
    Summary,
    advice,
    by_gravity,
    change_text,
    headline,
    is_plain,
    pace_text,
    settles_nothing,
)
from pytest_rlperf.report.table import EMOJI, GRAVEST_FIRST, Cell, Table
from pytest_rlperf.report.tables import (
    CHANGE,
    device_tables,
    is_accepted,
    phase_table,
    share_table,
    verdict_kind,
    verdict_label,
    verdict_table,
)
from pytest_rlperf.report.wording import (
    blame_text,
    message,
    more_work_text,
    open_text,
    phase_changes,
    phases_note,
)

SUMMARY_BYTES = 1024 * 1024  # GitHub's limit for one step's output; above it nothing is shown
COMMENT_BYTES = 65_000  # GitHub allows 65,536 characters, and the workflow adds a line
_FILES = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
_LONGEST_TITLE = 200
_FIRST = ("verdict", "test", CHANGE, "exact counts")
_LONGEST = 300  # characters of one name or message
_LONGEST_COMMAND = 2000
MOST_LINES = 20  # of a list or a block
_SAFE = frozenset(" ,.;/+-=%")
_INDENT = "&nbsp;" * 4


class GitHubRun(msgspec.Struct, frozen=True):
    """The parts of GitHub's reports beside the outcomes.

    ``command`` is the run's command as typed. ``lines`` has each test's file, relative to the repository's root, and
    its line, by the test's key. ``failed`` has the ids of tests and files that failed. ``against`` marks a run whose
    base the user named. ``json`` is the path of the run's JSON, if any. The run of a shard never ``summarizes``.
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
        """Return failures without a row of their own, for example a file that cannot be collected."""
        rows = {outcome.result.nodeid for outcome in outcomes if outcome.verdict.fails(self.strict)}
        return [key for key in sorted(self.failed) if key not in rows]

    def broken(self, outcomes: Sequence[Outcome]) -> int:
        """Return how many tests or files failed for a reason other than a comparison."""
        errors = sum(outcome.verdict.status is Status.ERROR for outcome in outcomes)
        return len(self.other_failures(outcomes)) + errors


def write_github(environ: Mapping[str, str], outcomes: Sequence[Outcome], run: GitHubRun) -> list[str]:
    """Append the summary and the outputs to GitHub's files, and return the workflow commands to be printed.

    This does nothing outside GitHub Actions. If a file cannot be written, a command warns of it.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return []
    commands = annotation_commands(outcomes, run.lines, strict=run.strict)
    for name in _FILES if run.summarizes else _FILES[1:]:
        path = environ.get(name, "")
        try:
            with Path(path).open("ab") as file:
                if name == _FILES[0]:
                    # The output of the step's other commands counts too.
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

    If that is too little, the summary leaves out tests, the worst last, and states how many. Without room for the
    headline there is no summary.
    """
    ordered = by_gravity(outcomes, strict=run.strict)
    most, is_whole = len(ordered), True
    while len((text := _page(ordered[:most], ordered, run, is_whole=is_whole)).encode()) > limit_bytes:
        if not is_whole:
            return ""
        most, is_whole = most // 2, most > 1
    return text


def place_of(path: Path, line: int, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return a file and its line, counted from 1; the path is relative to the repository's root, if inside it."""
    root = Path(environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    path = path.resolve()
    return (path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)), line


# --------------------------------------------------------------------------- the outputs of a step


def step_outputs(outcomes: Sequence[Outcome], json: Path | None, *, strict: bool) -> dict[str, str]:
    """Return the step's outputs: the worst verdict, the numbers of tests, and the path of the JSON."""
    slower = [outcome for outcome in outcomes if outcome.verdict.status is Status.SLOWER]
    return {
        "verdict": _gravest(outcomes),
        "tests": str(len(outcomes)),
        "slower": str(sum(outcome.verdict.fails(strict) for outcome in slower)),
        "accepted": str(sum(is_accepted(outcome.verdict) for outcome in outcomes)),
        "json": "" if json is None else str(json),
    }


def _gravest(outcomes: Sequence[Outcome]) -> str:
    """Return the worst verdict of the gated tests; accepted slowdowns are ``ACCEPTED``, and no tests are ``""``."""
    gated = [outcome for outcome in outcomes if outcome.verdict.gated]
    words = {"ACCEPTED" if is_accepted(outcome.verdict) else outcome.verdict.status.value for outcome in gated}
    order = [status.value for status in GRAVEST_FIRST]
    order.insert(order.index(Status.FASTER.value), "ACCEPTED")
    return next((word for word in order if word in words), "")


def _output_text(values: Mapping[str, str]) -> str:
    """Return outputs in the format of the runner's file; a value cannot end early or begin another one."""
    # A delimiter that nobody can know beforehand.
    delimiter = f"rlperf-{uuid.uuid4()}"
    return "".join(f"{name}<<{delimiter}\n{value}\n{delimiter}\n" for name, value in values.items())


# --------------------------------------------------------------------------- annotations


def annotation_commands(
    outcomes: Sequence[Outcome], lines: Mapping[str, tuple[str, int]], *, strict: bool
) -> list[str]:
    """Return a workflow command for each test that fails, the worst first: GitHub shows the first ten of a step.

    The annotation is at the changed line that the test runs, else at the test's own line. ``lines`` has each test's
    file, relative to the repository's root, and its line, by the test's key.
    """
    commands = []
    for outcome in by_gravity(outcomes, strict=strict):
        verdict = outcome.verdict
        if verdict.fails(strict):
            how = "(more work)" if verdict.by_counts else change_text(outcome)
            title = f"{verdict.status.value} {how}".rstrip() + f": {outcome.result.name[:_LONGEST_TITLE]}"
            text = "\n".join(filter(None, (pace_text(outcome), message(outcome), blame_text(outcome))))
            file, line = _changed_place(outcome) or lines.get(outcome.result.nodeid, ("", 0))
            place = {"file": file, "line": str(line)} if file else {}
            commands.append(command("error", text, **place, title=title))
    return commands


def _changed_place(outcome: Outcome) -> tuple[str, int] | None:
    """Return the first changed line that a test runs and a pull request shows; None if none is known."""
    parts = (each.part for each in outcome.touched)
    return next(((part.file, part.differs) for part in parts if part.differs and not part.is_gone), None)


def command(level: str, text: str, **properties: str) -> str:
    """Return a workflow command, always in one line; characters that are not printable are written out."""
    written = ",".join(f"{name}={_property(shown_lines(value))}" for name, value in properties.items())
    return f"::{level} {written}::{_data(shown_lines(text))}"


def _data(text: str) -> str:
    """Escape a message as the runner unescapes it: ``%``, carriage return and line feed."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, which ends at a comma or a colon."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# --------------------------------------------------------------------------- the page


def _page(shown: Sequence[Outcome], ordered: Sequence[Outcome], run: GitHubRun, *, is_whole: bool) -> str:
    """Return the page with some of the run's tests; if it is not whole, only the headline."""
    bad = run.broken(ordered) or any(outcome.verdict.fails(run.strict) for outcome in ordered)
    sign = "❌" if bad else "⚠️" if settles_nothing(ordered) else "✅"
    steps = advice(ordered, "pytest", saved=False, against=run.against)
    facts = [*(" ".join(note.split()) for note in run.summary.notes), *run.summary.machines]
    left_out = f"{len(ordered) - len(shown)} more tests are left out: GitHub does not allow a longer text."
    blocks = [
        f"## {sign} {escape(headline(ordered, run.broken(ordered), strict=run.strict))}",
        "<br>".join(f"Compared {escape(origin)}." for origin in run.summary.origins[:MOST_LINES]) if is_whole else "",
        *((_open(ordered, status) for status in OPEN) if is_whole else ()),
        grid(verdict_table(shown).leading(*_FIRST)),
        "" if all(outcome.verdict.gated for outcome in shown) else "&#42; shown, not gated",
        *(f"Next: {escape(step.effect)}:\n\n{fenced('text', step.lines)}" for step in steps if is_whole),
        "" if len(shown) == len(ordered) else f"**{left_out} The run's JSON has them all.**",
        *(_details(outcome) for outcome in shown if not is_plain(outcome)),
        listed("Not judged", [f"{code(key)}: failed" for key in run.other_failures(ordered)]) if is_whole else "",
        f"Run it again:\n\n{fenced('console', [run.command])}" if run.command and is_whole else "",
        f"<sub>{' · '.join(map(escape, facts[:MOST_LINES]))}</sub>" if facts and is_whole else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _open(outcomes: Sequence[Outcome], status: Status) -> str:
    """List the gated tests with a status such as UNDECIDED; those whose call does more work come first."""
    gated = [outcome for outcome in outcomes if outcome.verdict.gated and outcome.verdict.status is not Status.ERROR]
    found = sorted(
        (each for each in gated if each.verdict.status is status), key=lambda each: not each.verdict.more_work
    )
    lines = [": ".join(filter(None, (code(each.result.name), escape(more_work_text(each.verdict))))) for each in found]
    return listed(f"{EMOJI[status.value]} {escape(open_text(status, len(found), len(gated)))}", lines)


def _details(outcome: Outcome) -> str:
    """Return a test's reason, blame and phases, folded away below the line that names it."""
    verdict, blame = outcome.verdict, more_work_text(outcome.verdict) or blame_text(outcome)
    title = f"{EMOJI[verdict_kind(verdict)]} {verdict_label(verdict)} {code(outcome.result.name)}"
    if blame:
        title += f": {escape(blame)}"
    lines = [*message(outcome).splitlines(), *outcome.result.notes]
    sentences = [escape(line) for line in lines if line.strip()][:MOST_LINES]
    counts = listed("Exact counts that changed", [escape(text) for text in phase_changes(verdict.counters, None)])
    phases, note = phase_table(outcome), phases_note(outcome.result)
    tables = [
        f"{table.title}:\n\n{grid(table)}" for table in (share_table(outcome), *device_tables(outcome)) if table.rows
    ]
    parts = (code(outcome.result.nodeid), "<br>".join(sentences), counts, grid(phases), escape(note), *tables)
    text = "\n\n".join(part for part in parts if part)
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


# --------------------------------------------------------------------------- Markdown, from text that may be anybody's


def code(text: str) -> str:
    """Return text as code, in one line; GitHub does not look for mentions or references there."""
    return f"<code>{_entities(_one_line(text))}</code>"


def escape(text: str) -> str:
    """Return text as plain text, in one line: no markup, link, mention or reference."""
    # A space without width splits the words that GitHub looks for in the rendered text.
    return re.sub(r"(&#64;|&#35;|GH(?=-))", r"\1&#8203;", _entities(_one_line(text))).replace("www.", "www&#46;")


def grid(table: Table) -> str:
    """Return a table; the kinds of its cells are ``"code"``, ``"strong"`` and the values of statuses."""
    if not table.rows:
        return ""
    rows = [
        [column.title for column in table.columns],
        [":--" if column.align == "left" else "--:" for column in table.columns],
        *([_cell(cell) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cell(cell: Cell) -> str:
    if not cell.text:
        return ""
    text = code(cell.text) if cell.kind == "code" else escape(cell.text)
    if cell.kind in EMOJI:
        text = f"{EMOJI[cell.kind]} {text}"
    return f"{_INDENT * cell.depth}**{text}**" if cell.kind == "strong" else f"{_INDENT * cell.depth}{text}"


def fenced(language: str, lines: Sequence[str]) -> str:
    """Return lines as a block of code whose fence is longer than any fence in it."""
    text = "\n".join([*(_one_line(line, _LONGEST_COMMAND) for line in lines[:MOST_LINES]), *_more(lines)])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def listed(title: str, lines: Sequence[str]) -> str:
    """Return a list of lines, themselves Markdown, below a title; nothing if there are none."""
    if not lines:
        return ""
    return "\n".join([f"{title}:", "", *(f"- {line}" for line in [*lines[:MOST_LINES], *_more(lines)])])


def _more(lines: Sequence[str]) -> list[str]:
    return [f"… and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []


def _one_line(text: str, longest: int = _LONGEST) -> str:
    """Return text cut to a readable length; invisible characters and line breaks are spelt out."""
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _entities(text: str) -> str:
    return "".join(char if char.isalnum() or char in _SAFE or char > "\x7f" else f"&#{ord(char)};" for char in text)
