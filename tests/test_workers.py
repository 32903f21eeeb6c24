"""Worker processes: how they die, hang, disagree and end, beside other plugins and options of pytest's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
import venv
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from builders import FIRST_CALLS, ONE_CALL, git, scratch_left, source
from wording import Wording

from pytest_rlperf.workers import no_coverage

ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which saves each of six processes much of its start

CONFTEST = """
    import os

    import pytest


    def worker_of(config):
        return getattr(config, "workerinput", {}).get("workerid")


    @pytest.fixture(scope="session")
    def worker(request):
        return worker_of(request.config)
"""


def run(directory: Path, *args: str, tests: str = "", conftest: str = CONFTEST, **env: str) -> Run:
    """Write a conftest and a test file and run pytest on them, as a user would."""
    write(directory, tests, conftest)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "rlperf", *args],
        cwd=directory,
        env=environment(directory, **env),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    return Run(process.returncode, process.stdout, process.stderr)


class Run:
    """How a pytest process ended, and what it wrote."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.text = f"{out}\n--- stderr ---\n{err}"
        pattern = re.compile(r"^\S+?\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
        self.lines = [(match[1], match[2]) for match in pattern.finditer(out)]
        self.outcomes = dict(self.lines)

    def failure(self, test: str) -> str:
        """Return the text of one test's failure."""
        parts = re.split(
            r"^_{2,} (?:ERROR at \w+ of )?(\S+) _{2,}$", self.out.partition("short test summary")[0], flags=re.M
        )
        return "\n".join(text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == test)


def write(directory: Path, tests: str, conftest: str = CONFTEST) -> None:
    """Write a project of one test file."""
    (directory / "tmp").mkdir(exist_ok=True)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "conftest.py").write_text(textwrap.dedent(conftest))
    (directory / "test_it.py").write_text(textwrap.dedent(tests))


