"""Saving of figures: a run stores each test by itself."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import builders
import pytest
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Allowance, Outcome, Status, Verdict
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.notes import KeptBack
from pytest_rlperf.model.reasons import WrittenReason
from pytest_rlperf.model.stored import Acceptance, Link, PairSpread
from pytest_rlperf.options import read_config
from pytest_rlperf.report.wording import message, saved_lines, verdict_message
from pytest_rlperf.run.saving import save
from pytest_rlperf.run.state import RunState

pytestmark = pytest.mark.usefixtures("alone")

NewRun = Callable[..., RunState]

SAME = builders.verdict(Status.SAME, 1.0, code="stored", message="stored numbers certify less than ±3 %")
NEW = replace(
    SAME, status=Status.NEW, reason=WrittenReason("new", "no baseline yet: nothing to compare with"), estimate=None
)
SLOWER = replace(SAME, status=Status.SLOWER, suspect=True)
SUSPECT = replace(SAME, status=Status.UNDECIDED, suspect=True)


@pytest.fixture
def new_run(pytester: pytest.Pytester) -> NewRun:
    """Return what makes another run in one directory, with more arguments."""

    def new(*args: str) -> RunState:
        return RunState(read_config(pytester.parseconfig("--rlperf-save-baseline", *args)), pytester.path)

    return new


def enter(
    run: RunState, name: str, verdict: Verdict, call_s: float = 1e-3, workers: int = 5, idle: float = 0.0
) -> Outcome:
    """Add the outcome of a test whose figures differ from other runs' of it."""
    worker = builders.worker(call_s, 100 * call_s, 50 * call_s, idle_cpu_share=idle)
    key = f"test_it.py::{name}"
    result = builders.result(key, workers=(worker,) * workers)
    outcome = Outcome(result, run.baselines.stored(key), None, verdict, 1.0)
    run.outcomes.add(outcome)
    return outcome


def stored_ms(run: RunState) -> dict[str, float]:
    """Return the milliseconds of a call that the file has of each test."""
    baseline = run.baselines.store.read()
    results = {} if baseline is None else baseline.results
    return {key.removeprefix("test_it.py::"): 1e3 * entry.result.call_s for key, entry in results.items()}


def test_each_test_is_stored_or_kept_by_itself(new_run: NewRun, wording: Wording) -> None:
    """A test that may be slower keeps its old figure, gated or not, and all other valid figures are stored."""
    first = new_run()
    for name in ("test_same", "test_maybe", "test_slower", "test_shown", "test_broken", "test_odd", "test_few"):
        enter(first, name, NEW)
    save(first, failed=())
    assert set(stored_ms(first).values()) == {1.0}

    second = new_run()
    enter(second, "test_same", SAME, 2e-3)
    enter(second, "test_maybe", SUSPECT, 2e-3)
    enter(second, "test_slower", SLOWER, 2e-3)
    enter(second, "test_shown", replace(SLOWER, gated=False), 2e-3)
    enter(second, "test_broken", SUSPECT, 2e-3)
    enter(second, "test_odd", replace(SLOWER, status=Status.INVALID), 2e-3)
    enter(second, "test_few", SLOWER, 2e-3, workers=2)
    enter(second, "test_fresh", replace(SLOWER, suspect=False), 2e-3)  # than another side, with no figures stored
    enter(second, "test_new", NEW, 2e-3)
    save(second, failed={"test_it.py::test_slower", "test_it.py::test_broken"})
    kept = ("test_maybe", "test_slower", "test_shown", "test_broken", "test_odd", "test_few")
    assert stored_ms(second) == {"test_same": 2.0, "test_new": 2.0, **dict.fromkeys(kept, 1.0)}
    assert second.saved is not None
    assert second.saved.stored == ("test_it.py::test_same", "test_it.py::test_new")
    assert second.saved.kept_back == {
        "test_it.py::test_broken": KeptBack.FAILED,
        "test_it.py::test_odd": KeptBack.INVALID,
        "test_it.py::test_few": KeptBack.FEW_WORKERS,
        **{f"test_it.py::{name}": KeptBack.SLOWER for name in ("test_maybe", "test_slower", "test_shown")},
        "test_it.py::test_fresh": KeptBack.SLOWER_AND_NEW,
    }
    assert sorted(saved_lines(second.saved)[2:]) == wording


