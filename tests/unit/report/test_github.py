"""A run's reports to GitHub: summary, annotations, outputs, and a comment from JSON that anybody may make."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import builders
import pytest
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.cli import main
from pytest_rlperf.cli.command import Exit
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.measured import CounterChange
from pytest_rlperf.model.stored import Machine
from pytest_rlperf.report.github import (
    COMMENT_BYTES,
    SUMMARY_BYTES,
    GitHubRun,
    annotation_commands,
    place_of,
    render_summary_markdown,
    step_outputs,
    write_github,
)
from pytest_rlperf.report.run_json import written
from pytest_rlperf.report.summary import Summary

HOSTILE = "test_x[a|b`c@everyone<img src=x>%0A::error::\n::warning::y</details>\x1b[31m\u202e#1]"
MACHINE = Machine("Linux", "x86_64", "Some CPU", 2, "CPython 3.11", 3)
SUMMARY = Summary(["Some CPU, 2 cores"], ["HEAD 1111 with main (merge base 2222), live"], ["a note\nof two lines"], [])


compared = partial(builders.compared, live=True)
SLOWER = compared("test_gae[128-8]", Status.SLOWER, 1.1, 110e-6)
SAME = compared("test_step", Status.SAME)
ERROR = compared("test_wrong", Status.ERROR, None)


def github_run(**changes: Any) -> GitHubRun:
    run = GitHubRun(
        summary=SUMMARY,
        command="pytest --rlperf-against=main",
        lines={SLOWER.result.nodeid: ("tests/test_perf.py", 6)},
        failed=(),
        against=True,
        strict=False,
        json=None,
    )
    return replace(run, **changes)


def document(*outcomes: Outcome) -> dict[str, Any]:
    tests = {entry.result.nodeid: entry for entry in outcomes}
    run = builders.run_document(MACHINE, tests, SUMMARY.origins, SUMMARY.notes, against="main")
    found: dict[str, Any] = json.loads(written(run))
    return found


def comment(directory: Path, capsys: pytest.CaptureFixture[str], run: object) -> tuple[int, str, str]:
    """Return the exit code and the output of the command that renders the comment on a run's JSON."""
    path = directory / "rlperf.json"
    path.write_text(json.dumps(run), encoding="utf-8")
    code = main(["show", "--format=github", str(path)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("outcomes", "changes", "sign"),
    [
        ([SAME, compared("a", Status.FASTER, 0.8)], {}, "✅"),
        ([SLOWER, compared("a", Status.SLOWER, 1.5)], {}, "❌"),
        ([compared("a", Status.SLOWER, 1.2, gated=False)], {}, "⚠️"),
        ([], {}, "⚠️"),
        ([compared("a", Status.UNDECIDED, 1.02), compared("b", Status.UNDECIDED, 1.01)], {}, "⚠️"),
        ([compared("a", Status.UNDECIDED, 1.02), compared("b", Status.INCOMPARABLE, None)], {}, "⚠️"),
        ([SAME, compared("b", Status.UNDECIDED, 1.02)], {}, "✅"),
        ([compared("a", Status.NEW, None)], {}, "✅"),
        ([SAME, SAME, compared("a", Status.SLOWER, 1.2, accepted=True)], {}, "✅"),
        ([SAME, compared("a", Status.SLOWER, 1.0, code="counters")], {}, "❌"),
        ([SAME, ERROR], {"failed": ["tests/b.py"]}, "❌"),
        ([SAME, ERROR], {"failed": [ERROR.result.nodeid]}, "❌"),
        ([SLOWER, ERROR], {"failed": [SLOWER.result.nodeid]}, "❌"),
        ([compared("a", Status.NEW, None)], {"strict": True}, "❌"),
    ],
)
def test_headline_is_the_run_in_a_sentence(
    outcomes: list[Outcome], changes: dict[str, Any], sign: str, wording: Wording
) -> None:
    """The first line says whether something is wrong, and what; never that all is well where a test failed."""
    first = shown(render_summary_markdown(outcomes, github_run(**changes)).partition("\n")[0])
    assert first.startswith(f"## {sign} ")
    assert first == wording


def test_what_has_no_verdict_is_said_above_the_table() -> None:
    """A green job names what may have got slower, that first of which a call does more."""
    more = compared("test_more", Status.UNDECIDED, 1.07, more_work=(CounterChange("", "ops:aten::all", 0, 1060),))
    ungated = compared("test_shown", Status.UNDECIDED, 1.02, gated=False)
    broken = compared("test_broken", Status.INVALID, None)
    tests = [SAME, compared("test_open", Status.UNDECIDED, 1.02), more, ungated, broken]
    text = shown(render_summary_markdown(tests, github_run()))
    assert text.startswith("## ✅ ")
    said = """⚠️ 2 of 4 gated tests are UNDECIDED, and may have got slower:

- <code>test_more</code>: a call does more: aten::all 0 → 1,060
- <code>test_open</code>

⚠️ 1 of 4 gated tests is INVALID, and may have got slower:

- <code>test_broken</code>

| verdict |"""
    assert said in text
    assert "UNDECIDED" not in shown(render_summary_markdown([SAME, SLOWER], github_run()))


def test_what_was_not_judged_is_said() -> None:
    """Failures without a verdict are listed."""
    text = render_summary_markdown([SAME], github_run(failed=["t*.py"]))
    assert "\n- <code>t&#42;.py</code>: failed" in text


def shown(markdown: str) -> str:
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), markdown)