def environment(directory: Path, **env: str) -> dict[str, str]:
    """Return the environment for a run, whose temporary files go below `directory`."""
    removed = ("PYTEST_ADDOPTS", "PYTEST_XDIST", "PYTEST_CURRENT_TEST", "COV_CORE_", "COVERAGE_PROCESS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    return {**kept, "COLUMNS": "100", "TMPDIR": str(directory / "tmp"), **env}


def left_over(directory: Path) -> list[str]:
    """Return the workers' temporary directories that are still there."""
    return scratch_left(directory / "tmp")


# ------------------------------------------------------------------ a worker starts


def test_every_worker_has_a_heap_of_its_own(tmp_path: Path) -> None:
    """The places of new objects within their pools differ: were they alike, a side's layout would be part of its time.

    Nothing else that is random decides about them: all workers of a side would have the same.
    """
    tests = """
        def test_places(rlperf, worker):
            made = [bytes(size) for size in range(100, 470, 16)]
            with open("places", "a") as file:
                print(*(id(each) % 16384 for each in made), file=file)
            rlperf(lambda: sum(range(1000)))
    """
    result = run(tmp_path, *FIRST_CALLS, tests=tests, **ALONE)
    assert result.code == pytest.ExitCode.OK, result.text
    places = (tmp_path / "places").read_text().splitlines()
    assert len(places) == 5
    by_size = list(zip(*(line.split() for line in places), strict=True))
    # Five workers may all begin a new pool of one size; without the variation they are alike in all sizes.
    assert sum(len(set(found)) > 1 for found in by_size) >= len(by_size) - 2


# ------------------------------------------------------------------ a worker dies

DEATHS = source("workers/deaths.py")


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure tests in which workers die, and between them tests in which they do not."""
    return run(tmp_path_factory.mktemp("deaths"), *ONE_CALL, "-v", tests=DEATHS, **ALONE)


@pytest.mark.parametrize(
    ("test", "outcome", "words"),
    [
        ("test_setup", "ERROR", ["last words in setup"]),
        ("test_call", "FAILED", ["last words in the call", "last error words"]),
        ("test_measured", "FAILED", ["last words of rlperf3", ">       rlperf("]),
        ("test_killed", "FAILED", ["last words before the kill"]),
        (
            "test_segfault",
            "FAILED",
            ["last words before the fault", "test_segfault", "Segmentation fault"],
        ),
        ("test_capfd", "FAILED", ["last words under capfd"]),
        ("test_teardown", "ERROR", ["last words in teardown"]),
    ],
)
def test_death_is_an_error_of_its_test(
    deaths: Run, test: str, outcome: str, words: list[str], wording: Wording
) -> None:
    """The test in which a worker dies fails with how it ended and the end of its output."""
    assert deaths.outcomes[test] == outcome, deaths.text
    assert deaths.failure(test) == wording
    assert [word for word in words if word not in deaths.failure(test)] == []


def test_death_in_teardown_is_reported_once(deaths: Run) -> None:
    """A test that passed before its worker died in teardown is an error of teardown, not a second call."""
    assert [outcome for test, outcome in deaths.lines if test == "test_teardown"] == ["PASSED", "ERROR"]


def test_other_tests_are_measured_after_a_death(deaths: Run) -> None:
    """The tests after one that killed its workers run in fresh ones."""
    passed = {test for test, outcome in deaths.outcomes.items() if outcome == "PASSED"}
    assert passed == {"test_after_setup", "test_after_measured", "test_last"}, deaths.text
    table = deaths.out.partition("== rlperf ==")[2]
    assert all(re.search(rf"^{test} +\d", table, re.MULTILINE) for test in passed)
    assert deaths.code == pytest.ExitCode.TESTS_FAILED


def test_death_at_the_start_is_an_error_of_one_test(tmp_path: Path, wording: Wording) -> None:
    """A worker that dies before it has collected costs the test that waited for it, and no other."""
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
    result = run(tmp_path, *ONE_CALL, tests=tests, conftest=conftest, **ALONE)
    assert "1 passed, 1 error" in result.out, result.text
    assert result.failure("test_one") == wording
    assert "last words at the start" in result.out


# ------------------------------------------------------------------ a worker hangs, disagrees, or gives up

PATIENCE = """
    def pytest_configure(config):
        if worker_of(config) is None:
            from pytest_rlperf.run import loop

            loop._PATIENCE_LEAST_S = 4.0  # of 10 s
"""

HANGS = source("workers/hangs.py")


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure tests in which one worker hangs, or does other than the rest."""
    return run(
        tmp_path_factory.mktemp("hangs"), *ONE_CALL, "-v", "-rs", tests=HANGS, conftest=CONFTEST + PATIENCE, **ALONE
    )


def test_hanging_worker_is_ended_and_named(hangs: Run, wording: Wording) -> None:
    """A worker that does not answer is ended: its test fails and says which hung where, and the run goes on."""
    assert hangs.outcomes["test_hangs"] == "FAILED", hangs.text
    said = hangs.failure("test_hangs")
    assert said == wording
    assert re.search(r'test_it\.py", line \d+ in wait_for_ever', said)
    assert hangs.outcomes["test_after"] == hangs.outcomes["test_last"] == "PASSED"


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("test_other_raises", ["in worker 4 the test failed where it went on in worker 0", "ValueError: only there"]),
        ("test_other_skips", ["in worker 1 the test skipped where it went on in worker 0", "skipped there"]),
        ("test_other_calls_nothing", ["in worker 1 the test ended without calling its rlperf fixture"]),
        (
            "test_other_component_raises",
            ["in worker 3 the test failed where it went on in worker 0", "component broke there"],
        ),
    ],
)
def test_disagreeing_worker_fails_the_test(hangs: Run, test: str, words: list[str]) -> None:
    """A worker that raises, skips or calls nothing where the reporter goes on is named, with its reason."""
    assert hangs.outcomes[test] == "FAILED", hangs.text
    assert [word for word in words if word not in hangs.failure(test)] == []


def test_reporter_decides_before_the_call(hangs: Run, wording: Wording) -> None:
    """The reporting worker's error before its call is reported, whatever the other workers do."""
    assert hangs.outcomes["test_reporter_raises"] == "FAILED"
    assert hangs.failure("test_reporter_raises") == wording
    assert "went on" not in hangs.failure("test_reporter_raises")
    assert hangs.outcomes["test_reporter_skips"] == "SKIPPED"
    assert "skipped here" in hangs.out
    assert hangs.outcomes["test_broad_except"] == "PASSED"


def test_exit_by_a_test_shows_its_reason(hangs: Run) -> None:
    """`pytest.exit` in a test shows its reason."""
    assert "enough of this" in hangs.out


# ------------------------------------------------------------------ nothing is left behind

LONG = source("workers/long.py")


def start(directory: Path, *args: str) -> subprocess.Popen[bytes]:
    """Start a run of LONG in the background."""
    write(directory, LONG)
    with (directory / "out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "rlperf", "--rlperf", *args],
            cwd=directory,
            env=environment(directory, **ALONE),
            stdout=out,
            stderr=out,
        )


def pids(directory: Path, what: str) -> set[int]:
    """Return the processes that have said `what`."""
    try:
        lines = (directory / "events").read_text().splitlines()
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
    """Return those that still run."""
    alive = set()
    for pid in processes:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.add(pid)
        except psutil.NoSuchProcess:
            continue
    return alive


