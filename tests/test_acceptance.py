from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_rlperf.baseline.store import Store
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