def test_hostile_text_is_only_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids, messages, phases, notes and reasons make no markup, mention, reference, link, line or command."""
    evil = builders.everywhere(f"t.py::{HOSTILE} www.example.org https://example.org GH-1 $x$")
    summary = Summary([HOSTILE], [HOSTILE], [HOSTILE], [])
    run = github_run(summary=summary, failed=[HOSTILE])
    for text in (render_summary_markdown([evil], run), comment(tmp_path, capsys, document(evil))[1]):
        outside = re.sub(r"(?s)```.*?```", "", text)
        assert not re.search(r"[`@$\x1b\u202e]|<img", outside)
        assert set(re.findall(r"<[^>]*>", outside)) <= {
            "<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>", "<br>",
        }  # fmt: skip
        assert text.count("<details>") == text.count("</details>")
        rows = [line for line in outside.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} == {3, 7, 8}  # of the shares, the phases and the verdicts
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
        without_code = re.sub(r"<code>.*?</code>", "", outside)
        assert not re.search(r"(&#64;|&#35;)(?!&#8203;)|GH-|www\.|https?:", without_code)
        assert shown(HOSTILE).split("\n")[0].partition("\x1b")[0][:30] in shown(text).replace("\u200b", "")


def test_a_command_cannot_leave_its_block() -> None:
    """The fence is longer than any in the command."""
    text = render_summary_markdown([SAME], github_run(command="pytest -k '\n````\n<b>'"))
    assert "`````console\npytest -k '\\n````\\n<b>'\n`````\n" in text


def test_what_is_too_long_is_shortened_and_says_so(wording: Wording) -> None:
    """What fails is there to the last, and the headline; where there is no room for that, nothing is written."""
    outcomes = [*(compared(f"test_{number}", Status.SAME) for number in range(300)), SLOWER]
    text = render_summary_markdown(outcomes, github_run(), 20_000)
    assert 5_000 < len(text.encode()) <= 20_000
    assert "| ❌ SLOWER |" in text
    assert [line for line in text.splitlines() if "GitHub" in line] == wording
    assert render_summary_markdown(outcomes, github_run(), 300).startswith("## ❌ 1 of 301 ")
    assert render_summary_markdown(outcomes, github_run(), 50) == ""


def test_the_worst_text_still_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many tests with the longest names and messages, all to be escaped, stay within both limits."""
    name = "|" * 5000
    outcomes = [compared(f"{number}{name}", Status.SLOWER, 1.1, message=name) for number in range(60)]
    summary = Summary([name], [name] * 60, [name] * 60, [])
    run = github_run(summary=summary, failed=[f"{n}{name}" for n in range(60)])
    text = render_summary_markdown(outcomes, run)
    assert 1000 < len(text.encode()) <= SUMMARY_BYTES
    untrusted = document(*outcomes) | dict.fromkeys(("compared", "notes", "failed"), [name] * 60)
    _, text, _ = comment(tmp_path, capsys, untrusted)
    assert 1000 < len(text.encode()) <= COMMENT_BYTES
    assert text.startswith("## ❌ 60 of 60 ")


