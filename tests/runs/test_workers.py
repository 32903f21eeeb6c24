"""Worker processes: how they die, hang, disagree and end, beside other plugins and options of pytest's."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import FIRST_CALLS, ONE_CALL, TWO_PAIRS, source
from example import FAILED, INTERRUPTED, OK, Example, Run
from wording import Wording

from pytest_rlperf.spawn.guardian import VARIABLE

CONFTEST = source("workers/conftest.py")
AUTOLOAD: dict[str, Any] = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}  # with all plugins that are installed


def project(directory: Path, tests: str, conftest: str = CONFTEST) -> Example:
    """Return a project of one test file, whose text is given or the name of a sample."""
    if tests.endswith(".py"):
        tests = source(f"workers/{tests}")
    return Example(directory, {"conftest.py": conftest, "test_it.py": tests})


def errors(failure: str) -> list[str]:
    """Return the lines of a failure's error, to where the interpreter's own report begins."""
    return [line for line in failure.partition("Fatal Python error")[0].splitlines() if line.startswith("E ")]


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch._dynamo", marks=pytest.mark.slow)])
def test_a_copy_shows_nothing_that_a_new_interpreter_does_not(tmp_path: Path, library: str) -> None:
    """Descriptors, variables, signals, import hooks, filters, locks, seeds and threads are those of a new process."""
    pytest.importorskip(library)
    example = project(tmp_path, "state.py")
    found = {}
    for workers in ("auto", "fresh"):
        run = example.pytest(*ONE_CALL, "-o", f"rlperf_workers={workers}", code=OK, WITH=library)
        assert run.statuses == {"test_inherited": "NEW"}
        assert "new interpreter" not in run.out, run.out
        found[workers] = json.loads((example.root / f"rlperf0-{workers}.json").read_text())
    differing = [name for name, value in found["fresh"].items() if found["auto"][name] != value]
    assert differing == [], {name: [each[name] for each in found.values()] for name in differing}


TRIED = """
    import os

    import pytest

    IMPORTED_BY = os.getpid()


    class Buffer:
        def sample(self, batch_size):
            raise RuntimeError("perhaps only here")


    @pytest.fixture(autouse=True)
    def tried(request):
        with open(request.node.name, "a") as file:
            file.write("new\\n" if os.getpid() == IMPORTED_BY else "forked\\n")


    def test_keyword(rlperf_replay_sample):
        rlperf_replay_sample(Buffer(), batchsize=2)


    def test_missing(rlperf_replay_sample):
        rlperf_replay_sample(Buffer())


    def test_phase(rlperf_replay_sample):
        rlperf_replay_sample(Buffer(), batch_size=2, phases={"gather": "sample_rows"})


    def test_fixture(rlperf_replay_sampl):
        rlperf_replay_sampl(Buffer(), batch_size=2)


    def test_call(rlperf_replay_sample):
        rlperf_replay_sample(Buffer(), batch_size=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs processes that fork")
def test_only_what_another_process_could_do_better_is_tried_again(tmp_path: Path) -> None:
    """A wrong argument is wrong in every process; an error of the code that is measured may be due to the fork."""
    example = project(tmp_path, TRIED)
    run = example.pytest(*ONE_CALL, code=FAILED)
    assert set(run.statuses.values()) == {"ERROR"}
    tried = {name: set((example.root / name).read_text().split()) for name in run.statuses}
    wrong = {name: {"forked"} for name in ("test_keyword", "test_missing", "test_phase", "test_fixture")}
    assert tried == {**wrong, "test_call": {"forked", "new"}}
    assert "batchsize" in run.reasons["test_keyword"]
    assert "did you mean batch_size?" in run.reasons["test_keyword"]


def test_processes_are_forked_where_warnings_are_errors(tmp_path: Path) -> None:
    """Also beside all plugins that are installed, of whose modules pytest warns where they are loaded before it.

    And where pytest captures nothing.
    """
    example = project(tmp_path, "def test_it(rlperf): rlperf(lambda: sum(range(1000)))\n")
    options = ("-W", "error::pytest.PytestAssertRewriteWarning", "-p", "no:capture")
    run = example.pytest(*ONE_CALL, *options, code=OK, **AUTOLOAD)
    assert run.statuses == {"test_it": "NEW"}
    assert "new interpreter" not in run.out, run.out


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--rlperf", marks=pytest.mark.slow),
        "--rlperf-against=HEAD",
        pytest.param("--rlperf -o rlperf_workers=fresh", marks=pytest.mark.slow),
    ],
)
def test_no_warning_is_ours(tmp_path: Path, options: str) -> None:
    """Where every warning is an error, none of the run's processes has one to print: all files are closed."""
    example = project(tmp_path, "import work\n\ndef test_it(rlperf): rlperf(work.work)\n")
    example.write({"work.py": "def work(): return sum(range(1000))\n", "other.py": "CHANGED = 1\n"})
    example.commit()
    example.write({"work.py": "def work(): return sum(range(1001))\n"})
    run = example.pytest(*options.split(), *TWO_PAIRS, code=OK, PYTHONWARNINGS="error")
    assert "Warning" not in run.text
    assert "Exception ignored" not in run.text


