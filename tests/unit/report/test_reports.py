"""Common rules of all reports: hostile names do no harm, and the facts that decide are in each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.cli import main
from pytest_rlperf.cli.command import parse
from pytest_rlperf.model import reasons
from pytest_rlperf.model.device import Bound, Conditions, DeviceFigures, DeviceTimes, Pace
from pytest_rlperf.model.judged import Allowance, Outcome, Remedy, RemedyKind, Status
from pytest_rlperf.model.live import OtherWork
from pytest_rlperf.model.measured import CounterChange, Counting, PhaseCounts, Result, Share
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.exports import benchmark_document, properties
from pytest_rlperf.report.github import (
    GitHubRun,
    annotation_commands,
    render_summary_markdown,
)
from pytest_rlperf.report.html import render_html
from pytest_rlperf.report.run_json import RunFile, written
from pytest_rlperf.report.summary import Summary, failure_text, next_steps
from pytest_rlperf.report.terminal import render_summary
from pytest_rlperf.run.conclusion import error_of

HOSTILE = (
    "tests/a b.py::Test<b>::test_x[</script><img src=x onerror=alert(1)>|`@everyone`\"'&::set-output name=x::y%0A"
    "\n::error::boo\r\x1b[2J\x07\x7f\u202e\u2028\ud800日本<!---->]]>"
)
KEY = "tests/test_sac.py::test_update[256]"
HERE = builders.MACHINE
ORIGIN = Provenance("c" * 40, "7" * 40, dirty=False, created="2026-01-02T03:04:05+00:00", packages={})


def outcome(status: Status, ratio: float, name: str = KEY, **changes: Any) -> Outcome:
    """Return an outcome of a comparison with a baseline of 10 ms a call."""
    return builders.compared(name, status, ratio, 0.01 * ratio, smallest_seen=0.03, **changes)


Report = Callable[[Sequence[Outcome], Path], str]


def terminal(outcomes: Sequence[Outcome], directory: Path, *, color: bool = False) -> str:
    return render_summary(outcomes, summary_of(outcomes), width=132, color=color, verbose=True)


def against(outcomes: Sequence[Outcome]) -> str | None:
    """Return the code that the user named for the comparison: there is such where no baseline has figures."""
    return None if any(one.baseline for one in outcomes) else "main"


def summary_of(outcomes: Sequence[Outcome]) -> Summary:
    """Return the sentences under the table, the first test's name in each."""
    key = outcomes[0].result.nodeid
    named = against(outcomes) is not None
    steps = next_steps(outcomes, "pytest", saved=False, against=named, verbose=True)
    return Summary(["Made Up 9000"], [key], [key.replace("\n", "")], steps)


def page(outcomes: Sequence[Outcome], directory: Path) -> str:
    whole = render_html(outcomes, summary_of(outcomes), tolerances={}, command="pytest", provenance=None)
    return re.sub(r"<script.*?</script>", "", whole, flags=re.DOTALL)


def github_run(outcomes: Sequence[Outcome]) -> GitHubRun:
    """Return what GitHub is told beside the outcomes, the first test's name in each."""
    key = outcomes[0].result.nodeid
    named = against(outcomes) is not None
    return GitHubRun(summary_of(outcomes), f"pytest {key}", {}, [f"{key}2"], named, False, None)


def job_summary(outcomes: Sequence[Outcome], directory: Path) -> str:
    return entities_written_out(render_summary_markdown(outcomes, github_run(outcomes)))


def comment(outcomes: Sequence[Outcome], directory: Path) -> str:
    """Return the comment, made of the run's JSON, entities written out."""
    return entities_written_out(printed(outcomes, directory, "show", "--format=github", "FILE"))


def entities_written_out(markdown: str) -> str:
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), markdown).replace("\u200b", "")


def workflow_commands(outcomes: Sequence[Outcome], directory: Path) -> str:
    lines = {one.result.nodeid: (one.result.nodeid, 1) for one in outcomes}
    return "\n".join(annotation_commands(outcomes, lines, strict=True))


def run_json(outcomes: Sequence[Outcome], directory: Path) -> str:
    tests = {one.result.nodeid: one for one in outcomes}
    keys = list(tests)
    document = builders.run_document(HERE, tests, keys, keys, provenance=ORIGIN, failed=keys, against=against(outcomes))
    return written(document)


def benchmark_json(outcomes: Sequence[Outcome], directory: Path) -> str:
    return written(benchmark_document(outcomes, HERE, ORIGIN))


