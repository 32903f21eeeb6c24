"""The search for the first slower commit or release: which one is next, what is refused, and whole searches."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection
from pathlib import Path

import builders
import pytest
from builders import git, write
from example import FAILED, OK, Example
from hypothesis import given
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.judged import Status
from pytest_rlperf.model.sides import Side
from pytest_rlperf.run.bisect import BAD, GOOD, SKIP, ends, next_probe, verdict_on
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.sides.specs import Candidate

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip: python -m ensurepip")
LAST = "last, with 'quotes', a\\0, a\x0b and a \u2028"


def search(last: int, first: int, skipped: Collection[int] = ()) -> tuple[dict[int, str], int, int]:
    """Search for candidate ``first`` of 1 to ``last``; return the verdicts on the way, and where it ended."""
    verdicts: dict[int, str] = {}
    while (number := next_probe(last, verdicts)) is not None:
        assert number not in verdicts
        verdicts[number] = SKIP if number in skipped else BAD if number >= first else GOOD
    return verdicts, *ends(last, verdicts)


@given(st.data(), st.integers(1, 300))
def test_the_first_bad_one_is_found_but_for_skipped_ones(data: st.DataObject, last: int) -> None:
    """Whichever it is and whatever is skipped: only skipped ones are left between the last good one and a bad one."""
    first = data.draw(st.integers(1, last))
    skipped = data.draw(st.sets(st.integers(1, max(1, last - 1))).map(lambda found: found - {last}))
    _, good, bad = search(last, first, skipped)
    tried = [number for number in range(last + 1) if number not in skipped]
    assert bad == min(number for number in tried if number >= first)
    assert good == max(number for number in tried if number < first)


@given(st.data(), st.integers(1, 5000))
def test_each_probe_halves_the_range(data: st.DataObject, last: int) -> None:
    """Without skipped ones there are no more probes than the logarithm, beside that of the last."""
    verdicts, _, _ = search(last, data.draw(st.integers(1, last)))
    assert len(verdicts) <= 1 + math.ceil(math.log2(last))


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([Status.SAME, Status.FASTER], GOOD),
        ([Status.SAME, Status.SLOWER], BAD),
        ([Status.UNDECIDED, Status.SLOWER, None], BAD),
        ([Status.SAME, Status.UNDECIDED], SKIP),
        ([Status.SAME, None], SKIP),
        ([Status.NEW], SKIP),
        ([Status.INCOMPARABLE], SKIP),
    ],
)
def test_verdicts_of_tests_make_one_of_their_candidate(statuses: list[Status | None], verdict: str) -> None:
    """One slower test makes it bad, else one without a verdict has it skipped; None is a test that does not run."""
    found = [
        "ImportError: x" if status is None else builders.outcome(judged=builders.verdict(status)) for status in statuses
    ]
    assert verdict_on(found) == verdict


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of five commits, the third of which is a merge of a branch with two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    top = tmp_path / "tree"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch=main")
    commit(top, "first", {"tests/test_x.py": "import mylib\n", "mylib.py": "A = 0\n", "data.csv": "1\n"})
    commit(top, "second", {"mylib.py": "A = 1\n"})
    git(top, "checkout", "--quiet", "-b", "side")
    for number in (1, 2):
        commit(top, f"side {number}", {f"other{number}.py": ""})
    git(top, "checkout", "--quiet", "main")
    git(top, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    commit(top, LAST, {"mylib.py": "A = 2\n"})
    return top


def commit(top: Path, subject: str, files: dict[str, str]) -> None:
    write(top, files)
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "-m", subject)


def preparation(top: Path) -> Preparation:
    return builders.preparation(builders.project(top, "tests/test_x.py"))


def find(top: Path, spec: str) -> list[Candidate]:
    return preparation(top).find_candidates(spec)


def shas(top: Path, *refs: str) -> list[str]:
    return [git(top, "rev-parse", ref)[:12] for ref in refs]


def test_first_parents_are_the_candidates(tree: Path) -> None:
    """Oldest first and behind the good one, a merge as one; the next is one of those in the middle, as for git."""
    found = find(tree, "HEAD~3")
    assert [each.spec for each in found] == shas(tree, "HEAD~3", "HEAD~2", "HEAD~1", "HEAD")
    assert [each.subject for each in found[1:]] == ["second", "merge", LAST]
    assert "A <a@example.org>" in found[1].written
    assert [each.spec for each in find(tree, "HEAD~3..HEAD~1")] == shas(tree, "HEAD~3", "HEAD~2", "HEAD~1")
    ranked = git(tree, "rev-list", "--bisect-all", "--first-parent", "HEAD", "^HEAD~3").splitlines()
    best = [line[:12] for line in ranked if "dist=1" in line]
    assert found[next_probe(3, {3: BAD}) or 0].spec in best


def test_sides_are_two_commits_with_todays_tests(tree: Path) -> None:
    """Neither is the working tree; both have today's tests."""
    write(tree, {"tests/test_x.py": "import mylib, sys\n"})
    first, second, *_ = find(tree, "HEAD~3")
    sides = preparation(tree).between(first, second)
    for side, text in ((sides.base, "A = 0\n"), (sides.head, "A = 1\n")):
        (home,) = side.homes
        assert home == side.tree
        assert (home / "mylib.py").read_text(encoding="utf-8") == text
        assert (home / "tests/test_x.py").read_text(encoding="utf-8") == "import mylib, sys\n"
    assert sides.base.label != sides.head.label


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere", "'nowhere'"),
        ("HEAD~3..nowhere", "'nowhere'"),
        ("HEAD~1..--output=x", "'--output=x'"),
        ("HEAD", "HEAD"),
        ("HEAD..HEAD~1", "ancestor"),
        ("..HEAD", r"GOOD\[..BAD\]"),
        ("pip:gymnasium", "pip:NAME==GOOD"),
        ("pip:no-such==1", "pip:no-such==1..BAD"),
        ("pip:no-such==2..1", "no-such"),
        ("pip:no-such==x..1", "'x'"),
    ],
)
def test_range_that_cannot_be_searched_is_an_error(tree: Path, spec: str, words: str, wording: Wording) -> None:
    """One line names the cause, and the next at most a place in the docs."""
    with pytest.raises(SideError, match=words) as caught:
        find(tree, spec)
    assert all(place.startswith("see https://") for place in str(caught.value).splitlines()[1:])
    assert re.sub(r"\b[0-9a-f]{12}\b", "COMMIT", str(caught.value)) == wording


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("mylib.py", True),
        ("data.csv", True),
        ("helper.py", True),
        ("out.txt", False),
        ("tests/test_x.py", False),
        ("tests/helper.py", False),
    ],
)
def test_uncommitted_files_that_tests_may_load_block_a_search(tree: Path, name: str, blocks: bool) -> None:
    """Changed ones and new modules do; tests are today's on every commit, and no test loads a new file of output."""
    write(tree, {name: "import sys\n"})
    if not blocks:
        assert len(find(tree, "HEAD~3")) == 4
        return
    with pytest.raises(SideError, match=name):
        find(tree, "HEAD~3")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find releases of two distributions in a directory, and no others."""
    releases = [*(("envlib", version) for version in ("0.9", "1.0", "1.2", "1.10", "2.0")), ("iniconfig", "0.0.1")]
    for name, version in releases:
        write_wheel(tmp_path, name, version, {"__init__.py": ""})
    installed = Path(str(importlib.metadata.distribution("iniconfig").locate_file("iniconfig")))
    sources = {path.name: path.read_text(encoding="utf-8") for path in installed.glob("*.py")}
    start, items, rest = sources["__init__.py"].partition("def items(")
    sources["__init__.py"] = start + items + rest.replace("in self:", "in ():", 1)
    write_wheel(tmp_path, "iniconfig", "0.0.2", sources)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def write_wheel(directory: Path, name: str, version: str, sources: dict[str, str]) -> None:
    """Write a release of a package that has these files."""
    about, metadata = f"{name}-{version}.dist-info", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in sources.items():
            wheel.writestr(f"{name}/{file}", text)
        wheel.writestr(f"{about}/METADATA", metadata)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@needs_pip
@pytest.mark.usefixtures("wheels")
def test_releases_are_those_that_pip_lists(tree: Path) -> None:
    """In the order of versions, from the good one to the bad one."""
    found = find(tree, "pip:envlib==1.0..2.0")
    assert [each.title for each in found] == ["envlib 1.0", "envlib 1.2", "envlib 1.10", "envlib 2.0"]
    assert found[1].range_to(found[2]) == "pip:envlib==1.2..1.10"


@needs_pip
@pytest.mark.usefixtures("wheels")
def test_installed_release_is_todays_side(tree: Path) -> None:
    """It is taken as it is, on either side of a comparison; another one is installed for its side alone."""
    found = find(tree, "pip:iniconfig==0.0.1")
    older, installed = found[0], found[-1]
    sides = preparation(tree)
    before, after = (sides.between(*pair) for pair in ((older, installed), (installed, older)))
    assert before.packages == after.packages == ("iniconfig",)
    for side in (before.head, after.base):
        assert side.homes == (side.tree,)
        assert version_of(side) == importlib.metadata.version("iniconfig")
    for side in (before.base, after.head):
        own, copied = side.homes
        assert copied == side.tree
        assert [path.name for path in own.glob("iniconfig-*")] == ["iniconfig-0.0.1.dist-info"]
        assert version_of(side) == "0.0.1"


def version_of(side: Side) -> str:
    """Return the release of iniconfig in processes of a side."""
    program = (
        "import sys, importlib.metadata; sys.path[:] = sys.argv[1:]; print(importlib.metadata.version('iniconfig'))"
    )
    command = [side.python, "-c", program, *side.path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.slow  # test_reach names functions of a tree, and test_installed_release_is_todays_side has one
@needs_pip
@pytest.mark.usefixtures("wheels")
def test_changed_functions_of_a_release_are_named(tmp_path: Path) -> None:
    """Those that a call enters, with the calls that they make more often."""
    test = """
        import iniconfig
        import pytest

        @pytest.mark.rlperf(findings={"counts": "gate"})
        def test_items(rlperf):
            section = iniconfig.IniConfig("a.ini", data="[a]\\nb = 1\\n")["a"]
            rlperf(lambda: list(section.items()))
    """
    example = Example(tmp_path, {"test_x.py": test})
    run = example.pytest("--rlperf-against=pip:iniconfig==0.0.2", *QUICK, code=FAILED)
    (line,) = re.findall(r"changed: (.*)", run.failure("test_items"))
    counted = r".* 0 → 1" if sys.version_info < (3, 12) else "entered 1 → 2 times a call"  # its generator's resumption
    assert re.fullmatch(rf"iniconfig/__init__\.py:\d+ SectionWrapper\.items · {counted}", line)


LIBRARY = "def scan():\n    return 1\n\ndef work():\n    scan()\n"
TEST = """\
import pytest, mylib

