"""The commits and releases that a search is among, and what is refused before anything is measured."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from builders import git, write
from wording import Wording

from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.judge.policy import make_policy
from pytest_rlperf.model import Live, Project, Status, WrittenReason
from pytest_rlperf.model.bisection import BisectionReport, Candidate
from pytest_rlperf.model.reasons import OtherWork, TooFewPairs, Work
from pytest_rlperf.run import bisect
from pytest_rlperf.run.bisect import BisectLoop, Compared, Search, State
from pytest_rlperf.run.live_comparison import OtherWorkError
from pytest_rlperf.sides.history import History, find_history
from pytest_rlperf.sides.prepare import uncommitted

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip: python -m ensurepip")
IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false")
LAST = "last, with 'quotes', a\\0, a\x0b and a \u2028"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of five commits, the third of which is a merge of a branch with two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    top = tmp_path / "tree"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch=main")
    write(top, {"tests/test_x.py": "import mylib\n", "mylib.py": "A = 0\n"})
    commit(top, "first")
    write(top, {"mylib.py": "A = 1\n", "requirements.txt": "numpy\n"})
    commit(top, "second")
    git(top, "checkout", "--quiet", "-b", "side")
    for number in (1, 2):
        write(top, {f"other{number}.py": ""})
        commit(top, f"side {number}")
    git(top, "checkout", "--quiet", "main")
    git(top, *IDENTITY, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    write(top, {"mylib.py": "A = 2\n"})
    commit(top, LAST)
    return top


def commit(top: Path, subject: str) -> None:
    """Commit all files."""
    git(top, "add", "--all")
    git(top, *IDENTITY, "commit", "--quiet", "-m", subject)


def project(top: Path) -> Project:
    """Return the project in a tree."""
    return Project(
        rootdir=top,
        directory=top,
        inipath=None,
        args=(),
        path=(str(top),),
        files=(top / "tests/test_x.py",),
        conftests=(),
        test_patterns=("test_*.py",),
        packages=(),
        baseline_dir=top / "baselines",
    )


def find(top: Path, spec: str) -> History:
    """Return the candidates of a range."""
    return find_history(spec, project(top), lambda step: None)


def test_first_parents_are_the_candidates(tree: Path) -> None:
    """Oldest first, a merge as one; commits that change files of dependencies are suspects."""
    found = find(tree, "HEAD~3")
    assert [each.subject for each in found.candidates] == ["second", "merge", LAST]
    assert found.candidates[0].author == "A <a@example.org>"
    assert found[0].key == git(tree, "rev-parse", "HEAD~3").strip()
    assert found[1] == found.candidates[0]
    assert [(each.candidate.subject, each.files) for each in found.suspects] == [("second", ("requirements.txt",))]
    assert [each.subject for each in find(tree, "HEAD~3..HEAD~1").candidates] == ["second", "merge"]


def test_sides_are_two_commits_with_todays_tests(tree: Path) -> None:
    """Neither is the working tree; both have today's tests, and equal files of them."""
    before = git(tree, "status", "--porcelain", "--ignored")
    sides = find(tree, "HEAD~3").sides(0, 1)
    texts = [
        (home / "mylib.py").read_text(encoding="utf-8") for side in (sides.base, sides.head) for home in side.homes
    ]
    assert texts == ["A = 0\n", "A = 1\n"]
    assert sides.base.label != sides.head.label
    assert sides.packages == ("mylib", "other1", "other2")
    assert git(tree, "status", "--porcelain", "--ignored") == before


@pytest.mark.parametrize(
    "spec",
    [
        "nowhere",
        "HEAD~3..nowhere",
        "HEAD",
        "HEAD..HEAD~1",
        "..HEAD",
        "--output=x",
        "HEAD~1..--output=x",
        "pip:gymnasium",
        "pip:no-such==1",
        "pip:no-such==2..1",
        "pip:no-such==x..1",
    ],
)
def test_range_that_cannot_be_searched_is_an_error(tree: Path, spec: str, wording: Wording) -> None:
    """One sentence names the cause, and the tree is as it was."""
    before = git(tree, "status", "--porcelain", "--ignored")
    with wording.raises(SideError) as caught:
        find(tree, spec)
    assert len(str(caught.value).splitlines()) == 1
    assert git(tree, "status", "--porcelain", "--ignored") == before