def junit(outcomes: Sequence[Outcome], directory: Path) -> str:
    return "\n".join(f"{name}={value}" for one in outcomes for name, value in properties(one))


def failures(outcomes: Sequence[Outcome], directory: Path) -> str:
    named = against(outcomes) is not None
    return "\n".join(failure_text(one, one.result.nodeid, against=named) for one in outcomes)


def printed(outcomes: Sequence[Outcome], directory: Path, *arguments: str) -> str:
    path = directory / "run.json"
    path.write_text(run_json(outcomes, directory), encoding="utf-8")
    out = SimpleNamespace(parts=[])
    with pytest.MonkeyPatch.context() as patch:
        for stream in ("stdout", "stderr"):
            patch.setattr(
                f"sys.{stream}", SimpleNamespace(write=out.parts.append, flush=str, isatty=bool, encoding="utf-8")
            )
        main([argument.replace("FILE", str(path)) for argument in arguments])
    return "".join(out.parts)


def shown_run(outcomes: Sequence[Outcome], directory: Path) -> str:
    """Return what `rlperf show` says."""
    return printed(outcomes, directory, "show", "FILE", "-v")


READ_BY_PEOPLE = (terminal, page, job_summary, comment, shown_run)
ALL = (*READ_BY_PEOPLE, workflow_commands, run_json, benchmark_json, junit, failures)


SAMPLE = Path(__file__).parents[2] / "samples" / "run_of_every_status.json"  # this module writes it, run alone


def on_a_device(found: Result) -> Result:
    conditions = Conditions(1.98e9, None, 61.0, ("power cap",), 1)
    figures = DeviceFigures(
        "virtual:0", Pace.LATENCY, 1.2e-3, None, 2.1e6, 512_000_000, 0.0, {"tf32": "off"}, conditions, 7, ()
    )
    times = DeviceTimes(1.1e-3, None, "main", 2e-6, 4e-4, Bound.LAUNCH, False, None, None)
    return replace(
        found,
        workers=tuple(replace(worker, device=figures) for worker in found.workers),
        phases=tuple(replace(phase, on_device=times) for phase in found.phases),
        shares=(Share("native: torch", 0.75), Share("python", 0.25)),
    )


class Elements(HTMLParser):
    """The elements of a page, the names of their attributes, and the text, a line for each block or row."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self._hidden = False
        self.feed(source)
        lines = (" ".join(line.split()) for line in self.text.split("\v"))
        self.text = "\n".join(filter(None, lines))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}
        self._hidden = tag == "style"
        self.text += {"td": " | ", "th": " | ", "wbr": "", **dict.fromkeys(INLINE, " ")}.get(tag, "\v")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data


INLINE = ("a", "b", "code", "i", "span", "sub", "text", "title")


OTHER_WORK = OtherWork("python<3>", 4711, 0.87, 0.52, 0.03)


def every_status() -> list[Outcome]:
    """Return a test of every status, with the reasons that a run has for them."""
    pairs: list[Outcome] = [
        builders.compared(f"test_{name}", status, ratio, call_s, live=True, gated=name != "shown", smallest_seen=seen)
        for name, status, ratio, call_s, seen in (
            ("update[256]", Status.SLOWER, 1.25, 2.5e-3, 0.02),
            ("accepted", Status.SLOWER, 1.08, 1.08e-3, 0.02),
            ("shown", Status.SLOWER, 2.5, 40e-6, 0.05),
            ("spread", Status.UNDECIDED, 1.04, 0.3, 0.12),
        )
    ]
    slower, accepted, shown, spread = pairs
    counts = Counting((PhaseCounts("sac_update/critic", {"ops": 21, "ops:aten::mm": 18}, {}),), 5, 2, ())
    change = CounterChange("sac_update/critic", "ops:aten::mm", 12, 18)
    allowance = Allowance("test_acc*", 0.09, "larger networks", "1a2b3c4d5e6f")

    def because(found: Outcome, reason: reasons.Reason, **changes: Any) -> Outcome:
        return replace(found, verdict=replace(found.verdict, reason=reason, **changes))

    def differ(ratio: float) -> reasons.PairsDiffer:
        return reasons.PairsDiffer(4, is_slower=True, all_agree=True, fresh=ratio)

    return [
        replace(
            because(slower, differ(1.25), counters=(change,)),
            result=replace(on_a_device(slower.result), counting=counts, notes=("3 collections in timed slices",)),
        ),
        because(accepted, differ(1.08), accepted=True, allowance=allowance),
        because(shown, differ(2.5)),
        because(outcome(Status.SAME, 1.004, "test_same"), reasons.StoredSame(0.03)),
        because(outcome(Status.FASTER, 0.8, "test_faster"), reasons.StoredFaster(stores=False)),
        because(
            spread,
            reasons.PairsUndecided(reasons.Code.SPREAD, 1.05, 0.12, pair_sd=0.04, other_work=OTHER_WORK),
            remedy=Remedy(RemedyKind.QUIET),
            counters=(CounterChange("sac_update/actor", "native_calls:builtins", 65, 968),),
            more_work=(CounterChange("", "native_calls:builtins", 129, 1032),),
        ),
        because(builders.compared("test_new", Status.NEW, None), reasons.NoBaseline(stores=False)),
        because(
            builders.compared("test_other", Status.INCOMPARABLE, None),
            reasons.OtherMachines(((reasons.MachineDifference("cores", 4, 2),),), stores=False),
        ),
        because(builders.compared("test_threads", Status.INVALID, None), reasons.BackgroundWork(0.31)),
        error_of("tests/test_sac.py::test_wrong", reasons.TestFailed("call", "ValueError: 2 differ"), 1.0, None),
    ]


def sample() -> str:
    tests = {one.result.nodeid: one for one in every_status()}
    failed = [key for key, one in tests.items() if one.verdict.fails(strict=False)]
    origins = ["HEAD 1111111 with main (2222222), live", "baseline 'default' of 2026-01-02"]
    return written(builders.run_document(HERE, tests, origins, ["a note"], provenance=ORIGIN, failed=failed))


def test_the_stored_run_is_what_this_version_writes() -> None:
    """The file is of the product's own writer: where that changes, `python` with this module writes it anew."""
    assert SAMPLE.read_text(encoding="utf-8") == sample()


