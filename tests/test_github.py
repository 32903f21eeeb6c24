"""A run's reports to GitHub: summary, annotations, outputs, and a comment from an artifact anybody may make."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import builders
import pytest

from pytest_rlperf.model import (
    Contribution,
    Live,
    Machine,
    Outcome,
    Phase,
    Status,
    TimerTree,
    Timing,
)
from pytest_rlperf.report.github import (
    SUMMARY_BYTES,
    GitHubRun,
    annotation_commands,
    check_github,
    place_of,
    render_summary_markdown,
    step_outputs,
    write_github,
)
from pytest_rlperf.report.github_comment import (
    ARTIFACT_BYTES,
    COMMENT_BYTES,
    MARKER,
    ArtifactError,
    comment_markdown,
    comment_of_zip,
    main,
    post_comment,
    unzip,
)
from pytest_rlperf.report.run_json import run_document, written
from pytest_rlperf.report.summary import Summary, continuing, reproducing, without_paths
from pytest_rlperf.report.terminal import render_summary
from pytest_rlperf.report.tree import render_tree

HOSTILE = "test_x[a|b`c@everyone<img src=x>%0A::error::\n::warning::y</details>\x1b[31m\u202e#1]"
MACHINE = Machine("Linux", "x86_64", "Some CPU", 2, "CPython 3.11", 3)
SUMMARY = Summary(["Some CPU, 2 cores"], ["HEAD 1111 with main (merge base 2222), live"], ["a note\nof two lines"], [])


def outcome(
    name: str,
    status: Status,
    ratio: float | None = 1.0,
    message: str = "4 live pairs: why",
    code: str = "live",
    *,
    gated: bool = True,
    accepted: bool = False,
) -> Outcome:
    """Return an outcome of live pairs: 100 µs a call times ``ratio``, all that changed in one phase."""
    base_s = 100e-6
    call_s = base_s * (ratio or 1.0)
    worker = builders.worker(call_s, 0.0)
    phases = (Phase("gae", 1.0, call_s, 0.0, "host"), Phase("gae/scan", 1.0, call_s, call_s, "host"))
    result = builders.result(f"tests/test_perf.py::{name}", workers=(worker,) * 4, phases=phases, traced_call_s=call_s)
    verdict = builders.verdict(status, code=code, message=message, smallest_seen=None, gated=gated, accepted=accepted)
    if ratio is None:
        return builders.outcome(result, verdict, seconds=1.0)
    pair = builders.pair(math.log(ratio), worker, worker)
    base = replace(result, workers=(builders.worker(base_s, 0.0),) * 4)
    change_s = call_s - base_s
    contributions = (Contribution("gae/scan", change_s),) if change_s else ()
    live = Live("main", "HEAD", base, (pair,) * 4, contributions, contributions)
    estimate = builders.estimate(ratio, high=ratio + 0.014, floor=ratio, ceiling=ratio)
    return builders.outcome(result, replace(verdict, estimate=estimate), live=live, seconds=1.0)


SLOWER = outcome("test_gae[128-8]", Status.SLOWER, 1.1)
SAME = outcome("test_step", Status.SAME)
ERROR = outcome("test_wrong", Status.ERROR, None, "the test failed: ComponentError: 2 advantages differ", "error")


def github_run(**changes: Any) -> GitHubRun:
    """Return what a run tells beside its outcomes."""
    run = GitHubRun(
        summary=SUMMARY,
        command="pytest --rlperf-against=main",
        lines={SLOWER.result.nodeid: ("tests/test_perf.py", 6)},
        environment=["numpy 1 → 2"],
        skipped={},
        failed=(),
        strict=False,
        json=None,
    )
    return replace(run, **changes)


def document(*outcomes: Outcome) -> dict[str, Any]:
    """Return the run's JSON, as it is after it was written and read."""
    tests = {entry.result.nodeid: entry for entry in outcomes}
    found: dict[str, Any] = json.loads(written(run_document(MACHINE, tests, SUMMARY.origins, SUMMARY.notes)))
    return found


# --------------------------------------------------------------------------- the summary


def test_summary_to_the_letter() -> None:
    """The headline, what to do, the table, what is folded away, and the command."""
    text = render_summary_markdown([SAME, SLOWER], github_run())
    assert text == (
        "## ❌ 1 of 2 gated tests got slower&#58; test&#95;gae&#91;128-8&#93; +10.0 % "
        "&#40;110 µs a call, was 100 µs&#41;\n\n"
        "Compared HEAD 1111 with main &#40;merge base 2222&#41;, live.\n\n"
        "Look at the phases that carry it below, and make it as fast as it was; if the slowdown is intended, "
        "accept it in a commit message, with the line below.\n\n"
        "```text\nRlperf-Accept: test_gae* <= +12% the reason\n```\n\n"
        "| verdict | test | change | 99 % interval | was | now |\n"
        "| :-- | :-- | --: | --: | --: | --: |\n"
        "| ❌ SLOWER | <code>test&#95;gae&#91;128-8&#93;</code> | **+10.0 %** | +9.0 % to +11.4 % | 100 µs | 110 µs |\n"
        "| ✅ SAME | <code>test&#95;step</code> | **+0.0 %** | -1.0 % to +1.4 % | 100 µs | 100 µs |\n\n"
        "<details><summary>❌ SLOWER <code>test&#95;gae&#91;128-8&#93;</code>: "
        "gae/scan +10 of +10 µs a call</summary>\n\n"
        "<code>tests/test&#95;perf.py&#58;&#58;test&#95;gae&#91;128-8&#93;</code>\n\n"
        "4 live pairs&#58; why\n\n"
        "| phase | was | now | adds to the change | share of a call | entries a call |\n"
        "| :-- | --: | --: | --: | --: | --: |\n"
        "| gae | 110 µs | 110 µs |  | 100 % | 1 |\n"
        "| &nbsp;&nbsp;&nbsp;&nbsp;scan | 110 µs | 110 µs | **+10.0 µs** | 100 % | 1 |\n\n"
        "</details>\n\n"
        "<details><summary>Phases of the other tests</summary>\n\n"
        "<code>test&#95;step</code>\n\n"
        "| phase | was | now | adds to the change | share of a call | entries a call |\n"
        "| :-- | --: | --: | --: | --: | --: |\n"
        "| gae | 100 µs | 100 µs |  | 100 % | 1 |\n"
        "| &nbsp;&nbsp;&nbsp;&nbsp;scan | 100 µs | 100 µs |  | 100 % | 1 |\n\n"
        "</details>\n\n"
        "What differs from then:\n\n- numpy 1 → 2\n\n"
        "Run it again:\n\n```console\npytest --rlperf-against=main\n```\n\n"
        "<sub>a note of two lines · Some CPU, 2 cores</sub>\n"
    )