def test_uncommitted_code_is_an_error_and_tests_are_none(tree: Path, wording: Wording) -> None:
    """Tests are today's on every commit, so only other files must be committed."""
    write(tree, {"tests/test_x.py": "import mylib, sys\n", "tests/helper.py": ""})
    assert uncommitted(project(tree), lambda step: None) == []
    assert find(tree, "HEAD~3").candidates
    write(tree, {"mylib.py": "A = 3\n"})
    with wording.raises(SideError):
        find(tree, "HEAD~3")


def test_shallow_clone_says_how_to_deepen_it(tree: Path, tmp_path: Path) -> None:
    """The good commit is not there, or leads to nothing; git can bring it."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", tree.as_uri(), str(clone))
    with pytest.raises(SideError, match=r"shallow clone.*git fetch --unshallow"):
        find(clone, git(tree, "rev-parse", "HEAD~3").strip())


@needs_pip
def test_releases_are_those_that_pip_lists(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of versions, after the good one and up to the bad one."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("0.9", "1.0", "1.2", "1.10", "2.0"):
        metadata = f"Metadata-Version: 2.1\nName: envlib\nVersion: {version}\n"
        with zipfile.ZipFile(wheels / f"envlib-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"envlib-{version}.dist-info/METADATA", metadata)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    found = find(tree, "pip:envlib==1.0..2.0")
    assert (found.release_of, found[0].key) == ("envlib", "1.0")
    assert [each.title for each in found.candidates] == ["envlib 1.2", "envlib 1.10", "envlib 2.0"]


# --------------------------------------------------------------------------- runs

LIBRARY = """{broken}
def scan():
    return sum(range({rounds}))

def work():
    return scan()
"""
TEST = "import mylib\n\ndef test_x(rlperf):\n    rlperf(mylib.work, phases={'scan': mylib.scan})\n"


def slowing(top: Path, count: int, slower: int, broken: int) -> None:
    """Make a repository of ``count`` commits after the first, one of which is slower by half."""
    git(top, "init", "--quiet")
    write(top, {".gitignore": "__pycache__/\n.pytest_cache/\nstderr\nstdout\n", "test_x.py": TEST})
    for number in range(count + 1):
        rounds = 30_000 if number >= slower else 20_000
        text = LIBRARY.format(rounds=rounds, broken="raise ImportError('broken')" if number == broken else "")
        write(top, {"mylib.py": f"NUMBER = {number}\n{text}"})
        commit(top, f"number {number}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rlperf-bisect=HEAD"], "--rlperf-bisect=HEAD: there is no commit after HEAD"),
        (["--rlperf-bisect=continue"], "no search was begun here"),
        (["--rlperf-bisect=HEAD~1", "--rlperf-json=x.json"], "leave out --rlperf-json"),
    ],
)
def test_usage_errors_of_a_search_end_with_4(
    pytester: pytest.Pytester, alone: None, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    """One sentence each, before anything is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "no" / "cache"))
    slowing(pytester.path, 0, 1, 1)
    done = pytester.runpytest_subprocess(*arguments)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*{words}*"])


@pytest.mark.slow
def test_first_slower_commit_is_named_with_its_phase(
    pytester: pytest.Pytester, alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of eight commits, one of which does not run; the tree is as it was, and a spent budget is gone on with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    slowing(pytester.path, 8, 5, 4)
    state = ("status", "--porcelain", "--", ".", ":!runpytest-*")  # less pytester's own places
    before = git(pytester.path, *state)
    done = pytester.runpytest_subprocess("--rlperf-bisect=HEAD~8", "--rlperf-budget=0.1")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        ["*first slower one is among 8, *", "stopped: the budget is spent; go on with pytest --rlperf-bisect=continue*"]
    )
    done = pytester.runpytest_subprocess("--rlperf-bisect=continue")
    assert done.ret == 0
    slower, broken = (git(pytester.path, "rev-parse", f"HEAD~{back}").strip()[:12] for back in (3, 4))
    done.stdout.fnmatch_lines(
        [
            f"test_x.py::test_x: commit {slower} is the first slower one, or one of 1 candidate right before it*",
            f"  {broken} *A <a@example.org>: number 4",
            f"  {slower} *A <a@example.org>: number 5",
            "*commit * against commit *: +*[[]*",
            "*scan*",
            f"  again: pytest --rlperf-bisect=*..{slower} test_x.py::test_x",
            f"left out commit {broken} 'number 4': *broken*",
        ]
    )
    assert git(pytester.path, *state) == before
    done = pytester.runpytest_subprocess("--rlperf-bisect=HEAD~2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*test_x is * on commit * against commit *: *"])


