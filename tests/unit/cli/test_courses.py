"""The course of tests over commits: lines, chains of live ratios, change points, and `rlperf history`."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import git
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.baseline.history import read_sessions
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.cli import main
from pytest_rlperf.judge.history import chains, courses, link_of
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.reasons import VersionChange
from pytest_rlperf.model.stored import (
    Break,
    Course,
    Link,
    LoggedCommit,
    Machine,
    Provenance,
    StoredSession,
    session_figures,
)
from pytest_rlperf.report.history import HistoryReport, render_history, render_history_page, step_command
from pytest_rlperf.sides.git import find_repository

TEST = "tests/test_gae.py::test_gae[128-8]"
HEADLINE = re.compile("<h1>(.*?)</h1>", re.DOTALL)
OTHER = replace(builders.MACHINE, cpu="Made Up 8000")
WIDE = builders.estimate(1.0, low=1e-300, high=1e18, confidence=0.5)  # as a file may have it


def sha(number: int) -> str:
    """Return a made-up SHA, whose first digits differ from others' too."""
    return f"{number:012x}{'f' * 28}"


def log(count: int) -> list[LoggedCommit]:
    return [
        LoggedCommit(sha(number), "A <a@x>", f"2026-01-{number + 1:02}T00:00:00+00:00", f"c{number}")
        for number in range(count)
    ]


def session(number: int, relative: float = 1.0, machine: Machine = builders.MACHINE, **changes: Any) -> StoredSession:
    """Return a session of a commit; ``changes`` replace fields."""
    created = f"2026-02-{number + 1:02}T00:00:00+00:00"
    name = f"{created} {sha(number)[:12]}"
    work = ("gae", "transition", 1024.0)
    made = StoredSession(machine, name, created, sha(number), "wall", work, relative, relative, 1e-3)
    return replace(made, **changes)


def course(sessions: Sequence[StoredSession] = (), links: Sequence[Link] = (), commits: int = 28) -> Course:
    (found,) = courses(
        {TEST: sessions} if sessions else {},
        {TEST: links} if links else {},
        log(commits),
    )
    return found


def link(base: int, head: int, ratio: float = 1.0, error: float = 0.002) -> Link:
    return Link(sha(base), sha(head), math.log(ratio), error)


def test_machines_never_share_a_line() -> None:
    """Each class has its own, and its own changes."""
    machines = {1.0: builders.MACHINE, 3.0: OTHER}
    sessions = [session(n, relative, machines[relative]) for n, relative in enumerate([3.0, 1.0] * 10)]
    found = course(sessions)
    assert [(line.machine, {point.value for point in line.points}) for line in found.lines] == [
        (OTHER, {3.0}),
        (builders.MACHINE, {1.0}),
    ]
    assert not found.steps


def test_a_line_is_cut_where_sessions_cannot_be_compared() -> None:
    """At another clock and another workload."""
    work = ("gae", "transition", 64.0)
    sessions = [session(0), session(1), session(2, clock="cpu"), session(3, clock="cpu", work=work)]
    (line,) = course(sessions).lines
    assert [(segment.begins, len(segment.points)) for segment in line.segments] == [
        (Break.FIRST, 2),
        (Break.CLOCK, 1),
        (Break.WORKLOAD, 1),
    ]


def test_sessions_without_a_place_leave_the_others_in_order() -> None:
    """Those of uncommitted changes or of another branch; where none has a place, time orders them."""
    late = session(1, 2.0, created="2026-03-01T00:00:00+00:00")
    others = [replace(late, commit="", name="changed"), session(0, 3.0, commit="e" * 40, name="other branch")]
    assert [point.value for point in course([session(2), late, *others]).lines[0].points] == [2.0, 1.0]
    assert [point.value for point in course(others).lines[0].points] == [3.0, 2.0]


def test_the_calmer_kernel_is_taken() -> None:
    """The one by which sessions in a row differ less."""
    sessions = [session(n, 1.0 + 0.3 * (n % 2), relative_memory=0.5) for n in range(6)]
    (line,) = course(sessions).lines
    assert (line.kernel, {point.value for point in line.points}) == ("memory", {0.5})