@pytest.mark.parametrize(
    ("outcomes", "changes", "headline"),
    [
        ([SAME, outcome("a", Status.FASTER, 0.8)], {}, "✅ No gated test got slower: 1 FASTER, 1 SAME"),
        ([SLOWER, outcome("a", Status.SLOWER, 1.5)], {}, "❌ 2 of 2 gated tests got slower, most of all a +50.0 % "),
        ([outcome("a", Status.SLOWER, 1.2, gated=False)], {}, "✅ No gated test was measured"),
        (
            [SAME, SAME, outcome("a", Status.SLOWER, 1.2, accepted=True)],
            {},
            "✅ Nothing got slower but on purpose: 2 SAME, 1 accepted",
        ),
        (
            [SAME, outcome("a", Status.SLOWER, 1.0, code="counters")],
            {},
            "❌ 1 of 2 gated tests got slower: a does more in a call than it did",
        ),
        ([SAME, ERROR], {"failed": ["tests/b.py"]}, "❌ 2 tests failed, but no gated test got slower"),
        ([SAME, ERROR], {"failed": [ERROR.result.nodeid]}, "❌ 1 test failed, but no gated test got slower"),
        ([SAME], {"skipped": {"tests/b": "no GPU"}}, "✅ No gated test got slower: 1 SAME"),
        (
            [SLOWER, ERROR],
            {"failed": [SLOWER.result.nodeid]},
            "❌ 1 of 1 gated tests got slower: test_gae[128-8] +10.0 % (110 µs a call, was 100 µs); 1 test failed",
        ),
        (
            [outcome("a", Status.NEW, None)],
            {"strict": True},
            "❌ 1 of 1 gated tests cannot be called as fast as before, and this run is strict",
        ),
    ],
)
def test_headline_is_the_run_in_a_sentence(outcomes: list[Outcome], changes: dict[str, Any], headline: str) -> None:
    """The first line says whether something is wrong, and what; never that all is well where a test failed."""
    first = render_summary_markdown(outcomes, github_run(**changes)).partition("\n")[0]
    assert shown(first).startswith(f"## {headline}")


def test_what_is_accepted_is_listed_with_its_reason() -> None:
    """The summary lists the accepted slowdowns, with their reasons."""
    text = render_summary_markdown(
        [outcome("a", Status.SLOWER, 1.2, "over 3 %; two critics now", accepted=True)], github_run()
    )
    assert "Slower on purpose:\n\n- <code>a</code>: over 3 %; two critics now\n" in text
    assert "| ☑️ accepted |" in text
    assert "Rlperf-Accept" not in text


def test_what_is_not_gated_fails_nothing() -> None:
    """A slower test that is not gated is folded away, without the sign of a failure."""
    text = render_summary_markdown([SAME, outcome("a", Status.SLOWER, 1.2, gated=False)], github_run())
    gated, _, others = text.partition("<details><summary>Not gated: these fail nothing</summary>")
    assert "| ⚠️ SLOWER | <code>a</code>" in others
    assert "| ⚠️ SLOWER |" not in gated
    assert "❌" not in text


def test_what_was_not_judged_is_said() -> None:
    """Skips and failures without a verdict are listed with the reason."""
    text = render_summary_markdown([SAME], github_run(skipped={"t::b": "no *GPU*"}, failed=["t.py"]))
    assert "Not judged:\n\n- <code>t&#58;&#58;b</code>: skipped: no &#42;GPU&#42;\n- <code>t.py</code>: failed" in text


def shown(markdown: str) -> str:
    """Return Markdown as a reader sees it, as far as it is entities."""
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), markdown)


def test_hostile_text_is_only_text() -> None:
    """Ids, messages, phases, notes and reasons make no markup, mention, reference, link, line or command."""
    evil = outcome(HOSTILE, Status.SLOWER, 1.2, f"{HOSTILE} www.example.org https://example.org GH-1 $x$")
    evil = replace(
        evil, result=replace(evil.result, phases=(Phase(HOSTILE, 1.0, 1e-4, 1e-4, "host"),), notes=(HOSTILE,))
    )
    assert evil.live is not None
    named = (Contribution(HOSTILE, 2e-5),)
    evil = replace(evil, live=replace(evil.live, contributions=named, carriers=named))
    summary = Summary([HOSTILE], [HOSTILE], [HOSTILE], [])
    run = github_run(summary=summary, environment=[HOSTILE], skipped={HOSTILE: HOSTILE})
    for text in (render_summary_markdown([evil], run), comment_markdown(document(evil))):
        outside = re.sub(r"(?s)```.*?```", "", text).removeprefix(MARKER)
        assert not re.search(r"[`@$\x1b\u202e]|<img|www\.|https?:", outside)
        assert set(re.findall(r"<[^>]*>", outside)) <= {
            "<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>", "<br>",
        }  # fmt: skip
        assert text.count("<details>") == text.count("</details>")
        rows = [line for line in outside.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} == {7}
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
        without_code = re.sub(r"<code>.*?</code>", "", outside)
        assert not re.search(r"(&#64;|&#35;)(?!&#8203;)|GH-", without_code)
        assert shown(HOSTILE).split("\n")[0].partition("\x1b")[0][:30] in shown(text).replace("\u200b", "")