@pytest.mark.rlperf(findings={"counts": ["python_calls"]})
def test_x(rlperf):
    rlperf(mylib.work)

@pytest.mark.rlperf(findings={"counts": ["python_calls"]})
def test_same(rlperf):
    rlperf(mylib.scan)
"""
QUICK = (*builders.TWO_PAIRS, "--rlperf-tolerance=900%")


@pytest.fixture
def slowing(tmp_path: Path) -> Example:
    """Return a repository of four commits after the first: 2 does not import, and from 3 on a test calls more."""
    example = Example(tmp_path, {"tests/test_x.py": TEST, "mylib.py": LIBRARY})
    changes: tuple[dict[str, str], ...] = (
        {},
        {"pytest.ini": "[pytest]\npythonpath = .\n"},
        {"mylib.py": f"raise ImportError('broken')\n{LIBRARY}"},
        {"mylib.py": f"{LIBRARY}    scan()\n"},
        {"notes.txt": "4"},
    )
    for number, files in enumerate(changes):
        example.write(files)
        example.commit(str(number))
    return example


def git_files(top: Path) -> dict[str, str]:
    files = [path for path in (top / ".git").rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


MORE = ("-p", "rlperf", "-p", "no:cacheprovider")


def test_first_slower_commit_is_named(slowing: Example) -> None:
    """With what it changed and the one before it that does not run, by the slower test; git's files are as they were.

    The exit code says that the first slower one is not known, and pytest's last line counts the comparisons.
    """
    one, two, three, four = shas(slowing.root, "HEAD~3", "HEAD~2", "HEAD~1", "HEAD")
    slowing.write({"out.txt": ""})
    before = git_files(slowing.root)
    run = slowing.rlperf("bisect", "HEAD~4", *QUICK, *MORE, code=FAILED)
    assert re.findall(r"(?m)^(bad|skip|good) commit (\w+): \S+::(\w+): (\w+)", run.out) == [
        ("bad", four, "test_x", "SLOWER"),
        ("bad", four, "test_same", "SAME"),
        ("skip", two, "test_x", "ImportError"),
        ("good", one, "test_x", "SAME"),
        ("bad", three, "test_x", "SLOWER"),
    ]
    assert run.counts == "5 comparisons"
    assert "python_calls 2 → 3" in run.section("rlperf")
    first, *candidates, verdict, look, again = run.section("rlperf bisect").strip().splitlines()[:6]
    assert three in first
    assert "1 candidate" in first
    assert [(line.split()[1], line.split()[-1]) for line in candidates] == [(two, "2"), (three, "3")]
    assert f"tests/test_x.py::test_x against commit {one}: SLOWER" in verdict
    assert "changed: mylib.py:4 work" in verdict
    assert look.endswith(f"git show {three}")
    given = "--rlperf-findings=growth=off --rlperf-tolerance=900%"
    assert again.endswith(f"rlperf bisect {one}..{three} tests/test_x.py::test_x {given}")
    assert git_files(slowing.root) == before


@pytest.mark.slow  # test_verdicts_of_tests_make_one_of_their_candidate; test_first_slower_commit_is_named
def test_exit_code_says_whether_it_was_found(slowing: Example) -> None:
    """In a range in which nothing is slower it was not."""
    three, four = shas(slowing.root, "HEAD~1", "HEAD")
    nothing = slowing.rlperf("bisect", "HEAD~1", *QUICK, *MORE, "-k", "test_x", code=FAILED)
    assert f"no test is SLOWER on commit {four} against commit {three}" in nothing.section("rlperf bisect")
    assert nothing.counts == "1 comparison"
    slowing.write({"mylib.py": f"{LIBRARY}    scan()\n    scan()\n"})
    slowing.commit("Scan once more")
    found = slowing.rlperf("bisect", "HEAD~1", *QUICK, *MORE, "-k", "test_x", code=OK)
    assert f"{shas(slowing.root, 'HEAD')[0]} is the first slower one: Scan once more" in found.section("rlperf bisect")