@pytest.mark.slow  # test_live_comparison: test_a_test_that_sets_variables_of_libraries_is_doubtful
def test_variables_that_change_what_is_measured_need_new_interpreters(tmp_path: Path) -> None:
    """One note names the variable and all tests that set it; sound and logs change nothing that is measured."""
    tests = """
        import os
        import pytest
        from mylib import work

        def test_harmless(rlperf):
            for variable in ("SDL_AUDIODRIVER", "TF_CPP_MIN_LOG_LEVEL", "LD_LIBRARY_PATH"):
                os.environ[variable] = "dsp"
            rlperf(work)

        @pytest.mark.parametrize("number", [1, 2])
        def test_threads(rlperf, number):
            os.environ["OMP_PROC_BIND"] = "true"
            rlperf(work)
    """
    example = project(tmp_path, tests, "")
    example.write({"mylib.py": "def work(): return sum(range(1000))\n"})
    example.commit()
    example.write({"mylib.py": "def work():\n    return sum(range(1000))\n"})
    run = example.pytest("--rlperf-against=HEAD", "-o", "rlperf_reach=off", *TWO_PAIRS)
    (note,) = run.notes("new interpreters")
    assert [name in note for name in ("test_threads[1]", "test_threads[2]", "OMP_PROC_BIND")] == [True] * 3
    assert "harmless" not in note


@pytest.mark.slow  # it waits 20 s; test_idle_time has the clock's part
def test_a_call_that_waits_in_copies_is_measured_in_a_new_interpreter(tmp_path: Path) -> None:
    """As a call does that needs the threads of a pool, which a module has begun and a copy lacks."""
    tests = """
        import os
        import threading

        IMPORTED_BY = os.getpid()

        def test_pool(rlperf):
            rlperf(lambda: None if os.getpid() == IMPORTED_BY else threading.Event().wait())
    """
    run = project(tmp_path, tests, "").pytest("--rlperf", "--rlperf-max-time=8", code=OK)
    assert run.statuses == {"test_pool": "NEW"}
    (note,) = run.notes("new interpreters")
    assert "computed nothing within 20 s" in note


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure tests in which workers die, and between them tests in which they do not, in new interpreters alone.

    What is told of a copy's death is what a new interpreter's is in the end, which comes after it.
    """
    example = project(tmp_path_factory.mktemp("deaths"), "deaths.py")
    return example.pytest(*ONE_CALL, "-v", "-o", "rlperf_workers=fresh", code=FAILED)


@pytest.mark.parametrize(
    ("test", "outcome", "words"),
    [
        ("test_setup", "ERROR", ["last words in setup"]),
        ("test_call", "FAILED", ["last words in the call", "last error words"]),
        ("test_measured", "FAILED", ["last words of rlperf2", ">       rlperf("]),
        ("test_killed", "FAILED", ["last words before the kill"]),
        ("test_segfault", "FAILED", ["last words before the fault", "in test_segfault", "Segmentation fault"]),
        ("test_capfd", "FAILED", ["last words under capfd"]),
        ("test_teardown", "ERROR", ["last words in teardown"]),
    ],
)
def test_death_is_an_error_of_its_test(
    deaths: Run, test: str, outcome: str, words: list[str], wording: Wording
) -> None:
    """The test in which a worker dies fails with how it ended and the end of its output."""
    assert deaths.outcomes[test] == outcome, deaths.text
    assert deaths.statuses[test] == "ERROR"
    assert errors(deaths.failure(test)) == wording
    assert [word for word in words if word not in deaths.failure(test)] == []


def test_other_tests_are_measured_after_a_death(deaths: Run) -> None:
    """The tests after one that killed its workers run in fresh ones."""
    passed = {test for test, outcome in deaths.outcomes.items() if outcome == "PASSED"}
    assert passed == {"test_after_setup", "test_after_measured", "test_last"}, deaths.text
    assert {test for test, status in deaths.statuses.items() if status == "NEW"} == passed


@pytest.mark.slow  # test_live: test_a_worker_that_dies_in_a_pair_is_an_error_of_its_test
def test_deaths_of_copies_end_alike(tmp_path: Path, deaths: Run) -> None:
    """Each test in which a copy dies is measured in a new interpreter, and the others are measured after it."""
    run = project(tmp_path, "deaths.py").pytest(*ONE_CALL, "-v", code=FAILED)
    assert run.outcomes == deaths.outcomes, run.text
    assert run.statuses == deaths.statuses
    for test, status in run.statuses.items():
        told, expected = (errors(each.failure(test)) for each in (run, deaths))
        assert told == expected
        assert bool(told) == (status == "ERROR")


@pytest.mark.parametrize(
    ("workers", "statuses"),
    [
        pytest.param("fresh", {"test_one": "ERROR", "test_two": "NEW"}, marks=pytest.mark.slow),
        ("auto", {"test_one": "NEW", "test_two": "NEW"}),
    ],
)
def test_death_at_the_start(tmp_path: Path, workers: str, statuses: dict[str, str], wording: Wording) -> None:
    """A new interpreter that dies before it has collected costs the test that waited for it; a copy costs none."""
    conftest = """
        import os

        def pytest_configure(config):
            if getattr(config, "workerinput", {}).get("workerid") == "rlperf0" and not os.path.exists("died"):
                open("died", "w").close()
                print("last words at the start", flush=True)
                os._exit(7)
    """
    tests = """
        def work(): return sum(range(1000))
        def test_one(rlperf): rlperf(work)
        def test_two(rlperf): rlperf(work)
    """
    options = ("-o", "rlperf_lanes=1", "-o", f"rlperf_workers={workers}")  # or two tests would begin at once
    run = project(tmp_path, tests, conftest).pytest(*ONE_CALL, *options)
    assert run.statuses == statuses, run.text
    assert errors(run.failure("test_one")) == wording


PATIENCE = """