def test_a_command_cannot_leave_its_block() -> None:
    """The fence around the command is longer than any in it."""
    text = render_summary_markdown([SAME], github_run(command="pytest -k '\n````\n<b>'"))
    assert "`````console\npytest -k '\\n````\\n<b>'\n`````\n" in text


@pytest.mark.parametrize(("limit", "says"), [(60_000, "The details of"), (20_000, "more tests are left out")])
def test_what_is_too_long_is_shortened_and_says_so(limit: int, says: str) -> None:
    """Details go first, then tests; what fails is there to the last."""
    outcomes = [*(outcome(f"test_{number}", Status.SAME) for number in range(300)), SLOWER]
    text = render_summary_markdown(outcomes, github_run(), limit)
    assert limit / 4 < len(text.encode()) <= limit
    assert says in text
    assert "GitHub allows no longer text" in text
    assert "| ❌ SLOWER |" in text


def test_without_room_there_is_the_headline_or_nothing() -> None:
    """However little room earlier commands of the step have left, no more is written."""
    text = render_summary_markdown([SLOWER] * 50, github_run(), 900)
    assert text.startswith("## ❌ 50 of 50 gated tests got slower")
    assert "50 more tests are left out" in text
    assert render_summary_markdown([SLOWER], github_run(), 50) == ""


def test_the_worst_text_still_fits() -> None:
    """Thousands of tests with the longest names and messages, all to be escaped, stay within both limits."""
    name = "|" * 5000
    outcomes = [outcome(f"{number}{name}", Status.SLOWER, 1.1, name) for number in range(200)]
    summary = Summary([name], [name] * 500, [name] * 500, [])
    run = github_run(summary=summary, environment=[name] * 500, failed=[f"{n}{name}" for n in range(500)])
    text = render_summary_markdown(outcomes, run)
    assert 1000 < len(text.encode()) <= SUMMARY_BYTES
    untrusted = document(*outcomes) | {"compared": [name] * 500, "notes": [name] * 500, "failed": [name] * 500}
    comment = comment_markdown(untrusted)
    assert 1000 < len(comment.encode()) <= COMMENT_BYTES
    assert comment.startswith(f"{MARKER}\n## ❌ 200 of 200 gated tests got slower")


# --------------------------------------------------------------------------- annotations, outputs, files


def test_annotations_name_file_and_line() -> None:
    """A failed test is an error at its line; one that passes, is accepted or not gated has no annotation."""
    accepted = outcome("test_sac", Status.SLOWER, 1.2, "over 3 %", accepted=True)
    shown = outcome("test_ppo", Status.SLOWER, 1.2, gated=False)
    assert annotation_commands([SAME, accepted, shown, SLOWER], github_run().lines, strict=False) == [
        "::error file=tests/test_perf.py,line=6,title=SLOWER +10.0 %25%3A test_gae[128-8]::"
        "110 µs a call, was 100 µs%0A4 live pairs: why%0Agae/scan +10 of +10 µs a call",
    ]


def test_only_a_strict_run_has_errors_for_what_is_not_slower() -> None:
    """A test without a verdict is an error where the run insists on one, and else not worth a line."""
    outcomes = [outcome("a", Status.NEW, None), outcome("b", Status.INVALID, None)]
    assert [line.split(" ")[0] for line in annotation_commands(outcomes, {}, strict=True)] == ["::error", "::error"]
    assert annotation_commands(outcomes, {}, strict=False) == []


def test_the_largest_slowdowns_are_annotated_first() -> None:
    """GitHub shows the first ten of a step."""
    outcomes = [outcome(f"test_{number}", Status.SLOWER, 1.1 + number / 100) for number in range(15)]
    commands = annotation_commands(outcomes, {}, strict=False)
    assert [re.findall(r"test_\d+", command)[0] for command in commands] == [f"test_{n}" for n in range(14, -1, -1)]


def test_an_annotation_is_one_command() -> None:
    """Whatever an id, a message or a file's name holds, it ends neither the line nor a property."""
    evil = outcome(HOSTILE, Status.SLOWER, 1.2, HOSTILE)
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


@pytest.mark.parametrize("name", [*COMMANDS, HOSTILE])
@pytest.mark.parametrize("color", [True, False])
@pytest.mark.parametrize("width", [30, 80])
def test_a_name_commands_no_runner(name: str, color: bool, width: int) -> None:
    """Phases, tests and notes of any name begin no line of the log as the runner's commands do."""
    phase = replace(SLOWER.result.phases[0], path=name)
    result = replace(SLOWER.result, phases=(phase,), nodeid=f"t.py::test_x[{name}]", component=name)
    shown = replace(SLOWER, result=result, verdict=builders.verdict(Status.SLOWER, 1.1, message=f"why {name}"))
    summary = Summary([name], [name], [name, f"{name} " * 10], [])
    text = render_summary([shown, SAME], summary, width=width, color=color, verbose=True)
    text += render_tree(TimerTree(Timing(name, 1, 1000, children=(Timing(name, 1, 500),))), width=width)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.split("\n")]
    assert len(lines) > 10
    assert not [line for line in lines if line.startswith("::") or "##[" in line]


def test_outputs_tell_the_gravest_verdict() -> None:
    """Later steps can go by the verdict, the counts and the file."""
    accepted = outcome("a", Status.SLOWER, 1.2, accepted=True)
    new = outcome("n", Status.NEW, None)
    found = step_outputs([SAME, SLOWER, accepted], Path("out/run.json"), strict=False)
    assert found == {"verdict": "SLOWER", "tests": "3", "slower": "1", "accepted": "1", "json": "out/run.json"}
    verdicts = [step_outputs(tests, None, strict=False)["verdict"] for tests in ([SAME, accepted], [SAME, new], [])]
    assert verdicts == ["ACCEPTED", "NEW", ""]


