"""What a run tells GitHub Actions: a job summary, annotations at the tests' lines, and the outputs of its step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.model import Outcome
from pytest_rlperf.report.github_commands import annotation_lines, command, output_text, outputs
from pytest_rlperf.report.github_findings import Finding, finding
from pytest_rlperf.report.github_markdown import Page, render
from pytest_rlperf.report.summary import Summary

SUMMARY_BYTES = 1024 * 1024  # GitHub's limit for all that one step writes; over it nothing is shown
_FILES = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")


@dataclass(frozen=True)
class GitHubRun:
    """What GitHub is told beside the outcomes.

    ``command`` is the run's, as typed. ``lines`` has a test's file, as seen from the repository's root, and line, by
    its key. ``environment`` is what differs between then and now. ``unmeasured`` tells why tests have no figures, by
    their keys: "failed", or "skipped: " and the reason. ``json`` is where the run's JSON lies, if anywhere.
    """

    summary: Summary
    command: str
    lines: Mapping[str, tuple[str, int]]
    environment: Sequence[str]
    unmeasured: Mapping[str, str]
    strict: bool
    json: Path | None


def is_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def check_github(environ: Mapping[str, str]) -> list[str]:
    """Say what of GitHub's files cannot be written, before anything is measured; nothing outside GitHub Actions."""
    if not is_github(environ):
        return []
    return [trouble for name in _FILES if (trouble := _trouble(name, environ.get(name, "")))]


def write_github(environ: Mapping[str, str], outcomes: Sequence[Outcome], run: GitHubRun) -> list[str]:
    """Append the summary and the outputs to GitHub's files, and return the workflow commands to be printed.

    Does nothing outside GitHub Actions. A file that cannot be written is told by one of the commands.
    """
    if not is_github(environ):
        return []
    findings = [finding(outcome, strict=run.strict) for outcome in outcomes]
    commands = annotation_lines(findings, run.lines)
    for name in _FILES:
        path = environ.get(name, "")
        trouble = _trouble(name, path)
        if trouble:
            commands.append(command("warning", trouble, title="pytest-rlperf"))
            continue
        with Path(path).open("a", encoding="utf-8") as file:
            # What other commands of the step have written counts, too.
            room = SUMMARY_BYTES - file.tell()
            file.write(_summary(findings, run, room) if name == _FILES[0] else output_text(outputs(findings, run.json)))
    return commands


def render_summary_markdown(outcomes: Sequence[Outcome], run: GitHubRun, limit_bytes: int = SUMMARY_BYTES) -> str:
    """Return the job summary in Markdown, of at most ``limit_bytes`` in UTF-8."""
    return _summary([finding(outcome, strict=run.strict) for outcome in outcomes], run, limit_bytes)


def annotation_commands(
    outcomes: Sequence[Outcome], lines: Mapping[str, tuple[str, int]], *, strict: bool
) -> list[str]:
    """Return workflow commands that annotate the tests' lines: ten at most, and one that counts the others."""
    return annotation_lines([finding(outcome, strict=strict) for outcome in outcomes], lines)


def step_outputs(outcomes: Sequence[Outcome], json: Path | None, *, strict: bool) -> dict[str, str]:
    """Return the step's outputs: ``verdict``, ``tests``, ``slower``, ``accepted`` and ``json``."""
    return outputs([finding(outcome, strict=strict) for outcome in outcomes], json)


def place_of(path: Path, line: int, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return a file as seen from the repository's root, where it lies in it, with its line, counted from 1."""
    root = Path(environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    path = path.resolve()
    return (path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)), line


def _summary(findings: Sequence[Finding], run: GitHubRun, limit_bytes: int) -> str:
    summary = run.summary
    page = Page(
        findings=findings,
        unmeasured=run.unmeasured,
        compared=summary.origins,
        environment=run.environment,
        facts=[*(" ".join(note.split()) for note in summary.notes), summary.machine],
        command=run.command,
    )
    return render(page, limit_bytes)


def _trouble(name: str, path: str) -> str:
    """Say why one of GitHub's files cannot be written; empty where it can."""
    what = "job summary" if name == _FILES[0] else "step outputs"
    if not path:
        return f"GITHUB_ACTIONS is set, but not {name}: there will be no {what}"
    try:
        with Path(path).open("a", encoding="utf-8"):
            return ""
    except OSError as error:
        return f"{name}={path} cannot be written ({error.strerror}): there will be no {what}"