UNSETTLED = replace(
    SAME,
    status=Status.UNDECIDED,
    reason=reasons.StoredSpread(0.03, 0.3),
    also=(reasons.NotSettledLive(reasons.NoCode.OUTSIDE_GIT),),
)


def test_a_figure_that_nothing_has_settled_is_not_stored_unasked(new_run: NewRun, wording: Wording) -> None:
    """Stored numbers alone cannot exclude that it is slower: the old one stays, unless a commit accepts the new one."""
    first = new_run()
    enter(first, "test_old", NEW)
    save(first, failed=())
    second = new_run()
    enter(second, "test_old", UNSETTLED, 2e-3)
    enter(second, "test_new", UNSETTLED, 2e-3)  # of other machines there are figures, of this there are none
    save(second, failed=())
    assert stored_ms(second) == {"test_old": 1.0, "test_new": 2.0}
    assert second.saved is not None
    assert second.saved.kept_back == {"test_it.py::test_old": KeptBack.UNDECIDED}
    assert saved_lines(second.saved)[-1] == wording
    third = new_run()
    enter(third, "test_old", accepted(UNSETTLED, "measured twice"), 2e-3)
    save(third, failed=())
    assert stored_ms(third)["test_old"] == 2.0


def test_sessions_of_equal_code_are_marked(new_run: NewRun) -> None:
    """Equal speed counts where pairs, or the code itself, show it; stored numbers choose sessions that lie close."""
    first = new_run()
    for name in ("test_pairs", "test_code", "test_wide", "test_stored", "test_faster", "test_against"):
        enter(first, name, NEW)
    save(first, failed=())
    second = new_run()
    second.provenance()
    second._provenance = replace(second.provenance(), created="2030-01-01T00:00:00+00:00")
    by_pairs = replace(SAME, reason=reasons.PairsSame(3, 0.03))
    enter(second, "test_pairs", by_pairs)
    enter(second, "test_code", replace(SAME, reason=reasons.SameCode("main", files=3), estimate=None))
    enter(second, "test_wide", replace(by_pairs, estimate=builders.estimate(1.1)))
    enter(second, "test_stored", replace(SAME, reason=reasons.StoredSame(0.03)))
    enter(second, "test_faster", replace(by_pairs, status=Status.FASTER))
    save(second, failed=())
    assert marks(second) == {
        "test_pairs": [False, True],
        "test_code": [False, True],
        "test_wide": [False, False],
        "test_stored": [False, False],
        "test_faster": [False, False],
        "test_against": [False],
    }
    against = new_run("--rlperf-against=main")
    against.provenance()
    against._provenance = replace(against.provenance(), created="2031-01-01T00:00:00+00:00")
    enter(against, "test_against", by_pairs)
    save(against, failed=())
    assert marks(against)["test_against"] == [False, False]


def marks(run: RunState) -> dict[str, list[bool]]:
    """Return whether each kept session of each test is marked as of the same code as the one before."""
    baseline = run.baselines.store.read()
    assert baseline is not None
    return {
        key.removeprefix("test_it.py::"): [session.same_code for session in entry.history]
        for key, entry in baseline.results.items()
    }


def test_the_spread_of_live_pairs_is_stored(new_run: NewRun) -> None:
    """By the clock that decided; a single pair has none."""
    run = new_run()
    pairs = tuple(builders.pair(ratio, wall_log_ratio=9 * ratio, alone=True) for ratio in (0.01, 0.02, 0.06))
    for name, measured in (("test_pairs", pairs), ("test_pair", pairs[:1])):
        outcome = enter(run, name, SAME)
        run.outcomes.add(replace(outcome, live=Live("main", "HEAD", outcome.result, measured, ())))
    save(run, failed=())
    baseline = run.baselines.store.read()
    assert baseline is not None
    assert baseline.results["test_it.py::test_pairs"].pairs == PairSpread(0.0014, 2.0)
    assert baseline.results["test_it.py::test_pair"].pairs is None


