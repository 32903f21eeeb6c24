"""Live pairs, from outside: a repository with a past, and runs that compare today with it."""

from __future__ import annotations

import errno
import json
import re
import shutil
import socket
import textwrap
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import builders
import pytest
from builders import ONE_CALL, TWO_PAIRS, provenance, result, source
from example import FAILED, OK, USAGE, Example, Run
from wording import Wording, without_figures

from pytest_rlperf.baseline.machine import this_machine
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.model.measured import Start
from pytest_rlperf.run.lanes import count_lanes

PAGE = Path(__file__).parents[2] / "docs" / "writing-tests.md"
QUICK = ("-o", "rlperf_pairs=2..6", "--rlperf-max-time=8")  # time for six pairs, which unplaced workers take to confirm
STORED = ("--rlperf-max-time=0.3",)  # enough where stored numbers decide
DECISIVE = ("--rlperf-tolerance=50%",)  # what these tests change is far over it, what they do not is far under it

LIBRARY = source("live/mylib/__init__.py")
TESTS = source("live/tests/test_it.py")


class Repository(Example):
    """A repository whose one commit has a package and measured tests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "live")
        self.commit()

    def library(self, side: str, times: int = 1, more: str = "") -> None:
        text = LIBRARY.replace('"base"', f'"{side}"').replace("TIMES = 1", f"TIMES = {times}")
        self.write({"mylib/__init__.py": text + textwrap.dedent(more)})

    def against(self, spec: str, *args: str, code: int = OK, **env: Any) -> Run:
        return self.pytest(f"--rlperf-against={spec}", *QUICK, *DECISIVE, *args, code=code, **env)

    def measure(self, name: str) -> None:
        self.write({"tests/test_it.py": f"import mylib\n\ndef test_{name}(rlperf):\n    rlperf(mylib.{name})\n"})


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with one commit, and a baseline that this commit was measured for."""
    repository = Repository(tmp_path_factory.mktemp("measured"))
    repository.pytest("--rlperf-save-baseline", "--rlperf-max-time=0.5", "-k", "work", code=OK)
    return repository.root


@pytest.fixture
def stored(repository: Repository, measured: Path) -> Path:
    """Make the repository a copy of the measured one, and return its baseline file."""
    shutil.rmtree(repository.root)
    shutil.copytree(measured, repository.root)
    (path,) = (repository.root / "baselines" / "default").glob("*.json")
    return path


@pytest.fixture
def fast(repository: Repository) -> Store:
    """Return a baseline of the repository's commit whose figures make everything after them look slower."""
    store = Store(repository.root / "baselines", "default", this_machine())
    found = result("tests/test_it.py::test_work", 1e-7, component="callable", unit="call", start=Start.FORKED)
    commit = repository.git("rev-parse", "HEAD")
    store.write("then", provenance(commit=commit, dirty=False), {found.nodeid: builders.stored(found, "then")})
    return store


def cases(path: Path) -> dict[str, ElementTree.Element]:
    return {case.attrib["name"]: case for case in ElementTree.parse(path).iter("testcase")}  # noqa: S314 - pytest wrote it


