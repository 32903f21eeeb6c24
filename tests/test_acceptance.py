"""Slowdowns that are meant: what commits say, what it does to verdicts and baselines, and what many of them come to."""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_rlperf.baseline.store import Store
from pytest_rlperf.cli import main
from pytest_rlperf.judge.allowance import allow
from pytest_rlperf.judge.creep import creep
from pytest_rlperf.measure.sides.trailers import parse_allowance, read_allowances
from pytest_rlperf.model import (
    Allowance,
    CounterChange,
    Estimate,
    Figures,
    Machine,
    Provenance,
    Reason,
    Result,
    Status,
    StoredResult,
    Verdict,
    WorkerRecord,
)

SLOWER = Verdict(
    status=Status.SLOWER,
    reason=Reason("live", "4 live pairs"),
    estimate=Estimate(1.08, 1.06, 1.10, 0.99, 1.06, 1.10),
    smallest_seen=0.03,
    suspect=True,
    gated=True,
    accepted=False,
)
KEY = "tests/test_perf.py::test_gae[128-8]"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, "First\n\nRlperf-Accept: * <= +50% long ago")
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    """Run git in a directory, and return what it printed."""
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    return subprocess.run(
        ["git", *who, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(directory: Path, message: str) -> str:
    """Make an empty commit, and return its SHA."""
    git(directory, "commit", "-q", "--allow-empty", "--no-verify", "-m", message)
    return git(directory, "rev-parse", "HEAD")


# ------------------------------------------------------------------ reading


def test_trailers_of_the_change_alone_count(repository: Path) -> None:
    """What commits since base say is read, the last first; what base itself says was its own change's."""
    base = git(repository, "rev-parse", "HEAD")
    first = commit(repository, "Two critics\n\nRlperf-Accept: test_sac* <= +12.5% two critics\n  instead of one")
    last = commit(repository, "Both\n\nRlperf-Accept: test_gae[128-8] <=9 % copies\nRlperf-Accept: *ppo* <= +3% a: b")
    found, notes = read_allowances(repository, base)
    assert not notes
    assert found == [
        Allowance("test_gae[128-8]", 0.09, "copies", last[:12]),
        Allowance("*ppo*", 0.03, "a: b", last[:12]),
        Allowance("test_sac*", 0.125, "two critics instead of one", first[:12]),
    ]


def test_a_line_that_git_takes_for_no_trailer_accepts_nothing_and_is_named(repository: Path) -> None:
    """Trailers are the last paragraph of a message; elsewhere the line is text, which its author should know."""
    base = git(repository, "rev-parse", "HEAD")
    sha = commit(repository, "Slower\n\nRlperf-Accept: * <= +50% one thing\n\nAnd another.")
    found, (note,) = read_allowances(repository, base)
    assert not found
    assert note.startswith(f"Rlperf-Accept of {sha[:12]} accepts nothing: it is not in the last paragraph")


def test_settings_of_git_change_nothing(repository: Path) -> None:
    """What git would show beside a commit's message is not taken for a part of it."""
    git(repository, "config", "log.showSignature", "true")
    git(repository, "config", "color.ui", "always")
    base = git(repository, "rev-parse", "HEAD")
    sha = commit(repository, "Slower\n\nRlperf-Accept: * <= +50% one thing\nCo-authored-by: Bo <bo@example.org>")
    assert read_allowances(repository, base) == ([Allowance("*", 0.5, "one thing", sha[:12])], [])


@pytest.mark.parametrize(
    "value", ["test_gae", "test_gae <= 9% ", "<= +9% why", "test_gae <= nine% why", "test_gae > 9% x"]
)
def test_a_trailer_that_cannot_be_read_accepts_nothing_and_is_named(repository: Path, value: str) -> None:
    """A slip of the pen is told with the form that was expected."""
    base = git(repository, "rev-parse", "HEAD")
    sha = commit(repository, f"Slower\n\nRlperf-Accept: {value}")
    found, (note,) = read_allowances(repository, base)
    assert not found
    assert sha[:12] in note
    assert repr(value.strip()) in note
    assert "<= +10% the reason" in note


def test_nothing_is_allowed_where_git_tells_nothing(tmp_path: Path) -> None:
    """A directory without a repository, or a base it does not have, allows nothing."""
    assert read_allowances(tmp_path, "0" * 40) == ([], [])


# ------------------------------------------------------------------ judging


def allowance(pattern: str, percent: float = 9) -> Allowance:
    """Return an allowance as a commit gives it."""
    found = parse_allowance(f"{pattern} <= +{percent}% larger networks", "1a2b3c4d5e6f")
    assert found is not None
    return found


@pytest.mark.parametrize("pattern", ["*", "test_gae*", "test_gae[128-8]", KEY, "tests/*"])
def test_a_slowdown_that_is_meant_is_accepted_with_its_reason(pattern: str) -> None:
    """It stays SLOWER, does not fail, and says who meant it and why."""
    verdict = allow(SLOWER, KEY, [allowance(pattern)])
    assert verdict.status is Status.SLOWER
    assert verdict.accepted
    assert not verdict.fails(strict=True)
    assert verdict.reason.message == "4 live pairs; accepted up to 9 % by 1a2b3c4d5e6f: larger networks"


def test_more_than_was_meant_fails_and_says_so() -> None:
    """The percentage is a bound, of the widest allowance that fits."""
    verdict = allow(SLOWER, KEY, [allowance("test_gae*", 5), allowance("*", 7)])
    assert verdict.fails(strict=False)
    assert verdict.reason.message == "4 live pairs; +8.0 % is more than the 7 % that 1a2b3c4d5e6f accepts"
    assert allow(SLOWER, KEY, [allowance("*", 5), allowance("*", 8)]).accepted


def test_others_are_left_alone() -> None:
    """Another test, and another verdict, is what it was."""
    assert allow(SLOWER, KEY, [allowance("test_sac*")]) == SLOWER
    undecided = replace(SLOWER, status=Status.UNDECIDED)
    assert allow(undecided, KEY, [allowance("*")]) == undecided


def test_more_that_is_counted_is_accepted_too() -> None:
    """Exact counts have no percentage: where the time is within what is meant, or unknown, they are meant as well."""
    more = CounterChange("gae", "ops:aten::mm", 1, 2)
    verdict = replace(SLOWER, estimate=None, reason=Reason("counters", "gae: aten::mm 1 → 2"), counters=(more,))
    assert allow(verdict, KEY, [allowance("test_gae*")]).accepted


# ------------------------------------------------------------------ slow creep


def stored_in(store: Store, session: str, relative: float, **changes: Any) -> StoredResult:
    """Store figures of one test, and return what the baseline then has of it."""
    result = replace(measured(relative), **changes)
    provenance = Provenance(session * 40, None, False, f"2026-0{session}-01", {})
    store.write(session, provenance, {KEY: StoredResult(result, session, None)})
    baseline = store.read()
    assert baseline is not None
    return baseline.results[KEY]


def measured(relative: float, **changes: Any) -> Result:
    """Return figures of five workers, as multiples of the kernel."""
    figures = Figures(1e-3, relative, relative)
    worker = WorkerRecord(figures, figures, False, False, 8.0, 40, 400, 1.0, 0.0, 0, 1, 0)
    return replace(Result(KEY, "gae", "transition", 8.0, (worker,) * 5, (), 0.0, ()), **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store of baselines that has none yet."""
    return Store(tmp_path, "default", Machine("Linux", "x86_64", "Made Up 9000", 4, "CPython 3.11", 1))


def test_small_steps_add_up(store: Store) -> None:
    """Each baseline is 2 % slower than the last; the change since the first is told beside today's."""
    first = stored_in(store, "1", 10.0)
    assert first.first is None
    assert creep(measured(10.2), first, None) is None
    stored_in(store, "2", 10.2)
    third = stored_in(store, "3", 10.4)
    found = creep(measured(10.6), third, None)
    assert found is not None
    assert found.ratio == pytest.approx(1.06)
    assert (found.created, found.commit) == ("2026-01-01", "1" * 40)


def test_live_pairs_tell_the_last_step(store: Store) -> None:
    """They have no kernel: their ratio is the step from the stored figures, whose distance from the first is known."""
    stored_in(store, "1", 10.0)
    second = stored_in(store, "2", 11.0)
    live = measured(0.0)
    found = creep(live, second, 1.1)
    assert found is not None
    assert found.ratio == pytest.approx(1.21)
    assert creep(live, second, None) is None


def test_another_workload_begins_anew(store: Store) -> None:
    """Figures of calls of another size are the first of their kind; storing one session twice makes no step."""
    stored_in(store, "1", 10.0)
    assert stored_in(store, "1", 10.0).first is None
    assert stored_in(store, "2", 20.0, items=16.0).first is None


# ------------------------------------------------------------------ all of it

WORK = """
    def meant():
        return sum(range({rounds}))


    def slipped():
        return sum(range({rounds}))
"""
TESTS = """
    from work import meant, slipped


    def test_meant(rlperf):
        rlperf(meant)


    def test_slipped(rlperf):
        rlperf(slipped)
"""
MEASURED = ("-p", "no:cacheprovider", "--rlperf-confirm=never", "--rlperf-max-time=1")


@pytest.fixture
def project(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project whose commit makes two tests twice as slow, one of which its message accepts."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    pytester.makefile(".ini", pytest="[pytest]")
    (pytester.path / ".gitignore").write_text("__pycache__\nrunpytest-*\nstd*\n", encoding="utf-8")
    pytester.makepyfile(test_it=TESTS, work=WORK.format(rounds=4000))
    git(pytester.path, "init", "-q")
    git(pytester.path, "add", "--all")
    commit(pytester.path, "First")
    assert pytester.runpytest_subprocess("--rlperf-save-baseline", "-k", "meant", *MEASURED).ret == 0
    (path,) = (pytester.path / "baselines" / "default").glob("*.json")
    stored = json.loads(path.read_bytes())
    meant = stored["results"]["test_it.py::test_meant"]
    # Both do the same, so one was measured.
    slipped = {**meant, "result": {**meant["result"], "nodeid": "test_it.py::test_slipped"}}
    stored["results"]["test_it.py::test_slipped"] = slipped
    path.write_text(json.dumps(stored), encoding="utf-8")
    pytester.makepyfile(work=WORK.format(rounds=8000))
    git(pytester.path, "add", "--all")
    accepting = "Rlperf-Accept: test_meant <= +300% two critics\nRlperf-Accept: test_slipped <= +9% a copy"
    commit(pytester.path, f"Twice\n\n{accepting}")
    return pytester


@pytest.mark.slow
def test_what_a_commit_means_is_let_through_and_told(
    project: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slowdown is accepted, one is more than what was; figures that replace others keep why, and those before."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    sha = git(project.path, "rev-parse", "--short=12", "HEAD")
    run = project.runpytest_subprocess("--rlperf", "--rlperf-json=run.json", *MEASURED)
    assert run.ret == 1
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(
        [
            "E       *more than the 9 % that * accepts",
            "test_meant *SLOWER (accepted)",
            "test_slipped *SLOWER",
            f"::notice file=test_it.py,line=*accepted up to 300 %25 by {sha}: two critics",
        ]
    )
    verdicts = {
        key: test["verdict"] for key, test in json.loads((project.path / "run.json").read_bytes())["tests"].items()
    }
    assert verdicts["test_it.py::test_meant"]["allowance"]["reason"] == "two critics"
    assert not verdicts["test_it.py::test_slipped"]["accepted"]
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "Slower on purpose:\n\n- <code>test&#95;meant</code>: " in summary
    assert f"accepted up to 300 % by {sha}&#58; two critics" in summary
    assert "Rlperf-Accept: test_slipped <= +" in summary
    monkeypatch.delenv("GITHUB_ACTIONS")

    before = baseline(project)
    saved = project.runpytest_subprocess("--rlperf-save-baseline", "-k", "meant", *MEASURED)
    assert saved.ret == 0
    kept = baseline(project)["test_it.py::test_meant"]
    assert kept["accepted"]["reason"] == f"two critics ({sha})"
    assert kept["accepted"]["previous_call_s"] == median_s(before["test_it.py::test_meant"])
    assert kept["first"]["relative"] == [
        one["wall"]["relative"] for one in before["test_it.py::test_meant"]["result"]["workers"]
    ]

    monkeypatch.chdir(project.path)
    assert (
        main(["accept", "run.json", "-k", "slipped", "--reason", "a copy more", "--by", "Ann <ann@example.org>"]) == 0
    )
    kept = baseline(project)["test_it.py::test_slipped"]
    assert (kept["accepted"]["reason"], kept["accepted"]["by"]) == ("a copy more", "Ann <ann@example.org>")
    assert kept["accepted"]["previous_call_s"] == median_s(before["test_it.py::test_slipped"])


def baseline(project: pytest.Pytester) -> dict[str, Any]:
    """Return what the project's baseline has of each test."""
    (path,) = (project.path / "baselines" / "default").glob("*.json")
    results: dict[str, Any] = json.loads(path.read_bytes())["results"]
    return results


def median_s(entry: dict[str, Any]) -> float:
    """Return the median over workers of a call's seconds."""
    return statistics.median(float(worker["wall"]["call_s"]) for worker in entry["result"]["workers"])