@pytest.mark.parametrize("report", [terminal, failures, page, job_summary, workflow_commands, junit, benchmark_json])
def test_every_report_of_one_run(report: Report, tmp_path: Path, wording: Wording) -> None:
    """A stored run with a test of every status, as each writer renders it."""
    run = parse(SAMPLE.read_bytes(), SAMPLE.name)
    assert isinstance(run, RunFile)
    outcomes = list(run.tests.values())
    text = report(outcomes, tmp_path)
    if report is page:
        text = Elements(text).text
    elif report is benchmark_json:
        rows = json.loads(text)["benchmarks"]  # the rest is of this machine
        text = "\n".join(f"{name}: {value}" for row in rows for name, value in row.items())
    assert text == wording


@pytest.mark.parametrize("report", ALL)
def test_a_hostile_name_commands_nobody(report: Report, tmp_path: Path) -> None:
    """No terminal, browser, runner or parser is told anything by what a test, phase, counter or message is called."""
    text = report([builders.everywhere(HOSTILE)], tmp_path)
    text.encode("utf-8")
    if report is page:
        assert not {"img", "onerror"} & Elements(text).names
    assert not [char for char in text if ord(char) < 32 and char != "\n"]
    assert not re.search(r"(?m)^::error::boo", text)
    if report is not run_json:  # in which what is told is told as it is, as JSON can
        assert not set(text) & set("\x7f\u202e\u2028")


TRAILER, STORE = "Rlperf-Accept:", "--rlperf-save-baseline"


@pytest.mark.parametrize("report", [terminal, page, job_summary, comment, failures])
@pytest.mark.parametrize("base", ["stored figures", "the baseline's commit", "a branch", "a release"])
def test_a_slowdown_has_one_remedy(report: Report, base: str, tmp_path: Path) -> None:
    """A commit's message is read since a commit, and a baseline is stored again after that."""
    stored = outcome(Status.SLOWER, 1.1)
    named = outcome(Status.SLOWER, 1.1, live=True)
    assert named.live is not None
    found = {
        "stored figures": stored,
        "the baseline's commit": replace(named, baseline=stored.baseline),
        "a branch": named,
        "a release": replace(named, live=replace(named.live, base_commit=None)),
    }[base]
    text = unescape(report([found], tmp_path))
    remedies = [remedy for remedy in (TRAILER, STORE) if remedy in text]
    one_by_one = report is failures  # which say what to do first
    assert remedies == {"a branch": [TRAILER], "a release": []}.get(base, [TRAILER, *([] if one_by_one else [STORE])])
    assert ("is intended" in text) == bool(remedies)


if __name__ == "__main__":
    SAMPLE.write_text(sample(), encoding="utf-8")
