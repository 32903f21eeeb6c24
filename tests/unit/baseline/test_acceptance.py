"""Slowdowns that are meant: what commits say, what it does to verdicts and baselines, and what many of them come to."""

from __future__ import annotations

import json
import re
import statistics
from html import unescape
from pathlib import Path
from typing import Any

import builders
import pytest
from example import FAILED, OK, Example
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.baseline.store import Store
from pytest_rlperf.judge.counters import combine
from pytest_rlperf.judge.verdict import allow, unmatched
from pytest_rlperf.model.facts import InWords
from pytest_rlperf.model.judged import Allowance, Estimate, Finding, Outcome, Policy, Status, Verdict
from pytest_rlperf.model.measured import Counting, PhaseCounts, Result
from pytest_rlperf.model.notes import UnmatchedAllowance
from pytest_rlperf.model.reasons import BeyondAllowance
from pytest_rlperf.model.stored import StoredResult
from pytest_rlperf.options import read_config
from pytest_rlperf.report.wording import note_lines, trailer, verdict_message
from pytest_rlperf.run.saving import save
from pytest_rlperf.run.state import RunState
from pytest_rlperf.sides.git import parse_allowance, read_allowances

pytestmark = pytest.mark.usefixtures("alone")

SLOWER = builders.verdict(
    Status.SLOWER, 1.08, margin=0.02, code="live", message="4 live pairs", smallest_seen=0.03, suspect=True
)
KEY = "tests/test_perf.py::test_gae[128-8]"


@pytest.fixture
def repository(tmp_path: Path) -> Example:
    found = Example(tmp_path)
    found.commit("First\n\nRlperf-Accept: * <= +50% long ago")
    return found


def test_trailers_of_the_change_alone_count(repository: Example) -> None:
    """The trailers of the commits since base are read, the last commit first, and base's own are not."""
    base = repository.git("rev-parse", "HEAD")
    first = repository.commit("Two critics\n\nRlperf-Accept: test_sac* <= +12.5% two critics\n  instead of one")
    last = repository.commit("Both\n\nRlperf-Accept: test_gae[128-8] <=9 % copies\nRlperf-Accept: *ppo* <= +3% a: b")
    found, notes = read_allowances(repository.root, base)
    assert not notes
    assert found == [
        Allowance("test_gae[128-8]", 0.09, "copies", last[:12]),
        Allowance("*ppo*", 0.03, "a: b", last[:12]),
        Allowance("test_sac*", 0.125, "two critics instead of one", first[:12]),
    ]


def test_a_line_that_git_takes_for_no_trailer_accepts_nothing_and_is_named(
    repository: Example, wording: Wording
) -> None:
    """Trailers are the last paragraph of a message; elsewhere the line is text, which its author should know."""
    base = repository.git("rev-parse", "HEAD")
    sha = repository.commit("Slower\n\nRlperf-Accept: * <= +50% one thing\n\nAnd another.")
    found, (note,) = read_allowances(repository.root, base)
    assert not found
    assert note.replace(sha[:12], "COMMIT") == wording


UNREADABLE = (
    "test_gae",
    "test_gae <= 9% ",
    "<= +9% why",
    "test_gae <= nine% why",
    "test_gae > 9% x",
    "test_gae counts",
    "counts more of it",
    "test_gae counts: why",
    "test_gae <= nine% counts too",
    "test_gae and test_sac counts why",
    "test_gae <= 9% why",
    "test_gae counts why",
)


def test_trailers_that_cannot_be_read_accept_nothing_and_are_named(repository: Example, wording: Wording) -> None:
    """A slip of the pen is told with the form that was expected."""
    base = repository.git("rev-parse", "HEAD")
    sha = repository.commit("\n".join(["Slower", "", *(f"Rlperf-Accept: {value}" for value in UNREADABLE)]))
    found, notes = read_allowances(repository.root, base)
    assert not found
    assert len(notes) == len(UNREADABLE)
    assert [note.replace(sha[:12], "COMMIT") for note in notes] == wording


def allowance(pattern: str, percent: float = 9) -> Allowance:
    found = parse_allowance(f"{pattern} <= +{percent}% larger networks", "1a2b3c4d5e6f")
    assert found is not None
    return found