def pytest_configure(config):
    if worker_of(config) is None:
        from pytest_rlperf.run import test

        test._PATIENCE_LEAST_S = 4.0  # of 10 s
"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure tests in which one worker hangs, or does other than the rest."""
    example = project(tmp_path_factory.mktemp("hangs"), "hangs.py", CONFTEST + PATIENCE)
    return example.pytest(*ONE_CALL, "-v", "-rs")


def test_hanging_worker_is_ended_and_named(hangs: Run, wording: Wording) -> None:
    """A worker that does not answer is ended: its test fails and says which hung where, and the run goes on."""
    assert hangs.outcomes["test_hangs"] == "FAILED", hangs.text
    failure = hangs.failure("test_hangs")
    assert errors(failure) == wording
    assert re.search(r'test_it\.py", line \d+ in wait_for_ever', failure)
    assert hangs.outcomes["test_after"] == hangs.outcomes["test_last"] == "PASSED"


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("test_other_raises", ["worker 2", "worker 0", "ValueError: only there"]),
        ("test_other_skips", ["worker 1", "worker 0", "skipped there"]),
        ("test_other_calls_nothing", ["worker 1", "rlperf fixture"]),
        ("test_other_component_raises", ["worker 2", "worker 0", "component broke there"]),
    ],
)
def test_disagreeing_worker_fails_the_test(hangs: Run, test: str, words: list[str], wording: Wording) -> None:
    """A worker that raises, skips or calls nothing where the reporter goes on is named, with its reason."""
    assert hangs.outcomes[test] == "FAILED", hangs.text
    failure = hangs.failure(test)
    assert [word for word in words if word not in failure] == []
    assert errors(failure) == wording


def test_reporter_decides_before_the_call(hangs: Run, wording: Wording) -> None:
    """The reporting worker's error before its call is reported, whatever the other workers do."""
    assert hangs.outcomes["test_reporter_raises"] == "FAILED"
    assert errors(hangs.failure("test_reporter_raises")) == wording
    assert hangs.outcomes["test_reporter_skips"] == "SKIPPED"
    assert "skipped here" in hangs.out
    assert hangs.outcomes["test_broad_except"] == "PASSED"