def test_a_comparison_with_the_baselines_own_commit_is_a_link(new_run: NewRun) -> None:
    """From its commit to the one that is stored, with its error; equal code has none, uncommitted code no link."""
    shas = ["a" * 40, "b" * 40, "c" * 40, "d" * 40]
    names = ("test_pairs", "test_code", "test_other", "test_stored")
    for number, commit in enumerate(shas):
        run = new_run("--rlperf-against=v1") if number == 2 else new_run()
        created = f"203{number}-01-01T00:00:00+00:00"
        run.provenance()
        run._provenance = replace(run.provenance(), commit=commit, tree=None, dirty=number == 3, created=created)
        for name in names:
            outcome = enter(run, name, NEW if not number else replace(SAME, estimate=builders.estimate(1.02, 0.01)))
            if number and name in ("test_pairs", "test_other"):
                base = shas[0] if name == "test_other" else shas[number - 1]
                live = Live("base", "HEAD", outcome.result, (builders.pair(0.02),) * 3, (), base_commit=base)
                run.outcomes.add(replace(outcome, live=live))
        enter(run, "test_code", replace(SAME, reason=reasons.SameCode("main", files=3), estimate=None))
        save(run, failed=())
    baseline = run.baselines.store.read()
    assert baseline is not None
    links = {name: baseline.results[f"test_it.py::{name}"].links for name in names}
    assert [(link.base, link.head) for link in links["test_pairs"]] == [(shas[0], shas[1]), (shas[1], shas[2])]
    found = links["test_pairs"][0]
    half = math.log(1.03 / 1.01) / 2
    assert (found.log_ratio, 2.5758 * found.error) == pytest.approx((math.log(1.02), half), rel=1e-4)
    assert links["test_code"] == (Link(shas[0], shas[1], 0.0, 0.0), Link(shas[1], shas[2], 0.0, 0.0))
    assert [(link.base, link.head) for link in links["test_other"]] == [(shas[0], shas[1])]
    assert links["test_stored"] == ()


def accepted(verdict: Verdict, reason: str) -> Verdict:
    return replace(verdict, accepted=True, allowance=Allowance("test_*", 9.0, reason, "1a2b3c4d5e6f"))


def store_accepted(new_run: NewRun, reason: str) -> Acceptance:
    """Store slower figures with a reason in the place of faster ones; return their acceptance as it is stored."""
    first = new_run()
    enter(first, "test_a", NEW)
    save(first, failed=())
    second = new_run()
    enter(second, "test_a", accepted(SLOWER, reason), 2e-3)
    save(second, failed=())
    baseline = second.baselines.store.read()
    assert baseline is not None
    acceptance = baseline.results["test_it.py::test_a"].accepted
    assert acceptance is not None
    return acceptance


def test_what_is_accepted_is_stored_with_its_reason(new_run: NewRun) -> None:
    """Slower figures that a commit accepts take the place of faster ones, which are remembered."""
    found = store_accepted(new_run, "bigger net")
    assert (found.reason, found.previous_call_s) == ("bigger net (1a2b3c4d5e6f)", 1e-3)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_time_that_broke_the_rules_is_not_stored_whatever_counts_say(new_run: NewRun, *, is_accepted: bool) -> None:
    """A verdict that rests on counts stands, accepted or not; the figure beside it is no figure."""
    first = new_run()
    enter(first, "test_a", NEW)
    save(first, failed=())
    second = new_run()
    for status in (Status.SLOWER, Status.FASTER):
        by_counts = replace(SAME, status=status, reason=WrittenReason("counters", "ops 4 → 5"))
        verdict = accepted(by_counts, "logged") if is_accepted else by_counts
        enter(second, "test_a", verdict, 2e-3, idle=0.25)
        save(second, failed=())
        assert second.saved is not None
        assert second.saved.kept_back == {"test_it.py::test_a": KeptBack.INVALID_TIME}
        assert stored_ms(second) == {"test_a": 1.0}


def test_what_could_not_be_written_is_not_said_to_be_stored(new_run: NewRun, wording: Wording) -> None:
    """A directory that has become a file meanwhile takes no figures, and nothing says it did."""
    run = new_run()
    enter(run, "test_a", NEW)
    shutil.rmtree(run.baselines.store.directory.parent)
    run.baselines.store.directory.parent.write_text("in the way")
    with wording.raises(BaselineError):
        save(run, failed=())
    assert run.saved is None
    assert message(run.outcomes.tests["test_it.py::test_a"]) == verdict_message(NEW)


def test_who_accepts_is_kept(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name and address that git has."""
    for number, (name, value) in enumerate({"user.name": "Bo", "user.email": "bo@example.org"}.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    assert store_accepted(new_run, "why").by == "Bo <bo@example.org>"