def test_a_change_of_the_code_does_not_choose_the_kernel() -> None:
    """It is one large step, beside which the memory kernel's noise looks small."""
    relative = [1.0, 1.01, 1.0, 1.01, 2.0, 2.01, 2.0, 2.01]
    memory = [1.0, 0.8, 1.0, 0.8, 1.0, 0.8, 1.0, 0.8]
    sessions = [
        session(n, now, relative_memory=other) for n, (now, other) in enumerate(zip(relative, memory, strict=True))
    ]
    (line,) = course(sessions).lines
    assert (line.kernel, [point.value for point in line.points]) == ("interpreter", relative)


def test_a_change_has_the_commits_between() -> None:
    """Every commit after the last one before it, and the search; a stored line shows no changes."""
    sessions = [session(n, 1.0 if n < 16 else 2.0) for n in range(24)]
    found = course(sessions, [link(0, 14), link(14, 17, 1.1), link(17, 20)])
    (step,) = found.steps
    assert step.low < 1.1 < step.high
    assert [commit.subject for commit in step.commits] == ["c15", "c16", "c17"]
    assert step_command(found, step) == f"rlperf bisect {sha(14)[:12]}..{sha(17)[:12]} '{TEST}'"


def test_a_change_has_no_commits_between_where_there_is_no_history() -> None:
    """Comparisons are then in the order of time, and the change stays."""
    (step,) = course(links=[link(0, 1, 1.1)], commits=0).steps
    assert step.commits == ()


def test_changes_that_no_search_would_find_are_left_out() -> None:
    """Under half the tolerance; a small one is searched with a smaller tolerance, a faster one not at all."""
    nothing, small, faster = (course(links=[link(0, 1, ratio)]) for ratio in (1.014, 1.03, 0.9))
    assert not nothing.steps
    assert "--rlperf-tolerance=1.5%" in step_command(small, small.steps[0])
    assert not step_command(faster, faster.steps[0])


def live(base: str | None) -> Live:
    return Live("base", "HEAD", builders.result(), (builders.pair(0.1),) * 3, (), base_commit=base)


def test_a_live_comparison_is_a_link_of_its_two_commits() -> None:
    """Its error is that of a normal interval as wide as its own; the packages that changed go with it."""
    packages = [VersionChange("numpy", "1", "2")]
    found = link_of(sha(1), sha(2), builders.outcome(live=live(sha(1)), judged=builders.verdict(ratio=1.1)), packages)
    assert found is not None
    assert (found.base, found.head, found.packages) == (sha(1), sha(2), (("numpy", "1", "2"),))
    assert found.log_ratio == pytest.approx(math.log(1.1))
    assert found.error == pytest.approx(math.log(1.11 / 1.09) / (2 * 2.5758293), rel=1e-6)


@pytest.mark.parametrize("code", ["code", "environment"])
def test_equal_code_is_a_link_without_an_error(code: str) -> None:
    """Nothing was measured, and nothing can have changed."""
    assert link_of(sha(1), sha(2), builders.outcome(judged=builders.verdict(code=code))) == link(1, 2, error=0.0)


@pytest.mark.parametrize(
    ("base", "head", "found"),
    [
        (None, sha(2), builders.outcome()),
        (sha(1), None, builders.outcome()),
        (sha(1), sha(1), builders.outcome()),
        (sha(1), sha(2), builders.outcome(judged=builders.verdict(code="stored"))),
        (sha(1), sha(2), builders.outcome(judged=builders.verdict(Status.INVALID))),
        (sha(1), sha(2), builders.outcome(judged=builders.verdict(Status.INCOMPARABLE))),
        (sha(1), sha(2), builders.outcome(live=live(sha(1)))),
        (sha(1), sha(2), builders.outcome(live=live(sha(0)), judged=builders.verdict(ratio=1.1))),
        (sha(1), sha(2), builders.outcome(live=live(sha(1)), judged=builders.verdict(ratio=1.0, margin=1.0))),
        (sha(1), sha(2), builders.outcome(live=live(sha(1)), judged=builders.verdict(ratio=1.0, margin=math.inf))),
        (sha(1), sha(2), builders.outcome(live=live(sha(1)), judged=builders.verdict(estimate=WIDE))),
    ],
)
def test_other_comparisons_are_no_links(base: str | None, head: str | None, found: Outcome) -> None:
    """Those of unknown commits, of one commit, by stored figures, without an estimate, of another base, too wide."""
    assert link_of(base, head, found) is None


