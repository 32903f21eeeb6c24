"""What GitHub's runner reads: workflow commands that annotate lines, and the outputs of a step."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_rlperf import units
from pytest_rlperf.model import Status
from pytest_rlperf.report.github_findings import Finding, ordered, overall
from pytest_rlperf.report.printable import shown_lines

MOST = 10  # GitHub shows no more of each level a step
_LEVELS = ("notice", "warning", "error")
_LONGEST_TITLE = 200


def annotation_lines(findings: Sequence[Finding], lines: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return workflow commands for what a person should look at, at most ten, and one that counts the others.

    ``lines`` has a test's file, as seen from the repository's root, and its line, by the test's key.
    """
    told = [(level, found) for found in ordered(findings) if (level := _level(found)) is not None]
    told.sort(key=lambda entry: -_LEVELS.index(entry[0]))
    commands = [_annotation(level, found, lines.get(found.key)) for level, found in told[:MOST]]
    if len(told) > MOST:
        used = [level for level, _ in told[:MOST]]
        rest = f"and {units.counted(len(told) - MOST, 'more test')}: see the job's summary"
        # Of one level GitHub shows ten at most, so the line about the others is of another.
        commands.append(command(min(_LEVELS, key=used.count), rest, title="pytest-rlperf"))
    return commands


def _level(found: Finding) -> str | None:
    """Return how loudly a test is to be told of, None where it is not."""
    if found.fails:
        return "error"
    if not found.gated:
        return None
    if found.status is Status.INVALID:
        return "warning"
    return "notice" if found.is_accepted else None


def _annotation(level: str, found: Finding, place: tuple[str, int] | None) -> str:
    word = "accepted" if found.is_accepted else found.status.value
    how = "by what it does" if found.by_counts else found.change_text
    title = f"{word} {how}".rstrip() + f": {found.name[:_LONGEST_TITLE]}"
    pace = "" if found.now_s is None else f"{units.seconds(found.now_s)} a call"
    if pace and found.was_s is not None:
        pace += f", was {units.seconds(found.was_s)}"
    message = "\n".join(part for part in (pace, found.message, found.blame) if part)
    if place is None:
        return command(level, message, title=title)
    return command(level, message, file=place[0], line=str(place[1]), title=title)


def command(level: str, message: str, **properties: str) -> str:
    """Return a workflow command, in one line whatever the text has in it; what is not printable is written out."""
    told = ",".join(f"{name}={_property(shown_lines(value))}" for name, value in properties.items())
    return f"::{level} {told}::{_data(shown_lines(message))}"


def _data(text: str) -> str:
    """Escape a message as the runner unescapes it: ``%``, carriage return and line feed."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, which ends at a comma or a colon."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def outputs(findings: Sequence[Finding], json: Path | None) -> dict[str, str]:
    """Return the step's outputs: the gravest verdict, how many tests there are of some, and where the JSON is."""
    return {
        "verdict": overall(findings),
        "tests": str(len(findings)),
        "slower": str(sum(found.fails and found.status is Status.SLOWER for found in findings)),
        "accepted": str(sum(found.is_accepted for found in findings)),
        "json": "" if json is None else str(json),
    }


def output_text(values: Mapping[str, str]) -> str:
    """Return outputs as the runner reads them from its file; no value can end early or begin another."""
    # A delimiter that nobody can know beforehand.
    delimiter = f"rlperf-{uuid.uuid4()}"
    return "".join(f"{name}<<{delimiter}\n{value}\n{delimiter}\n" for name, value in values.items())