def environ(directory: Path) -> dict[str, str]:
    """Return what GitHub sets, with files for what a step writes."""
    (directory / "summary.md").write_text("before\n", encoding="utf-8")
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(directory / "summary.md"),
        "GITHUB_OUTPUT": str(directory / "output"),
    }


def test_github_is_written_to_what_it_reads(tmp_path: Path) -> None:
    """The summary is appended to what other commands wrote, outputs stand between delimiters."""
    variables = environ(tmp_path)
    assert check_github(variables) == []
    commands = write_github(variables, [SLOWER], github_run(json=Path("a\nslower=0")))
    assert [command.partition(" ")[0] for command in commands] == ["::error"]
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("before\n## ❌ 1 of 1 gated tests")
    output = (tmp_path / "output").read_text(encoding="utf-8")
    assert re.search(r"(?m)^slower<<(\S+)\n1\n\1\n", output)
    assert re.search(r"(?m)^json<<(\S+)\na\nslower=0\n\1\n", output)


def test_the_summary_leaves_others_their_room(tmp_path: Path) -> None:
    """GitHub's limit is for the whole step: a file that is almost full gets little, never too much."""
    variables = environ(tmp_path)
    (tmp_path / "summary.md").write_text("x" * (SUMMARY_BYTES - 1000), encoding="utf-8")
    write_github(variables, [SLOWER] * 100, github_run())
    assert SUMMARY_BYTES - 1000 < (tmp_path / "summary.md").stat().st_size <= SUMMARY_BYTES


def test_nothing_is_told_outside_github(tmp_path: Path) -> None:
    """A run elsewhere writes and says nothing."""
    variables = environ(tmp_path) | {"GITHUB_ACTIONS": ""}
    assert check_github(variables) == []
    assert write_github(variables, [SLOWER], github_run()) == []
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == "before\n"


def test_what_cannot_be_written_is_said_before_and_after(tmp_path: Path) -> None:
    """A summary that is missing or cannot be written is noted before measuring; the run ends all the same."""
    variables = environ(tmp_path) | {"GITHUB_STEP_SUMMARY": str(tmp_path)}
    del variables["GITHUB_OUTPUT"]
    troubles = check_github(variables)
    assert troubles == [
        f"GITHUB_STEP_SUMMARY={tmp_path} cannot be written (Is a directory): there will be no job summary",
        "GITHUB_ACTIONS is set, but not GITHUB_OUTPUT: there will be no step outputs",
    ]
    commands = write_github(variables, [SAME], github_run())
    assert commands == [f"::warning title=pytest-rlperf::{trouble}" for trouble in troubles]


@pytest.mark.parametrize("name", ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"])
def test_a_disk_that_fills_up_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The run ends with a warning, the other file is written, and the one that failed is as it was."""
    variables = environ(tmp_path)
    full = Path(variables[name])
    full.write_text("before\n", encoding="utf-8")
    write = os.write

    def written(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_ino != full.stat().st_ino:
            return write(descriptor, data)
        if full.stat().st_size > len("before\n"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:50])

    monkeypatch.setattr(os, "write", written)
    assert check_github(variables) == []
    commands = write_github(variables, [SAME], github_run())
    assert [command.partition(" cannot")[0] for command in commands] == [
        f"::warning title=pytest-rlperf::{name}={full}"
    ]
    assert "cannot be written (No space left on device): there will be no" in commands[0]
    assert full.read_text(encoding="utf-8") == "before\n"
    (other,) = {variables["GITHUB_STEP_SUMMARY"], variables["GITHUB_OUTPUT"]} - {str(full)}
    assert Path(other).stat().st_size > 20


def test_places_are_seen_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub finds a file by its path in the repository, wherever below it pytest's rootdir lies."""
    path = tmp_path / "sub" / "test_a.py"
    assert place_of(path, 3, {"GITHUB_WORKSPACE": str(tmp_path)}) == ("sub/test_a.py", 3)
    monkeypatch.chdir(tmp_path)
    assert place_of(Path("sub/test_a.py"), 3, {}) == ("sub/test_a.py", 3)
    assert place_of(Path("/elsewhere/test_a.py"), 3, {}) == ("/elsewhere/test_a.py", 3)


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (
            ["--rlperf", "--rlperf-json=/tmp/a.json", "--rlperf-html", "b", "-k", "a or b", "--rlperf-against=main"],
            "pytest -k 'a or b' --rlperf-against=main --rlperf",
        ),
        (["tests", "--rlperf-save-baseline", "--rlperf-accept", "why not"], "pytest tests --rlperf"),
        (
            ["--rlperf-benchmark-phases", "--rlperf-benchmark-json=b", "--rlperf-counters=gate", "--", "tests"],
            "pytest tests --rlperf-counters=gate --rlperf",
        ),
    ],
)
def test_the_command_to_reproduce_keeps_what_matters_and_writes_nothing(args: list[str], command: str) -> None:
    """The command to run it again gives the same verdict at home, and none of the files of the job's options."""
    assert reproducing(args) == command


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("gae -k gae --rlperf", "-k gae"),
        ("-k gae gae sac", "-k gae"),
        ("--rootdir . .", "--rootdir ."),
        ("-qk tests tests", "-qk tests"),
        ("-ktests --deselect=a tests a", "-ktests --deselect=a"),
        ("benchmarks 'tests/a.py::test_b[c d]' -o rlperf_pairs=3..5", "-o rlperf_pairs=3..5"),
        ("--rlperf --rlperf-tolerance 5% tests --rlperf-counters=gate", "--rlperf-tolerance 5% --rlperf-counters=gate"),
        ("tests -q -- tests", "-q"),
        ("-m=--rlperf-json tests", "-m=--rlperf-json"),
        ("tests tests", ""),
    ],
)
def test_one_test_is_reproduced_with_all_options_of_its_run(pytestconfig: pytest.Config, typed: str, kept: str) -> None:
    """Its key stands for the run's paths; a value that reads like one of them stays with its option."""

    def parse(args: list[str]) -> list[str]:
        found: list[str] = pytestconfig._parser.parse_known_args(args).file_or_dir
        return found

    command = reproducing(without_paths(shlex.split(typed), parse))
    assert command == " ".join(filter(None, ("pytest", kept, "--rlperf")))
    *options, key = parse([*shlex.split(command)[1:], "tests/a.py::test_b"])
    assert (options, key) == ([], "tests/a.py::test_b")