def test_errors_add_in_squares_and_a_gap_begins_anew() -> None:
    """The product along the chain; commits that are not in the history have no place in it."""
    links = [link(3, 4, 1.1, 0.003), link(0, 1, 1.02, 0.003), link(1, 2, 0.99, 0.004), link(4, 99)]
    (line,) = course(links=links).lines
    first, second = line.segments
    assert line.machine is None
    assert [point.value for point in first.points] == pytest.approx([1.0, 1.02, 1.02 * 0.99])
    assert [point.error for point in first.points] == pytest.approx([0.0, 0.003, 0.005])
    assert first.points[2].created == "2026-01-03T00:00:00+00:00"
    assert (second.begins, [point.commit for point in second.points]) == (Break.GAP, [sha(3), sha(4)])


def test_of_several_comparisons_the_nearest_and_most_exact_stays() -> None:
    """A release is further away than the commit before."""
    order = {sha(number): number for number in range(5)}
    links = [link(0, 3, 1.2), link(2, 3, 1.1, 0.01), link(2, 3, 1.05, 0.001), link(0, 2)]
    assert chains(links, order, {}) == [[link(0, 2), link(2, 3, 1.05, 0.001)]]
    assert chains([link(4, 3)], order, {}) == []


def test_chains_of_equal_code_rarely_show_a_change() -> None:
    """In at most 5 % of them, and a change of six errors is one between the two commits."""
    luck = random.Random(3)
    rows = 300
    false = sum(
        bool(course(links=[link(n, n + 1, math.exp(luck.gauss(0, 0.01)), 0.01) for n in range(20)]).steps)
        for _ in range(rows)
    )
    assert false / rows <= 0.05
    (step,) = course(links=[link(n, n + 1, 1.06 if n == 7 else 1.0, 0.01) for n in range(20)]).steps
    assert (step.before.commit, step.after.commit) == (sha(7), sha(8))
    assert step.ratio == pytest.approx(1.06)
    assert step.low < 1.06 < step.high


def report(*found: Course) -> HistoryReport:
    return HistoryReport(found, {builders.MACHINE: "aaaaaaaa", OTHER: "bbbbbbbb"}, "read it", ("a note",))


def test_a_terminal_is_done_no_harm() -> None:
    """Control characters in names are spelled out, and a name is no command to GitHub's runner."""
    found = replace(course([session(0)]), test="::error::\x1b[2J")
    text = render_history(report(found))
    assert "\x1b" not in text
    assert not text.startswith("::")


def test_the_page_draws_every_point_within_the_plot(wording: Wording) -> None:
    """It loads nothing, runs nothing, and holds no markup of a test's name."""
    luck = random.Random(1)
    sessions = [session(n, (1.0 if n < 8 else 1.1) * math.exp(luck.gauss(0, 0.01))) for n in range(16)]
    found = replace(course(sessions, [link(17, 18), link(18, 19, 1.2)]), test="<script>alert(1)</script>")
    pytest.importorskip("jinja2")
    page = render_history_page(report(found))
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert page.count("<circle") == 16 + 3
    assert page.count('class="slowdown"') == 1
    assert HEADLINE.findall(page) == wording
    places = [float(place) for place in re.findall(r'(?:cx|cy|y1|y2)="([^"%]+)%"', page)]
    assert len(places) > 40
    assert all(0 <= place <= 100 for place in places)