# --------------------------------------------------------------------------- searches by made-up comparisons

COMMITS = tuple(Candidate(f"{number}" * 40, f"commit {number}", "a subject") for number in range(1, 9))
RATIOS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.2, 1.2)  # of commits 0 to 8


class MadeUpHistory(History):
    """Has commits without code."""

    def sides(self, base: int, head: int) -> Any:
        """Return the numbers of two commits."""
        return base, head


@dataclass
class MadeUp:
    """Searches whose comparisons find RATIOS after ``taken_s``; the one of number ``interrupted`` has a Ctrl-C."""

    place: Path
    budget_s: float | None = None
    taken_s: float = 10.0
    interrupted: int = 0
    status: Status = Status.SLOWER
    now_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def search(self, tests: Sequence[str], state: State | None = None) -> BisectionReport | None:
        """Search by tests, or go on with a search, and return the report; a Ctrl-C ends it too."""
        settings = SimpleNamespace(
            budget_s=self.budget_s, pairs=(3, 10), for_test=lambda item: SimpleNamespace(tolerance=None)
        )
        loop: Any = SimpleNamespace(
            _path=[],
            _lanes=SimpleNamespace(count=1),
            _run=SimpleNamespace(settings=settings, note=lambda *notes: self.notes.extend(map(str, notes))),
            _progress=SimpleNamespace(begin=str, show=str, clear=str),
            _worker_pools=lambda project: SimpleNamespace(close=lambda: None),
            compare=self.compare,
        )
        parser = SimpleNamespace(parse_known_args=lambda arguments: SimpleNamespace(file_or_dir=["tests"]))
        config = SimpleNamespace(
            _parser=parser, invocation_params=SimpleNamespace(args=()), getoption=lambda name, default: default
        )
        items = [SimpleNamespace(nodeid=test, config=config) for test in tests]
        session: Any = SimpleNamespace(items=items, config=config)
        search = Search(loop, session, state or State("good..bad", list(tests)), self.place)
        with contextlib.suppress(KeyboardInterrupt):
            search.run()
        return search.report

    def kept(self) -> State:
        """Return the search as it is kept for the next run."""
        return bisect._read(self.place)

    def compare(
        self, sides: Any, pools: Any, items: Sequence[pytest.Item], limits: Any, limit_s: float, used: int, title: str
    ) -> Compared:
        """Return RATIOS of two commits by every test, with three pairs."""
        self.now_s += self.taken_s
        self.limits_s.append(limit_s)
        if len(self.limits_s) == self.interrupted:
            raise KeyboardInterrupt
        ratio = RATIOS[sides[1]] / RATIOS[sides[0]]
        pairs = tuple(builders.pair(math.log(ratio) + shift) for shift in (-0.001, 0.0, 0.001))
        live = Live("good", "bad", builders.result(), pairs, ())
        reason = TooFewPairs(3, 4, 1.3) if self.status is Status.UNDECIDED else WrittenReason("code", "why")
        judged = replace(builders.verdict(self.status, ratio), reason=reason)
        return Compared({item.nodeid: builders.outcome(judged=judged, live=live) for item in items})


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """Return searches of eight commits, the fifth of which is slower, that are kept in a directory."""
    found = MadeUp(tmp_path / "cache" / "bisection.json")
    history = MadeUpHistory(Candidate("0" * 40, "good"), COMMITS, (), project(tmp_path), lambda step: None)
    monkeypatch.setattr(bisect, "find_history", lambda spec, project, on_step: history)
    monkeypatch.setattr(bisect, "make_project", lambda session, path, settings: project(tmp_path))
    monkeypatch.setattr(bisect, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def named(report: BisectionReport | None) -> dict[str, list[str]]:
    """Return the commits that a report names, by test."""
    assert report is not None
    return {found.test: [each.title for each in found.candidates] for found in report.found if found.is_named}


def test_search_goes_on_by_the_tests_that_are_collected(made_up: MadeUp, wording: Wording) -> None:
    """The others are named, and keep their figures for the next time."""
    made_up.interrupted = 3
    assert named(made_up.search(["t::a", "t::b"])) == {}
    report = made_up.search(["t::b"], made_up.kept())
    assert named(report) == {"t::b": ["commit 5"]}
    (note,) = made_up.notes
    assert note == wording
    assert named(made_up.search(["t::a"], made_up.kept())) == {"t::a": ["commit 5"]}
    kept = made_up.kept()
    assert kept.log_ratios["t::a"] == kept.log_ratios["t::b"]


def test_search_that_is_interrupted_in_its_first_comparison_goes_on(made_up: MadeUp) -> None:
    """It takes the place of an earlier one, and the report has the command."""
    made_up.place.parent.mkdir()
    made_up.place.write_text(json.dumps({"spec": "OLD..SEARCH", "tests": ["t::old"]}), encoding="utf-8")
    made_up.interrupted = 1
    report = made_up.search(["t::a"])
    assert report is not None
    assert (report.stopped, report.command) == ("interrupted", "pytest --rlperf-bisect=continue tests")
    kept = made_up.kept()
    assert (kept.spec, kept.tests) == (f"{'0' * 40}..{'8' * 40}", ["t::a"])
    assert named(made_up.search(["t::a"], kept)) == {"t::a": ["commit 5"]}


def test_budget_is_for_the_whole_search(made_up: MadeUp) -> None:
    """Each comparison gets what is left of it, in equal shares; the last one is left out where nothing is left."""
    commits = {"t::a": ["commit 5"], "t::b": ["commit 5"]}
    assert named(made_up.search(["t::a", "t::b"])) == commits
    assert set(made_up.limits_s) == {math.inf}
    made_up.budget_s = 10.0 * (len(made_up.limits_s) - 1)
    left_s = [made_up.budget_s - 10.0 * before for before in range(len(made_up.limits_s) - 1)]
    made_up.limits_s.clear()
    report = made_up.search(["t::a", "t::b"])
    assert named(report) == commits
    assert report is not None
    assert (report.stopped, [found.step for found in report.found]) == ("the budget is spent", [None, None])
    assert made_up.limits_s == [seconds / 2 for seconds in left_s]
    made_up.limits_s.clear()
    report = made_up.search(["t::a", "t::b"], made_up.kept())
    assert report is not None
    assert (report.stopped, made_up.limits_s) == ("", [made_up.budget_s / 2])
    assert None not in [found.step for found in report.found]


@pytest.mark.parametrize("budget_s", [None, 60.0])
def test_first_comparison_without_time_names_the_limits(
    made_up: MadeUp, budget_s: float | None, wording: Wording
) -> None:
    """More pairs would not help."""
    made_up.budget_s, made_up.status = budget_s, Status.UNDECIDED
    with wording.raises(SideError):
        made_up.search(["t::a"])


@pytest.mark.parametrize(
    ("max_time_s", "limit_s", "taken_s"),
    [(60.0, math.inf, 180.0), (60.0, 90.0, 90.0), (60.0, -5.0, 12.0), (2.0, 1.0, 6.0)],
)
def test_comparison_has_time_for_its_fewest_pairs(
    monkeypatch: pytest.MonkeyPatch, max_time_s: float, limit_s: float, taken_s: float
) -> None:
    """Four pairs, the fewest that can be SLOWER, have 3 s each whatever is left of the budget."""
    settings = SimpleNamespace(
        pairs=(3, 10), max_time_s=max_time_s, counters=SimpleNamespace(are_counted=False, gates=())
    )
    policy = make_policy(tolerance=None, alpha=0.01, tests=1, min_change_s=0.0, gated=True, accept=False)
    given: list[float] = []

    class Comparison:
        def __init__(self, *arguments: Any) -> None:
            given.append(arguments[7])

        def compare(self) -> Any:
            raise OtherWorkError(OtherWork("head", "base", Work("rlperf", "call", 1.0), Work("rlperf", "call", 2.0)))

    monkeypatch.setattr(bisect, "LiveComparison", Comparison)
    loop: Any = SimpleNamespace(_run=SimpleNamespace(policy=lambda settings: policy))
    test: Any = SimpleNamespace(group=SimpleNamespace(key="t::a"), settings=settings, lanes=None, progress=None)
    base_side: Any = None
    BisectLoop._one(loop, base_side, test, PairLimits(3, 30), limit_s, Compared())
    assert given == [taken_s]