def without_commits(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{12}\b", "COMMIT", text)


PAST = """
SIZE = 64

def mended():
    return sum(range(300)).absent

def dies():
    import os, signal, sys

    global calls
    calls += 1
    if calls > 100:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(range(400))

calls = 0
"""
TODAY = """
SIZE = 128

def mended():
    return sum(range(300))

def dies():
    return sum(range(400))
"""
DIES = "import mylib\n\ndef test_dies(rlperf):\n    rlperf(mylib.dies)\n"
MORE = """
import mylib
import pytest

def test_sized(rlperf):
    rlperf(mylib.rest, items=mylib.SIZE, unit="samples")

@pytest.mark.rlperf(max_time=0.000001)  # of head by itself, which is measured once base cannot be
def test_mended(rlperf):
    rlperf(mylib.mended)

def test_reads(rlperf):
    open({place!r}).read()
    rlperf(mylib.rest)
"""


class Compared(NamedTuple):
    """A repository whose head is slower than its base, and otherwise differs; and the run that compared both."""

    repository: Repository
    run: Run
    base: str


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    repository = Repository(tmp_path_factory.mktemp("compared"))
    more = MORE.format(place=str(repository.root / "table.txt"))
    repository.write({"table.txt": "1", "tests/test_dies.py": DIES, "tests/test_more.py": more})
    repository.library("base", more=PAST)
    repository.commit()
    repository.library("head", times=5, more=TODAY)
    repository.commit()
    base = f"HEAD~1 ({repository.git('rev-parse', '--short=12', 'HEAD~1')})"
    brief = ("-o", "rlperf_pairs=2..8", "--rlperf-max-time=4")
    run = repository.against("HEAD~1", *brief, "--junitxml=junit.xml", "-v", code=FAILED)
    return Compared(repository, run, base)


def test_a_slowdown_is_found_and_blamed(compared: Compared) -> None:
    """A test that a commit slowed down fails at its line with the phase to blame, and the other test is SAME."""
    repository, run, base = compared
    assert (run.statuses["test_work"], run.statuses["test_rest"]) == ("SLOWER", "SAME")
    assert (run.codes["test_work"], run.codes["test_rest"]) == ("live", "live")
    failure = run.failure("test_work")
    for words in (
        ">       rlperf(mylib.work)",
        "PerformanceRegression: SLOWER ×",
        "test_it.py:5: PerformanceRegression",
    ):
        assert words in failure
    assert f"with {base}, live" in failure  # the headline has it too, unless the medians contradict the change
    assert "critic +" in failure

    test = run.tests["test_work"]
    change_s = test["base_mean_call_s"] * (test["verdict"]["estimate"]["ratio"] - 1)
    parts = {part["path"]: part["change_s"] for part in test["live"]["contributions"]}
    assert sum(parts.values()) == pytest.approx(change_s)
    assert max(parts, key=lambda path: parts[path]) == "critic"
    assert parts["critic"] == pytest.approx(change_s, rel=0.5)
    assert all(pair["blocks"] and pair["base"]["slices"] == pair["head"]["slices"] for pair in test["live"]["pairs"])
    pairs = test["live"]["pairs"]
    assert len(pairs) > len({pair[side]["seed"] for pair in pairs for side in ("base", "head")})
    assert test["live"]["setup_s"] > 0

    for name, case in cases(repository.root / "junit.xml").items():
        properties = {item.get("name"): item.get("value") for item in case.iter("property")}
        assert properties["rlperf_verdict"] == run.statuses[name]
        assert properties.get("rlperf_against") == (base if run.codes[name] == "live" else None)


def test_sides_that_do_not_do_as_much_are_not_compared(compared: Compared, wording: Wording) -> None:
    """One whose calls have other items on base is INCOMPARABLE, and the reader is told both figures."""
    assert compared.run.statuses["test_sized"] == "INCOMPARABLE"
    assert compared.run.codes["test_sized"] == "work"
    assert without_commits(compared.run.reasons["test_sized"]) == wording


def test_a_bug_of_base_itself_is_nothing_new(compared: Compared) -> None:
    """Where base's own code asks for a name in vain, the test could not run there."""
    assert compared.run.statuses["test_mended"] == "INCOMPARABLE"
    assert "'int' object has no attribute 'absent'" in compared.run.reasons["test_mended"]


def test_a_test_that_reads_the_users_own_tree_is_an_error_of_that_test(compared: Compared, wording: Wording) -> None:
    """What one test reads by an absolute path says nothing of the others, which are compared with the same commit."""
    assert compared.run.statuses["test_reads"] == "ERROR"
    why = compared.run.reasons["test_reads"].splitlines()[-1]
    assert without_commits(why).replace(str(compared.repository.root / "table.txt"), "PLACE") == wording


def test_a_worker_that_dies_in_a_pair_is_an_error_of_its_test(compared: Compared, wording: Wording) -> None:
    """The dead side is named with its last words, and the other tests are compared as if nothing had been."""
    repository, run, _ = compared
    assert run.statuses["test_dies"] == "ERROR"
    assert re.sub("worker [0-9]", "worker N", run.reasons["test_dies"]) == wording  # of whichever pair is there first
    assert "last words" in run.failure("test_dies")
    assert repository.left_over() == []


@pytest.mark.slow  # test_live_judge: test_swapping_sides_mirrors_the_verdict; test_main_job: FASTER passes
def test_an_import_is_each_sides_own(repository: Repository) -> None:
    """New interpreters on base import base's code: what head's does more is found, and named."""
    repository.write({"tests/test_it.py": 'def test_import(rlperf_import):\n    rlperf_import("mylib")\n'})
    repository.commit()
    repository.library("head", more="WORK = sum(i * i for i in range(3_000_000))")
    run = repository.against("HEAD", code=FAILED)
    assert run.statuses == {"test_import": "SLOWER"}
    assert "import/mylib" in {phase["path"] for phase in run.tests["test_import"]["result"]["phases"]}


@pytest.mark.slow  # test_live_comparison: test_the_first_pair_shows_what_the_others_need
@pytest.mark.skipif(count_lanes().most < 2, reason="one lane sets up all the first pairs at once")
def test_a_test_that_skips_itself_is_set_up_by_one_pair(repository: Repository) -> None:
    """Other pairs wait until the first one has got to its call; where it never does they are not begun.

    Before them one pair of observers has tried.
    """
    skipped = """
        import os, pathlib, pytest

        @pytest.fixture
        def missing():
            pathlib.Path(os.environ["BEGUN"]).open("a").write("x")
            pytest.skip("not installed here")

        def test_skipped(rlperf, missing):
            rlperf(mylib.work)
    """
    repository.write({"tests/test_it.py": TESTS.partition("def test_rest")[0] + textwrap.dedent(skipped)})
    repository.commit()
    repository.library("head")
    begun = repository.tmp / "begun"
    run = repository.against("HEAD", "-o", "rlperf_lanes=2", BEGUN=str(begun))
    assert run.counts in ("1 passed, 1 skipped", "1 skipped, 1 undecided")
    assert begun.read_text() == "xxxx"


@pytest.mark.usefixtures("fast")
def test_equal_trees_are_the_same_unmeasured(repository: Repository, wording: Wording) -> None:
    """Where no file differs nothing is measured, whatever is stored, and the report states why."""
    run = repository.against("HEAD")
    assert run.statuses == {"test_work": "SAME", "test_rest": "SAME"}
    assert run.codes == {"test_work": "code", "test_rest": "code"}
    assert without_commits(run.reasons["test_work"]) == wording
    assert re.findall(r"(?m)^compared .*", run.section("rlperf")) == wording
    assert {(test["base_call_s"], test["live"]) for test in run.tests.values()} == {(None, None)}


@pytest.mark.slow  # test_sides_cases: test_code_of_another_checkout_is_an_error has such a test; test_reach: test_grow
def test_a_change_the_test_does_not_load_is_the_same_unmeasured(repository: Repository, wording: Wording) -> None:
    """A module that no measured test imports cannot have made it slower."""
    repository.write({"mylib/elsewhere.py": "VALUE = 1\n"})
    repository.commit()
    run = repository.against("HEAD~1", "-v", "-k", "work")
    assert run.statuses == {"test_work": "SAME"}
    assert run.codes == {"test_work": "code"}
    assert without_commits(run.reasons["test_work"]) == wording


@pytest.mark.slow
def test_code_that_no_import_shows_at_first_is_measured(repository: Repository) -> None:
    """Code that only the hundredth call imports is code all the same."""
    more = """
    calls = 0

    def twice():
        global calls
        calls += 1
        if calls == 100:
            from mylib import later
            later.LAST
        return sum(range(400))
    """
    repository.library("base", more=more)
    repository.write({"mylib/later.py": "LAST = 1\n"})
    repository.measure("twice")
    repository.commit()
    repository.write({"mylib/later.py": "LAST = 2\n"})
    run = repository.against("HEAD", "-v")
    assert run.statuses == {"test_twice": "SAME"}
    assert run.tests["test_twice"]["live"]["pairs"]


DRAWS = {"random": "random.random()", "numpy": "numpy.random.random()", "torch": "torch.rand(1)"}


@pytest.mark.parametrize(
    ("workers", "libraries"),
    [
        ("auto", ["random", "numpy"]),
        # Each of its processes takes seconds to import PyTorch. test_workers compares one with a copy.
        pytest.param("auto", [*DRAWS], marks=pytest.mark.slow),
        pytest.param("fresh", [*DRAWS], marks=pytest.mark.slow),
    ],
)
def test_what_modules_draw_while_they_are_imported_is_alike(
    repository: Repository, tmp_path: Path, workers: str, libraries: list[str]
) -> None:
    """Such as the weights of a policy: without a seed, each process would have other episodes."""
    more = f"""
    import os
    import {", ".join(libraries)}

    with open(os.environ["DRAWN"], "a") as file:
        print({", ".join(f"float({DRAWS[name]})" for name in libraries)}, file=file)
    """
    drawn = tmp_path / "drawn"
    repository.library("base", more=more)
    repository.commit()
    repository.library("head", more=more)
    brief = (*TWO_PAIRS, "-o", f"rlperf_workers={workers}")
    run = repository.against("HEAD", "-k", "work", *brief, DRAWN=str(drawn))
    assert run.tests["test_work"]["live"]["pairs"]
    first, *measured = drawn.read_text().splitlines()  # the first is of the run's own process, which has no seed
    assert len(measured) >= 4
    assert first not in measured
    assert len(set(measured)) <= 2  # one driver has another seed


@pytest.mark.slow  # test_reach_cases has children of many kinds, test_observation those before the call
def test_code_that_only_child_processes_ran_is_measured(repository: Repository) -> None:
    """Nobody sees what a child process loads, least of all one that has ended."""
    more = """
    import subprocess, sys

    def spawn():
        return subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    """
    repository.library("base", more=more)
    repository.write({"mylib/elsewhere.py": "VALUE = 1\n"})
    repository.measure("spawn")
    repository.commit()
    repository.write({"mylib/elsewhere.py": "VALUE = 2\n"})
    run = repository.against("HEAD", "-v", *TWO_PAIRS)
    assert run.tests["test_spawn"]["live"]["pairs"]


@pytest.mark.slow
def test_a_name_that_is_missing_on_base_is_new(repository: Repository, wording: Wording) -> None:
    """A test of something new passes as NEW beside one that is compared."""
    repository.library("head", more="\ndef added():\n    return sum(range(300))\n")
    repository.write({"tests/test_it.py": f"{TESTS}\ndef test_added(rlperf):\n    rlperf(mylib.added)\n"})
    repository.commit()
    run = repository.against("HEAD~1", "-k", "added or rest")
    assert run.statuses["test_added"] == "NEW"
    assert run.statuses["test_rest"] in ("SAME", "UNDECIDED")  # which only a machine too busy to tell is
    assert run.codes["test_added"] == "base"
    assert without_commits(run.reasons["test_added"]) == wording


@pytest.mark.slow
def test_tests_of_something_new_alone_pass(repository: Repository) -> None:
    """The first tests of something new have nothing to be compared with, and are no reason to fail."""
    repository.library("head", more="\ndef added():\n    return sum(range(300))\n")
    repository.measure("added")
    repository.commit()
    run = repository.against("HEAD~1")
    assert run.statuses == {"test_added": "NEW"}


def test_a_base_that_cannot_be_imported_is_the_reason_of_each_test(repository: Repository, wording: Wording) -> None:
    """Base's own error says why nothing can be compared, and a run that compares nothing is no pass."""
    repository.library("broken", more="\nraise RuntimeError('base is broken')\n")
    repository.commit()
    repository.library("head")
    repository.commit()
    run = repository.against("HEAD~1", ONE_CALL[1], code=USAGE)
    assert run.statuses == {"test_work": "INCOMPARABLE", "test_rest": "INCOMPARABLE"}
    assert without_commits(run.reasons["test_work"]) == wording
    assert re.findall(r"(?m)^note .*", run.section("rlperf")) == wording
    assert repository.left_over() == []


@pytest.mark.slow  # test_a_base_that_cannot_be_imported_is_the_reason_of_each_test
def test_a_conftest_that_base_cannot_import_is_the_reason_of_its_tests(repository: Repository) -> None:
    """Today's conftest.py may need what only head has: its tests are new there, and the run goes on."""
    repository.library("head", more="\ndef added():\n    return sum(range(300))\n")
    repository.write({"tests/conftest.py": "from mylib import added\n"})
    repository.commit()
    run = repository.against("HEAD~1", "-k", "work", ONE_CALL[1])
    assert run.statuses == {"test_work": "NEW"}
    assert "cannot import name 'added' from 'mylib'" in run.reasons["test_work"]
    assert str(repository.tmp) not in run.text


@pytest.mark.slow  # test_a_test_that_reads_the_users_own_tree_is_an_error_of_that_test
def test_a_side_that_reads_the_users_own_tree_is_a_usage_error(repository: Repository, wording: Wording) -> None:
    """What both sides read by its whole path is of neither version; the file is named."""
    repository.write({"mylib/table.txt": "1"})
    place = repository.root / "mylib/table.txt"
    repository.library("base", more=f"\nTABLE = open({str(place)!r}).read()\n")
    repository.commit()
    repository.library("head", times=5, more=f"\nTABLE = open({str(place)!r}).read()\n")
    repository.commit()
    run = repository.against("HEAD~1", "-k", "work", code=USAGE)
    assert str(place) in run.err
    assert without_commits(run.err) == wording


@pytest.mark.slow
def test_a_test_that_reads_the_users_own_tree_is_not_settled_live(repository: Repository, wording: Wording) -> None:
    """The others are: what one test reads by an absolute path says nothing of them."""
    place = repository.root / "table.txt"
    tests = """
    import mylib

    def test_reads(rlperf):
        open({place!r}).read()
        rlperf(mylib.work)

    def test_rest(rlperf):
        rlperf(mylib.work)
    """
    repository.write({"table.txt": "1", "tests/test_it.py": tests.format(place=str(place))})
    repository.commit()
    repository.pytest("--rlperf-save-baseline", *STORED, code=OK)
    repository.commit()
    repository.library("head", times=5)
    repository.commit()
    run = repository.pytest("--rlperf", *STORED, *DECISIVE)
    assert run.tests["test_rest"]["live"] is not None, "not by stored numbers"
    why = run.reasons["test_reads"].splitlines()[-1]
    assert without_commits(why).replace(str(place), "PLACE") == wording


@pytest.mark.slow  # test_sides_layouts: src on the path by a conftest
def test_a_path_in_a_tests_conftest_leads_to_its_own_side(repository: Repository) -> None:
    """Base does not run head's modules, whatever puts the user's own tree on its path."""
    repository.write({"conftest.py": f"import sys\nsys.path.insert(0, {str(repository.root)!r})\n"})
    repository.library("head", times=5)
    repository.commit()
    run = repository.against("HEAD~1", "-k", "work", code=FAILED)
    assert run.statuses == {"test_work": "SLOWER"}


def collide(repository: Repository, *args: str, port: int = 0) -> Run:
    """Compare tests whose sides collide: with each other over a lock, or with a file and a port that another has."""
    taken = repository.tmp.parent / "taken"
    taken.touch()
    repository.write({"tests/test_it.py": source("live_colliding/test_it.py")})
    repository.library("head")
    repository.commit()
    return repository.pytest(*args, *QUICK, *DECISIVE, code=FAILED, TAKEN=str(taken), PORT=str(port))


@pytest.mark.slow  # test_mistakes: test_the_message_helps[port]
def test_a_port_or_file_that_the_other_side_has_is_an_error_with_its_way_out(repository: Repository) -> None:
    """Whichever side comes second, the failure names the sides, the error and what processes do not share."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        args = ("--rlperf-against=HEAD~1", "-o", "rlperf_lanes=1", "--junitxml=junit.xml", "-k", "taken or lock")
        collide(repository, *args, port=server.getsockname()[1])
    failures = {name: "".join(case.itertext()) for name, case in cases(repository.root / "junit.xml").items()}
    assert len(failures) == 5
    for name, text in failures.items():
        error, way_out = (errno.EADDRINUSE, "port 0") if "port" in name else (errno.EEXIST, "tmp_path")
        sides = ("base worker 0", "head worker 0") if "base" in name else ("base", "head")
        assert [part for part in (*sides, f"[Errno {error}]", way_out) if part not in text] == [], name


@pytest.mark.slow  # test_a_port_or_file_that_the_other_side_has_is_an_error_with_its_way_out
def test_a_file_that_the_other_side_has_is_no_missing_test(repository: Repository, fast: Store) -> None:
    """Stored numbers do not stand in for the baseline's commit where it fails for a file that head has."""
    run = collide(repository, "--rlperf", "-k", "work")
    assert run.statuses == {"test_work": "ERROR"}
    failure = run.failure("test_work")
    assert f"[Errno {errno.EEXIST}]" in failure
    assert "tmp_path" in failure


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other(repository: Repository, tmp_path: Path) -> None:
    """Both prepare the same side of the same checkout, and both find what there is to find."""
    repository.library("head", times=5)
    repository.commit()
    args = ("--rlperf-against=HEAD~1", *QUICK, *DECISIVE, "-k", "work")
    files = tmp_path / "one.json", tmp_path / "other.json"
    one, other = (repository.start(*args, f"--rlperf-json={file}") for file in files)
    with one, other:
        for process in (one, other):
            process.communicate(timeout=180)
    assert [one.returncode, other.returncode] == [FAILED, FAILED]
    for file in files:
        (test,) = json.loads(file.read_bytes())["tests"].values()
        assert test["verdict"]["status"] == "SLOWER"


def rewrite(path: Path, change: Any) -> None:
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def five_times_as_fast(data: dict[str, Any]) -> None:
    """Make stored figures such that everything after them looks slower."""
    for entry in data["results"].values():
        for worker in entry["result"]["workers"]:
            for clock in {"wall", "cpu"} & set(worker):
                worker[clock] = {name: value / 5 for name, value in worker[clock].items()}


SETTLE = ("--rlperf", *QUICK, *DECISIVE, "-k", "work")


@pytest.mark.slow
def test_a_suspicion_is_settled_by_the_baselines_own_commit(repository: Repository, stored: Path) -> None:
    """Stored numbers that see a slowdown do not convict: live pairs against their commit do, or find none."""
    rewrite(stored, five_times_as_fast)
    repository.library("head")  # other code, as fast
    acquitted = repository.pytest(*SETTLE, "-v", code=OK)
    assert acquitted.statuses == {"test_work": "SAME"}
    assert acquitted.tests["test_work"]["live"]["pairs"]

    repository.library("head", times=5)
    convicted = repository.pytest(*SETTLE, code=FAILED)
    assert convicted.statuses == {"test_work": "SLOWER"}
    assert convicted.codes == {"test_work": "live"}
    assert repository.git("rev-parse", "--short=12", "HEAD") in convicted.failure("test_work")


@pytest.mark.usefixtures("fast")
def test_equal_code_is_acquitted_without_live_pairs(repository: Repository, wording: Wording) -> None:
    """Where the baseline's commit has the same code, a suspicion is the machine's."""
    run = repository.pytest(*SETTLE, *STORED, code=OK)
    assert run.statuses == {"test_work": "SAME"}
    assert run.codes == {"test_work": "environment"}
    assert without_figures(without_commits(run.reasons["test_work"])) == wording
    assert run.tests["test_work"]["live"] is None
    commit = repository.git("rev-parse", "--short=12", "HEAD")
    assert f"rlperf: baseline 'default' in baselines, of commit {commit}\n" in run.out


@pytest.mark.slow
def test_a_baseline_of_another_machine_is_settled_live(repository: Repository, stored: Path) -> None:
    """Its numbers mean nothing here, its commit does."""
    rewrite(stored, lambda data: data["machine"].update(cpu="another processor"))
    stored.rename(stored.with_name("another-machine.json"))
    repository.library("head", times=5)
    run = repository.pytest(*SETTLE, code=FAILED)
    assert run.statuses == {"test_work": "SLOWER"}


def test_a_commit_that_git_has_not_is_not_run(repository: Repository, fast: Store, wording: Wording) -> None:
    """A baseline may name any commit; only one of the local history is run, else the numbers are all there is."""

    def forget(data: dict[str, Any]) -> None:
        for session in data["sessions"].values():
            session["commit"] = "a" * 40

    rewrite(fast.path, forget)
    repository.library("head")
    run = repository.pytest(*SETTLE, *STORED, code=FAILED)
    assert run.statuses == {"test_work": "SLOWER"}
    assert run.codes == {"test_work": "stored"}
    assert without_commits(run.reasons["test_work"]) == wording


TOLD = ["SAME", "SLOWER", "SLOWER"]  # of unchanged code and of two slowdowns


@pytest.mark.slow
def test_selfcheck_tells_what_the_machine_can(repository: Repository, wording: Wording) -> None:
    """Unchanged code is not called slower, nor slower code the same, and the machine is fit if all that was found."""
    repository.write({"larger.py": "from pytest_rlperf.run import selfcheck\nselfcheck.SLOWDOWNS = (2.0, 4.0)\n"})
    told = (f"--rlperf-json={repository.json}", "-p", "rlperf", "-p", "no:cacheprovider", "-p", "larger")
    run = repository.rlperf("check-machine", *told, *QUICK, *DECISIVE, "-k", "work", code=OK)
    assert run.document["kind"] == "selfcheck"
    trials = run.tests["test_work"]["trials"]
    found = [trial["verdict"]["status"] for trial in trials]
    # A busy machine may be too busy to tell; that is what a self-check is for, and no reason to call anything wrong.
    assert [status if status != "UNDECIDED" else told for status, told in zip(found, TOLD, strict=True)] == TOLD
    if found[2] == "SLOWER":
        assert trials[2]["verdict"]["estimate"]["ratio"] == pytest.approx(5, rel=0.3)
    is_fit = found == TOLD
    fitness = run.document["fitness"]
    alarms, _ = fitness.pop("reasons")
    assert fitness == {"tolerance": 0.5, "is_fit": is_fit, "false_alarms": 0}
    assert f"{found.count('SAME')} of 1" in alarms
    assert without_figures(alarms) == wording
    assert "+200 %" in run.words
    assert f"fit {'yes' if is_fit else 'no'}" in run.words


LATE = """
    class Maze:
        def reset(self, seed):
            self.t = 0

        def step(self, action):
            self.t += 1
            return sum(range(400)) if self.t > 4_000 else 0

    make_env = Maze
    """


@pytest.mark.slow
def test_a_cost_that_begins_late_is_in_a_call_of_a_whole_episode(tmp_path: Path) -> None:
    """The page's example finds it, by what a call does more."""
    (test,) = re.findall(r"(?ms)^## Whole episodes$.*?^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
    example = Example(tmp_path, {"my_library.py": LATE.replace("> 4_000", "> 5_000"), "test_it.py": test})
    example.write({"pytest.ini": "[pytest]\npythonpath = .\n"})
    example.commit()
    example.write({"my_library.py": LATE})
    brief = ("-orlperf_pairs=2..2", "--rlperf-max-time=1", "--rlperf-findings=counts=gate")
    run = example.pytest("--rlperf-against=HEAD", *brief, code=FAILED)
    assert run.statuses == {"test_episode": "SLOWER"}
    assert re.search("sum 0 → 1,?000 a call", run.error("test_episode"))