def test_nothing_is_left_after_a_run(tmp_path: Path) -> None:
    """After a run its workers, what they started and their temporary directories are gone, and fixtures torn down."""
    process = start(tmp_path, *FIRST_CALLS[1:], "-k", "quick")
    assert process.wait(60) == 0, (tmp_path / "out").read_text()
    assert len(pids(tmp_path, "up")) == 5
    assert pids(tmp_path, "down") == pids(tmp_path, "up")
    assert not running(pids(tmp_path, "up") | pids(tmp_path, "child"))
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("test", "stage", "number"),
    [("long", "measuring", signal.SIGINT), ("slow_setup", "setting up", signal.SIGTERM)],
)
def test_nothing_is_left_after_an_interrupt(tmp_path: Path, test: str, stage: str, number: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM workers tear down their fixtures and are gone, and the run ends as interrupted."""
    process = start(tmp_path, "--rlperf-max-time=60", "-k", test)
    assert wait_until(lambda: bool(pids(tmp_path, stage)), 30), (tmp_path / "out").read_text()
    if stage == "setting up":
        assert wait_until(lambda: len(pids(tmp_path, stage)) == 5, 30)
    process.send_signal(number)
    assert process.wait(30) == pytest.ExitCode.INTERRUPTED, (tmp_path / "out").read_text()
    assert "KeyboardInterrupt" in (tmp_path / "out").read_text()
    assert not running(pids(tmp_path, "up"))
    assert pids(tmp_path, "down") == pids(tmp_path, "up")
    assert left_over(tmp_path) == []


def test_interrupts_that_follow_the_first_break_nothing_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often Ctrl-C is pressed while a side is prepared, the run ends as interrupted, and nothing is left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    write(project, LONG)
    git(project, "init", "-q")
    git(project, "config", "filter.slow.smudge", f"touch '{tmp_path}/reached'; sleep 300")
    for name, text in {".gitattributes": "*.txt filter=slow\n", "filtered.txt": "text\n"}.items():
        (project / name).write_text(text)
    git(project, "add", ".gitattributes", "filtered.txt")
    git(project, "commit", "-qm", "one")
    process = start(project, "--rlperf-against=HEAD", "-k", "quick")
    assert wait_until((tmp_path / "reached").exists, 30), (project / "out").read_text()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    text = (project / "out").read_text()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert "KeyboardInterrupt" in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert left_over(project) == []
    assert [path for path in (tmp_path / "cache").rglob("*") if path.name == "filtered.txt"] == []


def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    """When the run's process is killed while measuring, its workers end by themselves, with their teardowns."""
    process = start(tmp_path, "--rlperf-max-time=60", "-k", "long")
    assert wait_until(lambda: bool(pids(tmp_path, "measuring")), 30), (tmp_path / "out").read_text()
    workers = pids(tmp_path, "up")
    assert len(workers) == 5
    process.kill()
    process.wait()
    assert wait_until(lambda: not running(workers), 15)
    assert pids(tmp_path, "down") == workers


# ------------------------------------------------------------------ other plugins and options

NEIGHBOURS = source("workers/neighbours.py")


def have(*modules: str) -> None:
    """Skip where a plugin is not installed."""
    for module in modules:
        pytest.importorskip(module)


def test_beside_other_plugins(tmp_path: Path, wording: Wording) -> None:
    """Distribution is off, with a note; timeouts, reruns and coverage leave measured tests alone; -W error counts."""
    have("xdist", "pytest_timeout", "pytest_rerunfailures", "pytest_cov")
    result = run(
        tmp_path, "-n", "2", "--timeout=1", "--reruns", "2", "--cov=.", "--strict-markers", "-W", "error", "-v",
        tests=NEIGHBOURS, PYTEST_ADDOPTS="--rlperf --rlperf-max-time=1",
    )  # fmt: skip
    assert result.outcomes == {
        "test_longer_than_its_timeout": "PASSED",
        "test_fails": "FAILED",
        "test_traced_by_nobody": "PASSED",
        "test_warns": "FAILED",
    }, result.text
    assert "pytest-xdist's distribution is off" in result.out.partition("test_it.py")[0]
    assert "RERUN" not in result.out
    assert (tmp_path / "events").read_text().count("ran") == 5
    assert result.failure("test_warns") == wording
    assert "pytest_rlperf/" not in result.failure("test_warns")
    assert result.code == pytest.ExitCode.TESTS_FAILED


SIMPLE = """
    def test_simple(rlperf):
        print("printed")
        rlperf(lambda: sum(range(1000)))
"""


def environment_without(directory: Path, *left_out: str) -> Path:
    """Make an environment of this one's packages less those whose files begin so; return its interpreter."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for place in Path(sysconfig.get_path("purelib")).iterdir():
        if not place.name.startswith(("_virtualenv", *left_out)):
            (packages / place.name).symlink_to(place)
    return directory / "bin" / "python"


@pytest.mark.slow
def test_another_interpreter_needs_no_coverage(tmp_path: Path, wording: Wording) -> None:
    """A run under pytest-cov is compared with an interpreter that has none, whose workers take its options as given."""
    have("pytest_cov")
    python = environment_without(tmp_path / "other", "pytest_cov")
    lacking = subprocess.run([python, "-c", "import pytest, pytest_cov"], capture_output=True, text=True, check=False)
    assert lacking.stderr == wording
    write(tmp_path, "def test_it(rlperf):\n    rlperf(int)\n", "")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --cov=test_it --cov-report=term\n")
    against = (f"--rlperf-against=python:{python}", "--rlperf-pairs=2..2", "--rlperf-max-time=0.1")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *against, "--cov-branch", "test_it.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "test_it.py::test_it PASSED" in result.stdout
    assert f"({python}),live" in "".join(result.stdout.split())


def test_options_of_pytest_cov_are_taken_with_and_without_it(tmp_path: Path) -> None:
    """The stand-in for a missing pytest-cov leaves an installed one alone."""
    flags = ("--cov", "--cov-append", "--cov-branch", "--cov-report=term", "--cov-config=none", "--no-cov-on-fail")
    plugin = ("-p", "pytest_rlperf.workers.no_coverage", "--no-cov", "--cov=test_it")
    result = run(tmp_path, *plugin, *flags, tests=SIMPLE)
    assert result.code == 0, result.text
    assert "TOTAL" not in result.out


def test_options_of_a_missing_pytest_cov_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without pytest-cov takes the options of the run's command line, and does nothing with them."""
    monkeypatch.setattr(no_coverage, "find_spec", lambda name: None)
    parser = pytest.Parser(_ispytest=True)
    no_coverage.pytest_addoption(parser)
    flags = ["--cov=one", "--cov", "--cov-append", "--cov-report=term", "--cov-fail-under=90", "--no-cov"]
    found = vars(parser.parse_known_args([*flags, "test_it.py"]))
    assert (found["cov"], found["cov_branch"], found["cov_report"]) == (["one", None], False, ["term"])
    assert found["cov_append"]


def test_without_other_plugins(tmp_path: Path) -> None:
    """Measuring needs no plugin that can be switched off, under --strict-config too."""
    names = (
        "benchmark", "cacheprovider", "debugging", "faulthandler", "hypothesispytest", "junitxml", "logging",
        "pytest_cov", "rerunfailures", "stepwise", "threadexception", "timeout", "tmpdir", "unraisableexception",
        "warnings", "xdist",
    )  # fmt: skip
    switched_off = [argument for name in names for argument in ("-p", f"no:{name}")]
    result = run(tmp_path, *ONE_CALL, "--strict-config", "-v", *switched_off, tests=SIMPLE)
    assert result.code == 0, result.text
    assert result.outcomes == {"test_simple": "PASSED"}


def test_without_a_terminal_reporter(tmp_path: Path) -> None:
    """A run without terminal output measures all the same, and its exit code shows the result."""
    result = run(tmp_path, *ONE_CALL, "-p", "no:terminal", "--junitxml=out.xml", tests=SIMPLE, **ALONE)
    assert result.code == 0, result.text
    assert 'name="rlperf_verdict" value="NEW"' in (tmp_path / "out.xml").read_text()
    assert left_over(tmp_path) == []


def test_workers_end_with_what_was_registered_for_their_end(tmp_path: Path) -> None:
    """Exit functions run once in every worker, and a thread that is no daemon comes to its own end first."""
    tests = """
        import atexit
        import os
        import threading
        from pathlib import Path


        def note(text):
            with Path("events").open("a") as file:
                file.write(f"{text} {os.getpid()}\\n")


        def wait_for_main():
            threading.main_thread().join()
            note("thread")


        def test_ends(rlperf):
            note("test")
            atexit.register(note, "exit")
            threading.Thread(target=wait_for_main).start()
            rlperf(int)
    """
    result = run(tmp_path, *ONE_CALL, tests=tests)
    assert result.code == 0, result.text
    events = [line.split() for line in (tmp_path / "events").read_text().splitlines()]
    workers = {process for text, process in events if text == "test"}
    assert workers
    for process in workers:
        assert [text for text, other in events if other == process] == ["test", "thread", "exit"]