def test_a_command_whose_paths_cannot_be_told_keeps_them() -> None:
    """It runs more than the one test, and is never one that pytest refuses."""

    def refuse(args: list[str]) -> list[str]:
        raise pytest.UsageError(f"{args}: --needed is needed")

    typed = ["--rootdir", ".", "--cov", "--", "."]
    for told in (refuse, lambda args: [str(arg) for arg in args], lambda args: []):
        assert without_paths(typed, told) == typed
    assert reproducing(typed) == "pytest . --rootdir . --cov --rlperf"


def test_flags_can_be_put_behind_the_command() -> None:
    """Options come before two dashes, behind which they would be paths."""
    typed = ["-q", "--rlperf", "--rlperf-json=a", "--rlperf-accept", "b c", "--rlperf-save-baseline", "--", "a b"]
    assert continuing(typed) == "pytest 'a b' -q --rlperf-json=a"


# --------------------------------------------------------------------------- the artifact and the comment


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes | str]) -> bytes:
    """Return a zip of entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def link_entry() -> zipfile.ZipInfo:
    """Return an entry that is a symbolic link."""
    entry = zipfile.ZipInfo("run.json")
    entry.external_attr = 0o120777 << 16
    return entry


def test_comment_is_the_summary_in_short(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The comment begins with the hidden marker, and says what the summary says, from the JSON alone."""
    path = tmp_path / "rlperf.zip"
    path.write_bytes(zipped(("rlperf.json", json.dumps(document(SAME, SLOWER)))))
    assert main([str(path)]) == 0
    text = capfdbinary.readouterr().out.decode()
    summary = render_summary_markdown([SAME, SLOWER], github_run())
    assert text.startswith(f"{MARKER}\n{summary.partition('<details>')[0]}")
    assert "Some CPU, 2 cores, Linux x86&#95;64, CPython 3.11" in text


def test_comment_knows_of_failures_without_a_verdict() -> None:
    """A test that failed otherwise keeps the comment from saying that all is well."""
    text = comment_markdown(document(SAME) | {"failed": ["tests/test_perf.py::test_other"]})
    assert "## ❌ 1 test failed, but no gated test got slower" in text


def bomb() -> bytes:
    """Return a small zip of a large file."""
    return zipped(("run.json", b"0" * (ARTIFACT_BYTES + 1)))


def liar() -> bytes:
    """Return a zip of a large file that says that it is small."""
    data = bomb()
    size = (ARTIFACT_BYTES + 1).to_bytes(4, "little")
    return data.replace(size, (100).to_bytes(4, "little"))


def block_bomb(method: int) -> bytes:
    """Return a zip that states a small size, whose way to compress zipfile can only unpack in whole blocks."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("run.json", bytes(64 * 1024 * 1024))
    return buffer.getvalue().replace((64 * 1024 * 1024).to_bytes(4, "little"), (100).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda: zipped(("../run.json", "{}")), "leads out of it", id="parent"),
        pytest.param(lambda: zipped(("a/../../run.json", "{}")), "leads out of it", id="parent deeper"),
        pytest.param(lambda: zipped(("..\\run.json", "{}")), "leads out of it", id="parent of Windows"),
        pytest.param(lambda: zipped(("/etc/run.json", "{}")), "leads out of it", id="absolute"),
        pytest.param(lambda: zipped(("C:run.json", "{}")), "leads out of it", id="drive"),
        pytest.param(lambda: zipped((link_entry(), "/etc/passwd")), "is a link", id="link"),
        pytest.param(lambda: zipped(*((f"{n}.json", "{}") for n in range(21))), "has 21 entries", id="many"),
        pytest.param(lambda: zipped(("a.json", "{}"), ("b.json", "{}")), "holds 2 JSON files", id="two"),
        pytest.param(lambda: zipped(("a.txt", "{}")), "holds 0 JSON files", id="none"),
        pytest.param(bomb, "bytes when unpacked", id="bomb"),
        pytest.param(
            lambda: block_bomb(zipfile.ZIP_BZIP2), "is compressed as GitHub compresses none", id="bomb of BZIP2"
        ),
        pytest.param(
            lambda: block_bomb(zipfile.ZIP_LZMA), "is compressed as GitHub compresses none", id="bomb of LZMA"
        ),
        pytest.param(liar, "no zip that can be read", id="bomb that lies"),
        pytest.param(lambda: b"PK" + bytes(ARTIFACT_BYTES), "is never over", id="huge"),
        pytest.param(lambda: b"no zip at all", "no zip that can be read", id="no zip"),
        pytest.param(lambda: zipped(("run.json", "{}"))[:-10], "no zip that can be read", id="cut"),
    ],
)
def test_a_zip_with_tricks_is_refused(make: Callable[[], bytes], says: str) -> None:
    """Nothing is read from a zip that a run would not have made, and nothing is ever written."""
    with pytest.raises(ArtifactError, match=re.escape(says)):
        unzip(make())


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_is_read_or_refused(method: int) -> None:
    """Whichever byte is another, nothing but the one error is raised."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("run.json", json.dumps(document(SAME))[:300])
    data = buffer.getvalue()
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        with suppress(ArtifactError):
            unzip(damaged)


def changed(*path: str, value: object) -> dict[str, Any]:
    """Return a run's JSON with another value at a path."""
    found = here = document(SLOWER)
    for name in path[:-1]:
        here = here[name]
    here[path[-1]] = value
    return found