def test_annotations_name_file_and_line_in_one_command(wording: Wording) -> None:
    """A failed test is an error at its line, others are not there; no name ends the line or a property."""
    accepted = compared("test_sac", Status.SLOWER, 1.2, accepted=True)
    shown = compared("test_ppo", Status.SLOWER, 1.2, gated=False)
    assert annotation_commands([SAME, accepted, shown, SLOWER], github_run().lines, strict=False) == wording
    evil = compared(f"t.py::{HOSTILE}", Status.SLOWER, 1.2, message=HOSTILE)
    (command,) = annotation_commands([evil], {evil.result.nodeid: ("a,b:c\nd.py", 3)}, strict=False)
    assert len(command.splitlines()) == 1
    properties, _, message = command.removeprefix("::error ").partition("::")
    assert [part.partition("=")[0] for part in properties.split(",")] == ["file", "line", "title"]
    assert properties.startswith("file=a%2Cb%3Ac%0Ad.py,line=3,")
    assert "%250A::error::%0A::warning::y" in message


COMMANDS = (
    "::error file=a::x",
    "::set-output name=verdict::SAME",
    "##[error]x",
    "a ::stop-commands::x",
    "x\n::error::y",
)


def test_outputs_tell_the_gravest_verdict() -> None:
    """Later steps can go by the verdict, the counts and the file."""
    accepted = compared("a", Status.SLOWER, 1.2, accepted=True)
    new = compared("n", Status.NEW, None)
    found = step_outputs([SAME, SLOWER, accepted], Path("out/run.json"), strict=False)
    assert found == {"verdict": "SLOWER", "tests": "3", "slower": "1", "accepted": "1", "json": "out/run.json"}
    verdicts = [step_outputs(tests, None, strict=False)["verdict"] for tests in ([SAME, accepted], [SAME, new], [])]
    assert verdicts == ["ACCEPTED", "NEW", ""]


def environ(directory: Path) -> dict[str, str]:
    (directory / "summary.md").write_text("before\n", encoding="utf-8")
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(directory / "summary.md"),
        "GITHUB_OUTPUT": str(directory / "output"),
    }


def test_github_is_written_to_what_it_reads(tmp_path: Path) -> None:
    """The summary is appended to what other commands wrote, outputs stand between delimiters."""
    variables = environ(tmp_path)
    commands = write_github(variables, [SLOWER], github_run(json=Path("a\nslower=0")))
    assert [command.partition(" ")[0] for command in commands] == ["::error"]
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("before\n## ❌ 1 of 1 ")
    output = (tmp_path / "output").read_text(encoding="utf-8")
    assert re.search(r"(?m)^slower<<(\S+)\n1\n\1\n", output)
    assert re.search(r"(?m)^json<<(\S+)\na\nslower=0\n\1\n", output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("name", ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"])
def test_a_disk_that_fills_up_is_said(tmp_path: Path, name: str, wording: Wording) -> None:
    """The run ends with a warning, and the other file is written."""
    variables = environ(tmp_path)
    other = ({"GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"} - {name}).pop()
    variables[name] = "/dev/full"
    assert write_github(variables, [SAME], github_run())[:1] == wording
    assert Path(variables[other]).stat().st_size > 20


def test_places_are_seen_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub finds a file by its path in the repository, wherever below it pytest's rootdir lies."""
    path = tmp_path / "sub" / "test_a.py"
    assert place_of(path, 3, {"GITHUB_WORKSPACE": str(tmp_path)}) == ("sub/test_a.py", 3)
    monkeypatch.chdir(tmp_path)
    assert place_of(Path("sub/test_a.py"), 3, {}) == ("sub/test_a.py", 3)
    assert place_of(Path("/elsewhere/test_a.py"), 3, {}) == ("/elsewhere/test_a.py", 3)


def test_comment_is_the_summary_by_the_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rlperf show --format=github` says what the job's summary says, and knows of tests that failed otherwise."""
    code, text, _ = comment(tmp_path, capsys, document(SAME, SLOWER) | {"failed": ["tests/test_perf.py::test_other"]})
    assert code == Exit.SLOWER
    expected = github_run(failed=["tests/test_perf.py::test_other"], command="")
    summary = render_summary_markdown([SAME, SLOWER], expected)
    assert text.partition("<sub>")[0] == summary.partition("<sub>")[0]
    assert MACHINE.cpu in text.partition("<sub>")[2]