@pytest.mark.parametrize(
    "pattern", ["*", "test_gae*", "test_gae[128-8]", "test_gae[128-*]", "*[128-?]", "test%5Fgae*", KEY, "tests/*"]
)
def test_a_slowdown_that_is_meant_is_accepted_with_its_reason(pattern: str, wording: Wording) -> None:
    """It stays SLOWER, does not fail, and says who meant it and why."""
    verdict = allow(SLOWER, KEY, [allowance(pattern)])
    assert verdict.status is Status.SLOWER
    assert verdict.accepted
    assert not verdict.fails(strict=True)
    assert verdict_message(verdict) == wording


def test_more_than_was_meant_fails_and_others_are_left_alone(wording: Wording) -> None:
    """The percentage is a bound, of the widest allowance that fits; another test or verdict is what it was."""
    verdict = allow(SLOWER, KEY, [allowance("test_gae*", 5), allowance("*", 7)])
    assert verdict.fails(strict=False)
    assert verdict_message(verdict) == wording
    assert allow(SLOWER, KEY, [allowance("*", 5), allowance("*", 8)]).accepted
    assert allow(SLOWER, KEY, [allowance("test_sac*")]) == SLOWER
    undecided = replace(SLOWER, status=Status.UNDECIDED)
    assert allow(undecided, KEY, [allowance("*", 5)]) == undecided
    assert allow(undecided, KEY, [allowance("*")]).accepted  # what may be slower can be stored


def counted(ops: int) -> Counting:
    """Return what was counted of a call that does so many operations."""
    phases = tuple(PhaseCounts(path, {"ops:aten::mm": ops}, {}) for path in ("", "gae"))
    return Counting(phases, workers=5, repetitions=2, notes=())


def by_counts(verdict: Verdict) -> Verdict:
    """Return the verdict of a time together with that of counts, which gate and are more than they were."""
    return combine(verdict, counted(1), counted(2), Policy(gates=("ops:",)))


SAME_TIME = replace(SLOWER, status=Status.SAME, estimate=Estimate(1.01, 0.99, 1.03, 0.99, 0.99, 1.03), suspect=False)


@pytest.mark.parametrize("estimate", [SLOWER.estimate, SAME_TIME.estimate, None])
def test_more_that_is_counted_is_accepted_with_the_time(estimate: Estimate | None, wording: Wording) -> None:
    """Exact counts have no percentage: where the time is within what is meant, or unknown, they are meant as well."""
    verdict = by_counts(replace(SLOWER, status=Status.UNDECIDED, estimate=estimate))
    assert verdict.fails(strict=False)
    accepted = allow(verdict, KEY, [allowance("test_gae*")])
    assert accepted.accepted
    assert verdict_message(accepted).splitlines()[-1] == wording


@pytest.mark.parametrize("time", [SAME_TIME, replace(SLOWER, status=Status.UNDECIDED)])
def test_more_that_is_counted_is_accepted_by_itself(time: Verdict, wording: Wording) -> None:
    """Where nothing but counts says SLOWER, the word is enough, whatever the time may be."""
    accepted = allow(by_counts(time), KEY, [counts_allowance("test_gae*")])
    assert (accepted.status, accepted.accepted) == (Status.SLOWER, True)
    assert verdict_message(accepted) == wording


def test_counts_that_are_meant_accept_no_time(wording: Wording) -> None:
    """A test that is slower by its time fails, with or without higher counts, and names the missing acceptance."""
    for verdict in (SLOWER, by_counts(SLOWER)):
        judged = allow(verdict, KEY, [counts_allowance("*")])
        assert judged.fails(strict=False)
        assert verdict_message(judged).splitlines()[-1] == wording
        assert allow(verdict, KEY, [counts_allowance("*"), allowance("*")]).accepted


def counts_allowance(pattern: str) -> Allowance:
    found = parse_allowance(f"{pattern} counts logged", "1a2b3c4d5e6f")
    assert found is not None
    return found


ODD = st.text("[]*?!% <=,:-abü\u00a0\u2028\n\\", max_size=40) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)
PATHS = ODD.filter(lambda path: ":" not in path).map("{}.py".format)
NAMES = st.builds("{}test_{}".format, st.sampled_from(["", "TestA::"]), st.sampled_from("ab"))
KEYS_OF_ALL_KINDS = st.builds("{}::{}{}".format, PATHS, NAMES, st.just("") | ODD.map("[{}]".format))