def pids(example: Example, what: str) -> set[int]:
    """Return the processes that have said `what`."""
    try:
        lines = (example.root / "events").read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {int(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == what}


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether `condition` came true in time."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def running(processes: set[int]) -> set[int]:
    alive = set()
    for pid in processes:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.add(pid)
        except psutil.NoSuchProcess:
            continue
    return alive


PLACES = """
    def test_places(rlperf):
        made = [bytes(size) for size in range(100, 470, 16)]
        with open("places", "a") as file:
            print(*(id(each) % 16384 for each in made), file=file)
        rlperf(lambda: sum(range(1000)))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """Return a project in which tests of several workers each have been measured."""
    example = project(tmp_path_factory.mktemp("ended"), "long.py")
    example.write({"test_places.py": PLACES})
    example.pytest(*FIRST_CALLS, "-k", "quick or places", code=OK)
    return example


def test_nothing_is_left_after_a_run(ended: Example) -> None:
    """After a run its workers, what they started and their temporary directories are gone, and fixtures torn down."""
    assert len(pids(ended, "up")) == 3
    assert pids(ended, "down") == pids(ended, "up")
    assert not running(pids(ended, "up") | pids(ended, "child"))
    assert ended.left_over() == []


def test_every_worker_has_a_heap_of_its_own(ended: Example) -> None:
    """The places of new objects within their pools differ: were they alike, a side's layout would be part of its time.

    Nothing else that is random decides about them: all workers of a side would have the same.
    """
    places = (ended.root / "places").read_text().splitlines()
    assert len(places) == 3
    by_size = list(zip(*(line.split() for line in places), strict=True))
    # Three workers may all begin a new pool of one size; without the variation they are alike in all sizes.
    assert sum(len(set(found)) > 1 for found in by_size) >= len(by_size) - 2


@pytest.mark.parametrize(
    ("test", "stage", "number"),
    [("long", "measuring", signal.SIGINT), ("slow_setup", "setting up", signal.SIGTERM)],
)
@pytest.mark.usefixtures("in_foreground")
def test_nothing_is_left_after_an_interrupt(tmp_path: Path, test: str, stage: str, number: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM workers tear down their fixtures and are gone, and the run ends as interrupted."""
    example = project(tmp_path, "long.py")
    with example.start("--rlperf", "--rlperf-max-time=60", "-k", test) as process:
        assert wait_until(lambda: len(pids(example, stage)) >= (3 if stage == "setting up" else 1), 60)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    assert re.search(rf"before it had reported \d tests?: test_{test}", " ".join(out.split()))
    assert not running(pids(example, "up"))
    assert pids(example, "down") == pids(example, "up")
    assert example.left_over() == []


@pytest.mark.usefixtures("in_foreground")
def test_interrupts_that_follow_the_first_break_nothing_off(tmp_path: Path) -> None:
    """However often Ctrl-C is pressed while a side is prepared, the run ends as interrupted, and nothing is left."""
    example = project(tmp_path, "long.py")
    example.write({".gitattributes": "*.txt filter=slow\n", "filtered.txt": "text\n"})
    example.commit()
    example.git("config", "filter.slow.smudge", f"touch '{tmp_path}/reached'; sleep 300")
    with example.start("--rlperf-against=HEAD", "-k", "quick") as process:
        assert wait_until((tmp_path / "reached").exists, 60)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        text = "".join(process.communicate())
    assert process.returncode == INTERRUPTED, text
    assert "KeyboardInterrupt" in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert example.left_over() == []
    assert [path for path in (tmp_path / "cache").rglob("*") if path.name == "filtered.txt"] == []


def test_a_run_goes_on_that_was_started_to_ignore_an_interrupt(tmp_path: Path) -> None:
    """As one in the background of a script is, which Ctrl-C is not meant for."""
    conftest = "import os, signal\n\ndef pytest_runtest_logreport(): os.kill(os.getpid(), signal.SIGINT)\n"
    example = Example(tmp_path, {"conftest.py": conftest, "test_it.py": "def test_it(rlperf):\n    rlperf(int)\n"})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        example.pytest(*ONE_CALL, code=OK)
    finally:
        signal.signal(signal.SIGINT, before)


def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    """When the run's process is killed while measuring, its workers end by themselves, with their teardowns.

    By a variable from the start of their preload server the guardian knows them, should their parents be gone, too.
    """
    example = project(tmp_path, "long.py")
    with example.start("--rlperf", "--rlperf-max-time=60", "-k", "long") as process:
        assert wait_until(lambda: bool(pids(example, "measuring")), 60)
        workers = pids(example, "up")
        assert len(workers) == 3
        marks = {Path(f"/proc/{pid}/environ").read_bytes().count(f"\0{VARIABLE}=".encode()) for pid in workers}
        process.kill()
    assert marks == {1}
    assert wait_until(lambda: not running(workers), 60)
    assert pids(example, "down") == workers


def have(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module)


SIMPLE = """
    def test_simple(rlperf):
        print("printed")
        rlperf(lambda: sum(range(1000)))
"""


def test_without_other_plugins(tmp_path: Path) -> None:
    """Measuring needs no plugin that can be switched off, under --strict-config too."""
    names = (
        "benchmark", "cacheprovider", "debugging", "faulthandler", "hypothesispytest", "junitxml", "logging",
        "pytest_cov", "rerunfailures", "stepwise", "threadexception", "timeout", "tmpdir", "unraisableexception",
        "warnings", "xdist",
    )  # fmt: skip
    switched_off = [argument for name in names for argument in ("-p", f"no:{name}")]
    result = project(tmp_path, SIMPLE).pytest(*ONE_CALL, "--strict-config", "-v", *switched_off, code=OK, **AUTOLOAD)
    assert result.outcomes == {"test_simple": "PASSED"}