def store(top: Path, number: int, commit: str, call_s: float, links: tuple[Link, ...] = (), **changes: Any) -> None:
    """Store a session's figures of two tests as a run does, and commit the file; ``changes`` are of its origin."""
    made = Provenance(commit, None, False, f"2026-02-{number + 1:02}T00:00:00+00:00", {"numpy": "2"})
    origin = replace(made, **changes)
    name = f"{origin.created} {commit[:12]}"
    luck = random.Random(number)
    entries = {}
    for key in (TEST, "tests/test_sac.py::test_sac"):
        workers = tuple(builders.worker(call_s * math.exp(luck.gauss(0, 0.005))) for _ in range(5))
        result = builders.result(key, workers=workers)
        history = (session_figures(result, name, same_code=False),)
        entries[key] = replace(builders.stored(result, name), history=history, links=links if key == TEST else ())
    Store(top / "baselines", "default", builders.MACHINE).write(name, origin, entries)
    git(top, "add", "baselines")
    git(top, "commit", "-qm", f"Store {number}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of twelve sessions; from the seventh on both tests are 10 % slower, one live comparison."""
    top = tmp_path_factory.mktemp("made")
    git(top, "init", "-q")
    before = ""
    for number in range(12):
        builders.write(top, {"code.py": f"A = {number}\n"})
        git(top, "add", "code.py")
        git(top, "commit", "-qm", f"Change {number}")
        commit = git(top, "rev-parse", "HEAD")
        links = (Link(before, commit, math.log(1.1), 0.004),) if number == 6 else ()
        store(top, number, commit, 1e-3 if number < 6 else 1.1e-3, links)
        before = commit
    return top


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of that repository, which is the present directory."""
    top = tmp_path / "here"
    shutil.copytree(made, top)
    monkeypatch.chdir(top)
    return top


def test_history_is_read_from_git(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All sessions, those the file no longer has too; the change, its commits and the search."""
    pytest.importorskip("jinja2")
    assert main(["history", "--html", "out/history.html"]) == 0
    assert capsys.readouterr().out == "wrote out/history.html\n"
    assert main(["history"]) == 0
    text = capsys.readouterr().out
    six, seven = git(here, "log", "--format=%h", "--abbrev=12", "--grep=Change [56]", "--reverse").split()
    assert re.search(rf"slower \+10\.0 % \[\+8\.9 %, \+11\.1 %\] .*\bpairs, from {six} to {seven}: 2 ", text)
    assert f"rlperf bisect {six}..{seven} '{TEST}'" in text
    assert text.count("12 sessions") == 2
    page = (here / "out/history.html").read_text(encoding="utf-8")
    assert page.count("<circle") == 2 * 12 + 2
    assert "Change 6" in page
    assert " per call" in page
    found = sorted(read(here), key=lambda each: each.created)
    assert [each.commit for each in found] == git(here, "log", "--format=%H", "--grep=Change", "--reverse").split()
    assert {(each.clock, each.call_s is None) for each in found} == {("wall", False)}
    assert [each.created[:10] for each in found[::11]] == ["2026-02-01", "2026-02-12"]


def read(top: Path) -> list[StoredSession]:
    """Return the sessions of a test that its baseline's versions have."""
    return list(read_sessions(find_repository(top), top / "baselines/default").tests[TEST].values())


def test_a_broken_version_in_history(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A version that is no baseline is left out and named, and other files are read."""
    (path,) = (here / "baselines/default").glob("*.json")
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    git(here, "commit", "-qam", "Break it")
    broken = git(here, "rev-parse", "--short=12", "HEAD")
    sample = Path(__file__).parents[2] / "samples/baseline.json"
    shutil.copy(sample, here / "baselines/default/other.json")
    path.write_bytes(whole)
    git(here, "add", "--all")
    git(here, "commit", "-qm", "Mend it")
    assert main(["history"]) == 0
    text = capsys.readouterr().out
    assert f"baselines/default/{path.name} of {broken}: " in text
    assert len(read_sessions(find_repository(here), here / "baselines/default").tests) > 2


def test_a_shallow_clone_says_where_history_begins(
    here: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """And how to get the rest; the sessions that the file itself has are shown."""
    git(here.parent, "clone", "-q", "--depth=3", f"file://{here}", "shallow")
    begins = git(here, "rev-parse", "--short=12", "HEAD~2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here.parent / "shallow")
        assert main(["history"]) == 0
    text = capsys.readouterr().out
    assert [line.replace(begins, "COMMIT") for line in text.splitlines() if begins in line] == wording
    assert text.count("1 session\n") == 2
    known = {each.commit: each.call_s is None for each in read(here.parent / "shallow")}
    assert [(len(commit), is_short) for commit, is_short in known.items()] == [(12, True)] * 9 + [(40, False)] * 2


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["gea"], ("gea", TEST)),
        (["nothing-like-it-at-all"], ("nothing-like-it-at-all", TEST)),
        (["--baseline", "other"], ("--baseline=other",)),
        (["--baseline", "baselines/other"], ("baselines/other",)),
        (["--baseline=--output=x/default"], ("--output=x/default",)),
        (["--html", "code.py/x"], ("--html=code.py/x",)),
    ],
)
def test_what_cannot_be_followed_is_one_line(
    here: Path, arguments: list[str], values: tuple[str, ...], capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """With the exit code of usage errors, and nothing written."""
    assert main(["history", *arguments]) == 4
    error = capsys.readouterr().err
    assert [value for value in values if value not in error] == []
    assert error == wording
    assert error.count("\n") == 1
    assert not list(here.glob("*output*"))


def test_nothing_to_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Outside of git, and where no version can be read."""
    monkeypatch.chdir(tmp_path)
    assert main(["history"]) == 4
    assert capsys.readouterr().err == wording
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "first", "--allow-empty")
    builders.write(tmp_path, {"baselines/default/x.json": "{}"})
    assert main(["history"]) == 4
    error = capsys.readouterr().err
    assert "baselines/default/x.json" in error
    assert error == wording


def test_versions_follow_first_parents_and_odd_names(tmp_path: Path) -> None:
    """A merge counts as one; a version that was deleted again is read; a blob that is gone is left out and named."""
    git(tmp_path, "init", "-q")
    place = "baselines/d x/ü.json"
    for number in range(2):
        builders.write(tmp_path, {place: f"{number}"})
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "-qm", f"{number}\u2028x")
    git(tmp_path, "rm", "-q", place)
    git(tmp_path, "commit", "-qm", "Remove it")
    repository = find_repository(tmp_path)
    versions = repository.versions(tmp_path / "baselines/d x")
    assert [repository.blob(version.blob) for version in versions] == [b"0", b"1"]
    assert [fields[3] for fields in repository.course()] == ["0\u2028x", "1\u2028x", "Remove it"]
    assert not repository.versions(tmp_path.parent)
    gone = versions[0].blob
    (tmp_path / ".git/objects" / gone[:2] / gone[2:]).unlink()
    skipped = read_sessions(repository, tmp_path / "baselines/d x").skipped
    assert len(skipped) == 2
    assert "cat-file" in skipped[0]


def test_versions_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """One that is too large, and in the working tree also a directory and a broken link; other files are none."""
    git(tmp_path, "init", "-q")
    mib = "x" * (1 << 20)
    builders.write(tmp_path, {"b/notes.txt": "text", "b/w.json": mib, "b/x.json": f"{mib}x"})
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-qm", "One")
    (tmp_path / "b/y.json").mkdir()
    (tmp_path / "b/z.json").symlink_to("nowhere")
    monkeypatch.setattr("pytest_rlperf.baseline.history.LARGEST_BYTES", 1 << 20)
    skipped = read_sessions(find_repository(tmp_path), tmp_path / "b").skipped
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert [text.partition(": ")[0] for text in skipped] == [
        *(f"b/{name}.json of {commit}" for name in "wx"),
        *(str(tmp_path / f"b/{name}.json") for name in "wxyz"),
    ]
    assert [text.partition(": ")[2] for text in skipped] == wording


def test_the_command_imports_nothing_heavy() -> None:
    """`rlperf history -h` loads nothing heavy."""
    code = "import sys\nfrom pytest_rlperf.cli import main\ntry: main(['history', '-h'])\nexcept SystemExit: pass\n"
    code += "print({'pytest', 'numpy', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