KEY = SLOWER.result.nodeid


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "$ is a list, expected an object"),
        ({}, "$.schema is None, expected a whole number"),
        (changed("schema", value=99), "has schema version 99, this pytest-rlperf reads up to"),
        (changed("schema", value=True), "$.schema is True"),
        (changed("kind", value="other"), "$.kind is 'other', expected 'run' or 'selfcheck'"),
        (changed("tests", value=[]), "$.tests is a list"),
        (changed("tests", value=dict.fromkeys(map(str, range(5001)), 1)), "the run has 5001 tests"),
        (changed("tests", value={"\n::error::": 1}), r"$.tests['\n::error::'] is 1, expected an object"),
        (changed("notes", value="a"), "$.notes is 'a', expected a list"),
        (changed("compared", value=[1]), "$.compared[0] is 1, expected a text"),
        (changed("machine", "cpu", value=None), "$.machine.cpu is None, expected a text"),
        (changed("tests", KEY, "verdict", "status", value="FINE\n"), r"status is 'FINE\n', expected one of SAME, "),
        (changed("tests", KEY, "verdict", "gated", value=1), "gated is 1, expected true or false"),
        (changed("tests", KEY, "verdict", "reason", value=None), "reason is None, expected an object"),
        (changed("tests", KEY, "verdict", "estimate", "ratio", value="1"), "ratio is '1', expected a number"),
        (changed("tests", KEY, "seconds", value=float("nan")), "seconds is nan, expected a number up to 1e+18"),
        (changed("tests", KEY, "seconds", value=10**400), "seconds is a very large number, expected a number up to"),
        (changed("tests", KEY, "result", "items", value=-1), "result.items is -1.0, expected no negative number"),
        (changed("tests", KEY, "live", "pairs", value={"a": 1}), "pairs is an object, expected a list"),
    ],
)
def test_a_document_that_no_run_writes_is_refused(value: object, says: str) -> None:
    """The error names the first thing that is wrong, in one line that can do no harm."""
    with pytest.raises(ArtifactError) as raised:
        comment_markdown(value)
    assert says in str(raised.value)
    assert str(raised.value).isprintable()


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path to every value in a document; of a list only the first."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


@pytest.mark.parametrize("value", [None, -1, 1e18, "x\n\x1b", True, [1], {"a": 1}])
def test_no_value_in_a_document_does_more_than_refuse_it(value: object) -> None:
    """Whatever stands in whichever place, there is a comment or the one error."""
    for path in [path for path in places(document(SLOWER)) if path]:
        found = here = document(SLOWER)
        for name in path[:-1]:
            here = here[name]  # type: ignore[index]
        here[path[-1]] = value  # type: ignore[index]
        with suppress(ArtifactError):
            assert comment_markdown(found).startswith(MARKER)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"not JSON", b"[" * 200_000, b"1" * 5000, b"x" * (ARTIFACT_BYTES + 1)])
def test_what_is_not_json_is_refused(text: bytes) -> None:
    """Neither broken, nor deep, nor long input does more than raise."""
    with pytest.raises(ArtifactError):
        comment_of_zip(zipped(("run.json", text)))


def test_lone_surrogates_do_not_stop_the_comment() -> None:
    """JSON can hold half a character, which UTF-8 cannot."""
    value = changed("tests", KEY, "verdict", "reason", "message", value="\ud800 why")
    assert "? why" in shown(comment_markdown(value))


def test_unreadable_artifact_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says what is wrong, and prints no half of a comment."""
    (tmp_path / "a.zip").write_bytes(b"")
    assert main([str(tmp_path / "a.zip")]) == 2
    assert main([str(tmp_path / "b.zip")]) == 2
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no zip that can be read" in err
    assert "No such file" in err
    assert "usage:" in err


def test_posting_needs_the_standard_library_alone() -> None:
    """The job that may write comments installs nothing."""
    code = "import pytest_rlperf.report.github_comment"
    variables = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# --------------------------------------------------------------------------- posting

Answer = tuple[int, Any]
LOST = b"the connection is lost within this"
Asked = tuple[str, str, dict[str, list[str]], Any]


class GitHub:
    """A stand-in for GitHub's API on this machine: answers by path, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[Asked] = []
        self.tokens: dict[str, str | None] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                """Answer as told to."""
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = parse_qs(url.query)
                outer.asked.append((self.command, url.path, query, json.loads(body) if body else None))
                outer.tokens[url.path] = self.headers.get("Authorization")
                page = query.get("page", ["1"])[0]
                keys = (f"{self.command} {url.path}", f"{url.path}#{page}", url.path)
                code, value = next((outer.answers[key] for key in keys if key in outer.answers), (404, {}))
                self.send_response(code)
                if 300 < code < 400:
                    self.send_header("Location", str(value))
                if value == LOST:
                    self.send_header("Content-Length", "1000")
                self.end_headers()
                if not 300 < code < 400:
                    self.wfile.write(value if isinstance(value, bytes) else json.dumps(value).encode())

            do_GET = do_POST = do_PATCH = answer  # noqa: N815 - http.server's names

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def sent(self) -> list[tuple[str, str, str]]:
        """Return what was written: method, path, and the comment's text."""
        return [(method, path, body["body"]) for method, path, _, body in self.asked if method != "GET"]


REPOSITORY = "/repos/owner/project"
EVENT = {
    "workflow_run": {
        "id": 17,
        "html_url": "https://github.com/owner/project/actions/runs/17",
        "head_sha": "a" * 40,
        "head_branch": "a branch&state=closed",
        "head_repository": {"full_name": "someone/fork", "owner": {"login": "someone"}},
        "pull_requests": [],
    }
}


def pull(number: int, sha: str, repository: str | None) -> dict[str, Any]:
    """Return a pull request as the API has it; the head's repository is None where it was deleted."""
    return {"number": number, "head": {"sha": sha, "repo": repository and {"full_name": repository}}}