@given(KEYS_OF_ALL_KINDS, KEYS_OF_ALL_KINDS, st.booleans())
@example("t.py::test_a[1]", "t.py::test_a[2]", True)
@example("t.py::test_a[1]", "u.py::test_a[1]", True)
@example("t.py::test_a[1]", "t.py::test_a1", False)
@example("t.py::test_a[*]", "t.py::test_a[1]", False)
@example("t.py::test_a[x y]", "t.py::test_a[x%20y]", False)
@example("t.py::test_a[<= +900% x]", "t.py::test_a[", True)
def test_the_line_to_copy_accepts_its_test_alone(key: str, other: str, by_time: bool) -> None:
    """Read back, it fits the test that it is for, whatever its parameters and its path have in them, and no other."""
    line = trailer(key, 1.08 if by_time else None, 1.1)
    assert line.isprintable()
    read = parse_allowance(f"{line} the reason <= 5%".partition(": ")[2], "1a2b3c4d5e6f")
    assert read is not None
    assert read.most == (0.14 if by_time else 0.0)  # 10 % is its upper bound: the next run has another
    slower = SLOWER if by_time else by_counts(SAME_TIME)
    assert allow(slower, key, [read]).accepted
    assert allow(slower, other, [read]).accepted == (other == key)


def test_more_time_accepts_nothing_that_calls_leave() -> None:
    """A leak needs a line of its own, beside a slowdown or by itself; what else is slower does not."""
    time, counts = (parse_allowance(f"* {by} a cache", "1a2b3c4d5e6f") for by in ("<= +90%", "counts"))
    assert time is not None
    assert counts is not None
    leak, order = (Finding(kind, InWords("worse"), {}, gates=True) for kind in ("growth", "scale"))
    slower = replace(SLOWER, findings=(leak,))
    beyond = allow(slower, KEY, [time])
    assert (beyond.accepted, beyond.also) == (False, (BeyondAllowance("1a2b3c4d5e6f", 0.9, 1.08, ("growth",)),))
    assert allow(slower, KEY, [time, counts]).accepted
    assert allow(replace(SLOWER, findings=(order, replace(leak, gates=False))), KEY, [time]).accepted
    found = replace(by_counts(SAME_TIME), findings=(leak,))
    assert not allow(found, KEY, [time]).accepted
    assert allow(found, KEY, [counts]).accepted


KEYS = [
    KEY,
    "tests/test_perf.py::test_gae[512-8]",
    "tests/test_perf.py::TestSAC::test_update",
    "perf/test_b.py::test_b",
]


@pytest.mark.parametrize(
    "pattern",
    [
        "test_gea*",
        "test_gae",
        "test_update",
        "tests/test_perf.py::test_gea",
        "*rollout*",
    ],
)
def test_a_trailer_that_fits_no_test_is_named(pattern: str, wording: Wording) -> None:
    """With its commit, and the name that may have been meant, in the form that would fit."""
    (note,) = unmatched([allowance(KEYS[0]), allowance(pattern)], KEYS)
    assert note_lines([UnmatchedAllowance(*note)], verbose=False) == wording


def stored_in(store: Store, session: str, relative: float, **changes: Any) -> StoredResult:
    """Store figures of one test, and return what the baseline then has of it."""
    result = replace(measured(relative), **changes)
    provenance = builders.provenance(commit=session * 40, created=f"2026-0{session}-01")
    store.write(session, provenance, {KEY: builders.stored(result, session)})
    baseline = store.read()
    assert baseline is not None
    return baseline.results[KEY]


def measured(relative: float, **changes: Any) -> Result:
    return builders.result(KEY, workers=(builders.worker(1e-3, relative),) * 5, **changes)


# Both tests are slower by what they do as well: a busy machine can make their time UNDECIDED, but not their counts.
MEASURED = ("--rlperf-max-time=1", "--rlperf-findings=counts=gate")


@pytest.mark.parametrize("suspect", [False, True])
@pytest.mark.parametrize("by", ["counts", "<= +9%"])
def test_counts_that_are_meant_store_no_time_that_may_be_slower(
    tmp_path: Path, pytester: pytest.Pytester, by: str, suspect: bool
) -> None:
    """Figures whose time is under suspicion replace no others where a commit accepts counts alone."""
    run = RunState(read_config(pytester.parseconfig("--rlperf-save-baseline")), pytester.path)
    stored_in(run.baselines.store, "1", 10.0)
    run = RunState(run.settings, pytester.path)
    time = replace(SLOWER, status=Status.UNDECIDED, suspect=suspect)
    said = parse_allowance(f"test_gae* {by} logged", "1a2b3c4d5e6f")
    assert said is not None
    verdict = allow(by_counts(time), KEY, [said])
    assert verdict.accepted
    run.outcomes.add(Outcome(measured(10.8), run.baselines.stored(KEY), None, verdict, 1.0))
    save(run, set())
    assert run.saved is not None
    assert list(run.saved.kept_back) == ([KEY] if by == "counts" and suspect else [])


@pytest.mark.slow
def test_what_a_commit_means_is_let_through_and_told(tmp_path: Path, wording: Wording) -> None:
    """One slowdown is accepted, one is more than what was; figures that replace others keep why, and those before."""
    files = {"GITHUB_STEP_SUMMARY": tmp_path / "summary.md", "GITHUB_OUTPUT": tmp_path / "output"}
    example = Example(tmp_path, "acceptance", **{name: str(path) for name, path in files.items()})
    example.commit("First")
    example.pytest("--rlperf-save-baseline", "-k", "meant", *MEASURED, code=OK)
    path, stored = baseline(example)
    meant = stored["results"]["test_it.py::test_meant"]
    # Both do the same, so one was measured.
    slipped = {**meant, "result": {**meant["result"], "nodeid": "test_it.py::test_slipped"}}
    stored["results"]["test_it.py::test_slipped"] = slipped
    path.write_text(json.dumps(stored), encoding="utf-8")
    example.write({"work.py": builders.source("acceptance/work.py").replace("ROUNDS = 500", "ROUNDS = 2000")})
    accepting = ("test_meant <= +1900% two critics", "test_slipped <= +9% a copy", "test_ment counts a slip of the pen")
    trailers = "\n".join(f"Rlperf-Accept: {each}" for each in accepting)
    sha = example.commit(f"Four times\n\n{trailers}")[:12]

    run = example.pytest("--rlperf", *MEASURED, GITHUB_ACTIONS="true", code=FAILED)
    assert run.counts == "1 failed, 1 passed"
    assert run.statuses == {"test_meant": "SLOWER", "test_slipped": "SLOWER"}
    judged = {name: entry["verdict"] for name, entry in run.tests.items()}
    assert {name: each["accepted"] for name, each in judged.items()} == {"test_meant": True, "test_slipped": False}
    assert judged["test_meant"]["allowance"]["reason"] == "two critics"
    assert "SLOWER (accepted)" in run.out
    assert re.search(rf" 9 % .*{sha}", run.error("test_slipped"))
    (note,) = run.notes("test_ment'")
    assert sha in note
    assert re.search(rf"^::error file=work.py,line=.* 9 %25 .*{sha}", run.out, re.MULTILINE)
    summary = unescape(files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"))
    assert re.search(rf"accepted up to 1900 % by {sha}: two critics", summary)
    assert "Rlperf-Accept: test_it.py::test_slipped " in summary
    assert "'test_ment'" in summary

    before = baseline(example)[1]["results"]["test_it.py::test_meant"]
    saved = example.pytest("--rlperf-save-baseline", "-k", "meant", *MEASURED, code=OK)
    assert len(saved.notes("Rlperf-Accept")) == 1  # what -k leaves out is there all the same
    kept = baseline(example)[1]["results"]["test_it.py::test_meant"]
    assert kept["accepted"]["reason"] == f"two critics ({sha})"
    times = [worker["wall"] for worker in before["result"]["workers"]]
    assert kept["accepted"]["previous_call_s"] == statistics.median(time["call_s"] for time in times)


def baseline(example: Example) -> tuple[Path, Any]:
    (path,) = (example.root / "baselines" / "default").glob("*.json")
    return path, json.loads(path.read_bytes())