@pytest.fixture
def github() -> Any:
    """Yield a stand-in for GitHub where pull request 5 waits for its comment."""
    server = GitHub()
    artifact = {"id": 3, "name": "rlperf", "expired": False, "size_in_bytes": 1000}
    server.answers = {
        f"{REPOSITORY}/pulls": (200, [pull(4, "b" * 40, "someone/fork"), pull(5, "a" * 40, "someone/fork")]),
        f"{REPOSITORY}/actions/runs/17/artifacts": (200, {"artifacts": [artifact]}),
        f"{REPOSITORY}/actions/artifacts/3/zip": (302, "/blob"),
        "/blob": (200, zipped(("rlperf.json", json.dumps(document(SLOWER))))),
        f"{REPOSITORY}/issues/5/comments": (200, []),
        f"{REPOSITORY}/issues/comments/8": (200, {}),
    }
    yield server
    server.close()


@pytest.fixture
def post(github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, str]]:
    """Return what posts the comment, and gives the exit code and what was printed."""
    (tmp_path / "event.json").write_text(json.dumps(EVENT), encoding="utf-8")
    variables: Mapping[str, str] = {
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_REPOSITORY": "owner/project",
        "GITHUB_API_URL": github.url,
        "GITHUB_TOKEN": "secret",
        "RLPERF_ARTIFACT": "rlperf",
    }
    return lambda: (post_comment(variables), capsys.readouterr().out)


def comments(*entries: tuple[int, str, str]) -> list[dict[str, Any]]:
    """Return comments as the API has them: number, author and text."""
    return [{"id": number, "user": {"login": author}, "body": body} for number, author, body in entries]


def test_a_forks_pull_request_is_found_and_gets_its_comment(
    github: GitHub, post: Callable[[], tuple[int, str]]
) -> None:
    """The pull request is the one whose head the run measured; the token goes to the API alone."""
    code, out = post()
    assert (code, out) == (0, "::notice title=pytest-rlperf::the comment on pull request 5 was made\n")
    ((method, path, text),) = github.sent()
    assert (method, path) == ("POST", f"{REPOSITORY}/issues/5/comments")
    assert text.startswith(f"{MARKER}\n## ❌ 1 of 1 gated tests got slower")
    assert "[run 17](https://github.com/owner/project/actions/runs/17) of aaaaaaaaaaaa" in text
    assert github.asked[0][2]["head"] == ["someone:a branch&state=closed"]
    assert github.asked[0][2]["state"] == ["open"]
    assert github.tokens["/blob"] is None
    assert {token for path, token in github.tokens.items() if path != "/blob"} == {"Bearer secret"}


def test_our_own_comment_is_updated(github: GitHub, post: Callable[[], tuple[int, str]]) -> None:
    """There is one comment, found by its marker and its author, also behind a hundred others."""
    others = comments(*((n, "github-actions[bot]", "of another workflow") for n in range(100, 198)))
    others += comments((6, "someone", f"{MARKER} mine"), (7, "github-actions[bot]", f"quoting {MARKER}"))
    github.answers[f"{REPOSITORY}/issues/5/comments"] = (200, others)
    github.answers[f"{REPOSITORY}/issues/5/comments#2"] = (200, comments((8, "github-actions[bot]", f"{MARKER}\nold")))
    assert post() == (0, "::notice title=pytest-rlperf::the comment on pull request 5 was updated\n")
    ((method, path, _),) = github.sent()
    assert (method, path) == ("PATCH", f"{REPOSITORY}/issues/comments/8")


@pytest.mark.parametrize(
    "pulls",
    [
        pytest.param([], id="none"),
        pytest.param([pull(4, "b" * 40, "someone/fork")], id="pushed since"),
        pytest.param([pull(4, "a" * 40, "someone/other")], id="another fork"),
        pytest.param([pull(4, "a" * 40, None)], id="fork deleted"),
    ],
)
def test_without_its_pull_request_nothing_is_written(
    github: GitHub, post: Callable[[], tuple[int, str]], pulls: Sequence[Any]
) -> None:
    """Where no open pull request has the head that was measured, nothing is downloaded, and nothing said."""
    github.answers[f"{REPOSITORY}/pulls"] = (200, pulls)
    code, out = post()
    assert code == 0
    assert "there is nothing to comment" in out
    assert len(github.asked) == 1


def test_a_run_without_figures_is_said(github: GitHub, post: Callable[[], tuple[int, str]]) -> None:
    """An older comment must not stand for a run that broke before there were figures."""
    github.answers[f"{REPOSITORY}/actions/runs/17/artifacts"] = (200, {"artifacts": []})
    assert post()[0] == 0
    ((_, _, text),) = github.sent()
    assert text.startswith(f"{MARKER}\n## ⚠️ The performance gate ended without figures")


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        (
            f"{REPOSITORY}/actions/runs/17/artifacts",
            (200, {"artifacts": [{"id": 3, "name": "rlperf", "expired": False, "size_in_bytes": ARTIFACT_BYTES + 1}]}),
            "there is no comment: the artifact has",
        ),
        ("/blob", (200, b"PK" + bytes(ARTIFACT_BYTES + 10)), "there is no comment: the artifact has 5242881 bytes"),
        ("/blob", (200, zipped(("../a.json", "{}"))), "there is no comment: the artifact's entry '../a.json' leads"),
        (f"{REPOSITORY}/issues/5/comments", (403, {}), "answers GET /issues/5/comments with 403; does"),
    ],
)
def test_what_is_refused_fails_the_job_and_writes_nothing(
    github: GitHub, post: Callable[[], tuple[int, str]], path: str, answer: Answer, says: str
) -> None:
    """A bad artifact or a missing permission is an error of the job, with the reason, and no comment."""
    github.answers[path] = answer
    code, out = post()
    assert code == 1
    assert out.startswith("::error title=pytest-rlperf::")
    assert says in out
    assert not github.sent()


PULLS, ARTIFACTS, COMMENTS = (
    f"{REPOSITORY}/{rest}" for rest in ("pulls", "actions/runs/17/artifacts", "issues/5/comments")
)
ZIP = f"{REPOSITORY}/actions/artifacts/3/zip"


@pytest.mark.parametrize(
    "value", [None, 1, "text", [], {}, [None], [[]], [{}], {"artifacts": None}, {"artifacts": [1]}]
)
@pytest.mark.parametrize("path", [PULLS, ARTIFACTS, COMMENTS])
def test_an_answer_of_another_shape_is_one_sentence(
    github: GitHub, post: Callable[[], tuple[int, str]], path: str, value: object
) -> None:
    """An odd answer is an error of the job in one line, or changes nothing; never a traceback."""
    github.answers[path] = (200, value)
    code, out = post()
    assert out.count("\n") == 1
    assert out.startswith(("::error" if code else "::notice") + " title=pytest-rlperf::")
    if code:
        assert "there is no comment: GitHub's answer" in out
        assert not github.sent()


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        (PULLS, (200, b"<html>"), "GitHub's answer to /pulls is not JSON"),
        (PULLS, (200, b"[" * 200_000), "GitHub's answer to /pulls is not JSON"),
        (PULLS, (200, LOST), "GitHub's answer to /pulls is not JSON"),
        (PULLS, (301, "/elsewhere"), "GitHub's API leads GET"),
        (PULLS, (401, {}), "answers GET /pulls with 401; GITHUB_TOKEN is not accepted"),
        (PULLS, (500, {}), "answers GET /pulls with 500; run the job again"),
        (ZIP, (302, ZIP), "GitHub's API leads GET"),
        (ZIP, (302, "ftp://127.0.0.1/a"), "GitHub's API leads GET"),
        (ZIP, (302, "file:///etc/passwd"), "answers GET /actions/artifacts/3/zip with 302"),
        (ZIP, (410, {}), "answers GET /actions/artifacts/3/zip with 410"),
        ("/blob", (200, LOST), "the artifact is no zip that can be read"),
    ],
)
def test_an_odd_answer_is_one_sentence(
    github: GitHub, post: Callable[[], tuple[int, str]], path: str, answer: Answer, says: str
) -> None:
    """What is no JSON, an error, or an answer that leads elsewhere fails the job in one line, and writes nothing."""
    github.answers[path] = answer
    code, out = post()
    assert (code, out.count("\n")) == (1, 1)
    assert out.startswith("::error title=pytest-rlperf::there is no comment: ")
    assert says in out
    assert not github.sent()


def test_a_comment_that_is_led_elsewhere_is_not_sent_there(github: GitHub, post: Callable[[], tuple[int, str]]) -> None:
    """A POST that is led elsewhere would become a GET, and nothing be written."""
    for code in (301, 302, 303, 307):
        github.answers[f"{COMMENTS}"] = (200, [])
        github.answers[f"POST {COMMENTS}"] = (code, "/elsewhere")
        assert post() == (1, f"::error title=pytest-rlperf::there is no comment: GitHub's API leads POST {COMMENTS} "
                             "to another place\n")  # fmt: skip
    assert "/elsewhere" not in {path for _, path, _, _ in github.asked}


def test_authors_that_are_gone_are_passed_over(github: GitHub, post: Callable[[], tuple[int, str]]) -> None:
    """GitHub has null for the author of a comment whose account was deleted, and for an empty text."""
    gone = [
        {"id": 1, "user": None, "body": f"{MARKER}"},
        {"id": 2, "user": {"login": "github-actions[bot]"}, "body": None},
    ]
    github.answers[COMMENTS] = (200, gone)
    assert post() == (0, "::notice title=pytest-rlperf::the comment on pull request 5 was made\n")


@pytest.mark.parametrize("change", [{"head_repository": None}, {"head_branch": None}])
def test_a_fork_that_is_gone_has_no_pull_request(
    github: GitHub, post: Callable[[], tuple[int, str]], tmp_path: Path, change: dict[str, None]
) -> None:
    """GitHub has null for a repository or a branch that was deleted."""
    event = {"workflow_run": {**EVENT["workflow_run"], **change}}
    (tmp_path / "event.json").write_text(json.dumps(event), encoding="utf-8")
    code, out = post()
    assert code == 0
    assert "there is nothing to comment" in out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON"),
        ("[]", "'workflow_run' as NoneType, expected dict"),
        ('{"workflow_run": {"id": "1"}}', "'id' as str, expected int"),
        (json.dumps({"workflow_run": {**EVENT["workflow_run"], "head_sha": "main"}}), "no full commit"),
        (json.dumps({"workflow_run": {**EVENT["workflow_run"], "html_url": "https://x/)\n"}}), "no address of the web"),
    ],
)
def test_an_event_of_another_kind_is_one_sentence(
    github: GitHub, post: Callable[[], tuple[int, str]], tmp_path: Path, content: str | None, says: str
) -> None:
    """The job was started by something else than a run that has ended."""
    (tmp_path / "event.json").unlink()
    if content is not None:
        (tmp_path / "event.json").write_text(content, encoding="utf-8")
    code, out = post()
    assert (code, out.count("\n")) == (1, 1)
    assert says in out
    assert not github.asked


def test_a_variable_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside a job of workflow_run there is nothing to go by."""
    assert post_comment({}) == 1
    assert "GITHUB_EVENT_PATH is not set: run this in a job of workflow_run" in capsys.readouterr().out


def test_an_api_that_is_not_there_is_one_sentence(github: GitHub, post: Callable[[], tuple[int, str]]) -> None:
    """A connection that is refused is named, with the way out."""
    github.server.server_close()
    code, out = post()
    assert (code, out.count("\n")) == (1, 1)
    assert "GitHub's API does not answer GET /pulls: " in out
    assert "; run the job again" in out
