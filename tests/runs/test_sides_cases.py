"""Where code lies, and how it is read, in projects as people have them: what counts is what a test's processes read."""

from __future__ import annotations

import _ctypes
import math
import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders import ONE_CALL, TWO_PAIRS, source, write
from example import FAILED, OK, USAGE, Example, Run

QUICK = (*TWO_PAIRS, "--rlperf-tolerance=50%")
TIMES = ("--rlperf-findings=counts=off,garbage=off,first_call=off,growth=off",)  # are all that is looked at
LEAST = 1.5  # times, of what is three times the work

WORK = """
def work():
    s = 0
    for i in range({calls}):
        s += i
    return 1
"""
TEST = """
from {module} import work

def test_{name}(rlperf):
    rlperf(work)
"""
CONFIGURED = """
import os, pathlib, re, runpy

HERE = pathlib.Path(__file__).parents[1]
SETTINGS = int(re.search(r"n = (\\d+)", (HERE / "pyproject.toml").read_text())[1])
VARIABLE = int(open(os.environ["MYLIB_CONFIG"]).read())

def _times(count):
    for _ in range(count):
        pass

def settings():
    _times(SETTINGS)

def variable():
    _times(VARIABLE)

def executed():
    count = runpy.run_path(str(HERE / "configs" / "ant.py"))["STEPS"]
    return lambda: _times(count)
"""
CONFIGURED_TESTS = """
import mylib.configured as configured

def test_settings_of_code(rlperf):
    rlperf(configured.settings)

def test_path_in_a_variable(rlperf):
    rlperf(configured.variable)

def test_executed_config(rlperf):
    rlperf(configured.executed())
"""
PYPROJECT = """
[tool.mylib]
n = {calls}
[tool.pytest.ini_options]
pythonpath = ["."]
"""


def files(calls: int) -> dict[str, str]:
    """Return the code of a project, which does so many calls' work; its tests do not depend on it."""
    work = WORK.format(calls=calls)
    return {
        "env.py": work,
        "tasks.py": work,
        "mylib/ppo.py": work,
        "mylib/core.py": work,
        "pyproject.toml": PYPROJECT.format(calls=calls),
        "configs/ant.py": f"STEPS = {calls}\n",
        "config.txt": f"{calls}\n",
    }


TESTS = {
    "mylib/__init__.py": "",
    "mylib/conftest.py": "",
    "mylib/configured.py": CONFIGURED,
    "mylib/test_ppo.py": TEST.format(module="mylib.ppo", name="beside_code"),
    "test_env.py": TEST.format(module="env", name="env"),
    "test_tasks.py": TEST.format(module="tasks", name="tasks"),
    "tests/test_core.py": TEST.format(module="mylib.core", name="in_a_package_with_a_conftest"),
    "tests/test_configured.py": CONFIGURED_TESTS,
}
NAMES = {
    *("test_beside_code", "test_env", "test_tasks", "test_in_a_package_with_a_conftest"),
    *("test_settings_of_code", "test_path_in_a_variable", "test_executed_config"),
}


class Project(Example):
    """A repository with one commit."""

    def __init__(self, directory: Path, files: dict[str, str], **env: str) -> None:
        super().__init__(directory, {}, **env)
        self.write({".gitignore": "__pycache__/\n.pytest_cache/\n.env\n", **files})
        if "pyproject.toml" in files:
            (self.root / "pytest.ini").unlink()
        self.commit()

    def against(self, spec: str = "HEAD", *args: str, code: int | None = None, **env: Any) -> Run:
        return self.pytest(f"--rlperf-against={spec}", *QUICK, *args, code=code, **env)


def slowdown(run: Run, test: str) -> float:
    """Return how many times slower a measured test is on head, by its pairs."""
    live = run.tests[test]["live"]
    assert live is not None, f"{test} was not measured: {run.reasons[test]}"
    ratios = [pair[f"{live['clock']}_log_ratio"] for pair in live["pairs"]]
    return math.exp(sum(ratios) / len(ratios))


@pytest.fixture
def scattered(tmp_path: Path) -> Project:
    return Project(tmp_path, {**files(400), **TESTS}, MYLIB_CONFIG=str(tmp_path / "project" / "config.txt"))


def test_code_is_compared_wherever_it_lies(scattered: Project) -> None:
    """Modules of any name, beside tests, in packages with conftests, configs, settings, and files that variables name.

    Changed ones are measured, and each side by its own.
    """
    project = scattered
    project.write(files(1200))
    run = project.against("HEAD", *TIMES)
    assert set(run.tests) == NAMES
    assert {name: slowdown(run, name) > LEAST for name in NAMES} == dict.fromkeys(NAMES, True)


@pytest.mark.slow  # test_reach_cases: test_a_test_that_runs_nothing_of_the_change_is_spared; test_reach: test_grow
def test_code_that_does_not_differ_is_not_measured_wherever_it_lies(scattered: Project) -> None:
    """However much else does."""
    scattered.write({"NOTES.md": "as fast as before", "mylib/unused.py": "pass"})
    run = scattered.against(code=OK)
    assert run.statuses == dict.fromkeys(NAMES, "SAME")
    assert run.codes == dict.fromkeys(NAMES, "code")


@pytest.mark.parametrize("name", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_what_only_some_processes_read_is_measured(tmp_path: Path, name: str) -> None:
    """Where chance decides what a test loads, one process that loads nothing changed does not decide for it."""
    make = """
    import importlib
    import random

    def make():
        return importlib.import_module(random.choice(["mylib.a", "mylib.b"])).work
    """
    test = "from mylib import make\n\ndef test_task(rlperf):\n    rlperf(make())\n"
    modules = {f"mylib/{each}.py": WORK.format(calls=2000) for each in "ab"}
    project = Project(tmp_path, {"mylib/__init__.py": make, **modules, "test_perf.py": test})
    project.write({f"mylib/{name}.py": WORK.format(calls=6000)})
    assert project.against("HEAD", *TIMES, code=None).tests["test_task"]["live"] is not None


IGNORES = """
import pathlib
import numpy

OUTPUT = numpy.full(8, -numpy.inf)
env = pathlib.Path(__file__).parent / ".env"
N = int(env.read_text()) if env.exists() else 10

def work():
    for i in range(N):
        pass
    return OUTPUT
"""


class Ignoring(NamedTuple):
    """A run of a project with files that git ignores, and what the run's processes have asked git."""

    run: Run
    asked: list[str]


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory: pytest.TempPathFactory) -> Ignoring:
    directory = tmp_path_factory.mktemp("ignoring")
    tools, asked = directory / "tools", directory / "asked"
    tools.mkdir()
    (tools / "git").write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {shutil.which("git")} "$@"\n', encoding="utf-8")
    (tools / "git").chmod(0o755)
    project = Project(directory, {"mylib.py": IGNORES, "test_perf.py": TEST.format(module="mylib", name="work")})
    project.write({".env": "3000", "mylib.py": f"{IGNORES}# a comment\n"})
    project.write({".gitignore": ".env\nlarge/\n", **{f"large/{number}": "" for number in range(2001)}})
    plugins, path = ("pytest_benchmark.plugin", "rlperf"), f"{tools}:{os.environ['PATH']}"
    run = project.against("HEAD", *TIMES, "-o", "rlperf_reach=off", plugins=plugins, PATH=path)
    return Ignoring(run, asked.read_text("utf-8").splitlines())


def test_what_git_ignores_is_there_on_both_sides(ignoring: Ignoring) -> None:
    """Both versions read the same ignored file, and a comment is no slowdown, nor are infinite outputs an error."""
    assert 1 / LEAST < slowdown(ignoring.run, "test_work") < LEAST
    call_s = ignoring.run.tests["test_work"]["result"]["workers"][0]["wall"]["call_s"]
    assert call_s > 10 * 1e-7  # 3,000 steps, not the ten of a side without the file


def test_what_stays_behind_is_noted(ignoring: Ignoring) -> None:
    """Files that are too many to be copied unasked, with the setting that copies them."""
    assert ignoring.run.notes("rlperf_also = large/*")


def test_only_the_run_itself_asks_version_control(ignoring: Ignoring) -> None:
    """pytest-benchmark asks git for a name of files whenever pytest starts, but not in the processes of the sides."""
    assert [line for line in ignoring.asked if line.startswith("describe")] == [
        "describe --dirty --always --long --abbrev=40"
    ]


@pytest.mark.slow
def test_no_figure_is_of_two_versions(tmp_path: Path) -> None:
    """The tree is edited, and another commit checked out, while a run is on: both sides stay as they were."""
    project = Project(tmp_path, {"lib.py": WORK.format(calls=1500), "test_w.py": TEST.format(module="lib", name="w")})
    project.write({"lib.py": WORK.format(calls=1500) + "# a comment\n"})
    head = project.commit()
    stopped = threading.Event()

    def disturb() -> None:
        while not stopped.wait(0.3):
            project.write({"lib.py": WORK.format(calls=9000)})
            project.git("checkout", "--quiet", "--force", "HEAD~1")
            project.write({"test_w.py": "raise SystemExit\n"})
            project.git("checkout", "--quiet", "--force", head)

    thread = threading.Thread(target=disturb)
    started_s = time.monotonic()
    try:
        timer = threading.Timer(2.5, thread.start)  # once the sides are copied
        timer.start()
        run = project.against("HEAD~1", "-o", "rlperf_reach=off", "-o", "rlperf_pairs=12..12", "--rlperf-max-time=8")
    finally:
        stopped.set()
        if thread.ident is not None:
            thread.join()
        timer.cancel()
    assert time.monotonic() - started_s > 2.5
    assert run.tests["test_w"]["live"]["head_label"] == f"HEAD {head[:12]}"
    assert 1 / LEAST < slowdown(run, "test_w") < LEAST


FAILS = """
from mylib import work

def test_work(rlperf):
    calls = []

    def step():
        calls.append(1)
        if len(calls) == 20:
            raise RuntimeError("at the 20th call")
        return work()

    rlperf(step)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--rlperf-against=HEAD",), marks=pytest.mark.slow),
        ("--rlperf", "-o", "rlperf_workers=fresh"),  # which decide after copies, too
    ],
    ids=["against", "alone"],
)
def test_an_error_of_a_call_is_the_tests_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A call that fails in its process's 20th call fails its test, though it is then being counted."""
    project = Project(tmp_path, {"mylib.py": WORK.format(calls=200), "test_perf.py": FAILS})
    project.write({"mylib.py": WORK.format(calls=400)})
    run = project.pytest(*arguments, *QUICK, "--rlperf-max-time=5", code=FAILED)
    assert run.statuses == {"test_work": "ERROR"}
    assert "at the 20th call" in run.reasons["test_work"]
    assert "RuntimeError: at the 20th call" in run.error("test_work")


def test_a_file_that_is_edited_where_there_is_no_copy_makes_its_test_invalid(tmp_path: Path) -> None:
    """Outside git a run measures the user's own tree, and says which file was changed meanwhile."""
    edits = """
    import pathlib
    import mylib

    def test_work(rlperf):
        pathlib.Path(mylib.__file__).write_text("def work():\\n    return sum(range(100))\\n")
        rlperf(mylib.work)
    """
    project = Example(tmp_path, {"mylib.py": "def work():\n    return sum(range(99))\n", "test_perf.py": edits})
    run = project.pytest(*ONE_CALL, code=OK)
    assert run.statuses == {"test_work": "INVALID"}
    assert run.counts == "1 invalid"
    assert str(project.root / "mylib.py") in run.reasons["test_work"]


@pytest.mark.slow  # test_drivers: sitecustomize and usercustomize of the tree have new interpreters
def test_modules_that_are_loaded_before_anything_else_count(tmp_path: Path) -> None:
    """Python runs sitecustomize when it starts, before any process could note what it reads."""
    test = "from sitecustomize import STEPS\n\ndef test_it(rlperf):\n    rlperf(lambda: sum(range(STEPS)))\n"
    files = {"src/sitecustomize.py": "STEPS = 2000\n", "test_perf.py": test}
    project = Project(tmp_path, files, PYTHONPATH=str(tmp_path / "project" / "src"))
    project.write({"src/sitecustomize.py": "STEPS = 8000\n"})
    run = project.against("HEAD", "--rlperf-max-time=0.3")
    assert slowdown(run, "test_it") > LEAST
    assert run.notes("is run when Python starts")


READERS = """
import ctypes, os, pathlib, sqlite3
import elsewhere

HERE = pathlib.Path(__file__).parent

def _times(text):
    count = int(text)
    return lambda: [None for _ in range(count)]

def by_link(): return _times((HERE / "link.txt").read_text())
def by_absolute_link(): return _times((HERE / "absolute.txt").read_text())
def by_link_out(): return _times(len((HERE / "out.txt").read_text()) * int((HERE / "link.txt").read_text()))
def by_listing(): return _times(2000 * len(os.listdir(HERE / "plugins")))
def by_database():
    return _times(sqlite3.connect(HERE / "data.db").execute("select count(*) * 100 from steps").fetchone()[0])
def by_address(): return _times(pathlib.Path(os.environ["MYLIB_DB"].removeprefix("sqlite:///")).read_text())
def by_import_from_elsewhere(): return _times(elsewhere.STEPS)
"""
ELSEWHERE = "import os\nSTEPS = open(os.environ['MYLIB_STEPS']).read()\n"
KINDS = (*("link", "absolute_link", "link_out", "listing", "database", "address", "import_from_elsewhere"),)
READER_TESTS = "import readers\n" + "".join(
    f"\ndef test_{kind}(rlperf):\n    rlperf(readers.by_{kind}())\n" for kind in KINDS
)


@pytest.mark.slow  # test_reach_cases has listings, databases and files, test_sides_git links
def test_code_is_compared_however_it_is_read(tmp_path: Path) -> None:
    """By links of all kinds, listings, databases, addresses in variables, and imports from outside of the tree."""
    top = tmp_path / "project"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "elsewhere.py").write_text(ELSEWHERE, encoding="utf-8")
    (tmp_path / "outside" / "one.txt").write_text("1", encoding="utf-8")
    variables = {
        "PYTHONPATH": str(tmp_path / "outside"),
        "MYLIB_DB": f"sqlite:///{top}/steps.txt",
        "MYLIB_STEPS": f"{top}/steps.txt",
    }
    project = Project(tmp_path, {"readers.py": READERS, "test_perf.py": READER_TESTS}, **variables)

    def version(times: int) -> None:
        project.write({"steps.txt": f"{2000 * times}", **{f"plugins/{number}.txt": "" for number in range(times)}})
        (top / "data.db").unlink(missing_ok=True)
        with closing(sqlite3.connect(top / "data.db")) as database, database:
            database.execute("create table steps (number)")
            database.executemany("insert into steps values (?)", [(number,) for number in range(20 * times)])

    version(1)
    (top / "link.txt").symlink_to("steps.txt")
    (top / "absolute.txt").symlink_to(top / "steps.txt")
    (top / "out.txt").symlink_to("../outside/one.txt")
    project.commit()
    version(4)
    run = project.against()
    assert {kind: slowdown(run, f"test_{kind}") > LEAST for kind in KINDS} == dict.fromkeys(KINDS, True)

    project.commit()
    project.write({"notes/notes.md": "as fast as before"})
    assert project.against(code=OK).codes == {f"test_{kind}": "code" for kind in KINDS}


@pytest.mark.parametrize("changed", ["rounds.inl", pytest.param("n.txt", marks=pytest.mark.slow)])
def test_a_compiled_file_of_what_differs_is_not_compared(tmp_path: Path, changed: str) -> None:
    """Both sides load the one that git ignores: what it may be built of differs, unless the test reads that itself."""
    code = """
    import ctypes, pathlib

    HERE = pathlib.Path(__file__).parent
    ctypes.CDLL(str(HERE / "lib.so"))
    N = int((HERE / "n.txt").read_text())

    def work():
        return sum(range(N))
    """
    project = Project(
        tmp_path,
        {
            ".gitignore": "lib.so\n__pycache__/\n.pytest_cache/\n",
            "mylib.py": code,
            "n.txt": "100",
            "rounds.inl": "1",
            "test_perf.py": TEST.format(module="mylib", name="it"),
        },
    )
    shutil.copy(_ctypes.__file__, project.root / "lib.so")
    project.write({changed: "2000"})
    run = project.against()
    if changed == "n.txt":
        assert run.tests["test_it"]["live"] is not None
        return
    assert run.statuses == {"test_it": "INCOMPARABLE"}
    assert "lib.so" in run.reasons["test_it"]
    assert "rounds.inl" in run.reasons["test_it"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[Project, Path]:
    """Return a project with a changed module, and that module in another checkout, which it is imported from."""
    files = {
        "pyproject.toml": "[project]\nname = 'toyrl'\nversion = '1'\n",
        "lib/toyrl/__init__.py": "",
        "lib/toyrl/core.py": WORK.format(calls=2000),
        "test_late.py": "def test_late(rlperf):\n    from toyrl.core import work\n    rlperf(work)\n",
        "test_apart.py": "def test_apart(rlperf):\n    rlperf(lambda: sum(range(99)))\n",
    }
    other = tmp_path / "other"
    project = Project(tmp_path, files, PYTHONPATH=str(other / "lib"))
    shutil.copytree(project.root, other)
    project.write({"lib/toyrl/core.py": WORK.format(calls=6000)})
    return project, other / "lib/toyrl/core.py"


def test_code_of_another_checkout_is_an_error(elsewhere: tuple[Project, Path]) -> None:
    """A changed file whose module comes from elsewhere: of all tests where they are collected with it, else of one."""
    project, core = elsewhere
    run = project.against(code=FAILED)
    assert run.statuses == {"test_late": "ERROR", "test_apart": "SAME"}
    for part in (str(core), "lib/toyrl/core.py has changed", "pip install -e ."):
        assert part in run.reasons["test_late"]

    project.write({"test_late.py": TEST.format(module="toyrl.core", name="late")})
    run = project.against(code=USAGE)
    assert f"toyrl.core is imported from {core}" in run.words


@pytest.mark.slow
def test_code_of_another_checkout_in_all_tests_or_in_none(elsewhere: tuple[Project, Path]) -> None:
    """The only test of a run can have nothing compared; where no changed module is imported from there, all can."""
    project, core = elsewhere
    run = project.against("HEAD", "test_late.py", code=USAGE)
    assert f"toyrl.core is imported from {core}" in run.words
    project.write({"test_late.py": TEST.format(module="toyrl.core", name="late")})
    project.write({"lib/toyrl/core.py": WORK.format(calls=2000), "lib/toyrl/late.py": ""})
    assert project.against(code=OK).statuses == {"test_late": "SAME", "test_apart": "SAME"}


@pytest.mark.slow  # test_sides_environment: test_build_lands_in_the_environment and others
def test_an_installed_copy_is_built_on_both_sides(tmp_path: Path) -> None:
    """Forked processes have the code of their side, and none what the environment has a copy of."""
    code = "def work():\n    return sum(range({calls}))\n"
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        "backend.py": source("sides_environment/backend.py"),
        "built_thing/__init__.py": code.format(calls=2000),
        "perf/test_perf.py": TEST.format(module="built_thing", name="copy"),
    }
    site = tmp_path / "site"
    project = Project(tmp_path, files, PYTHONPATH=str(site))
    project.write({"built_thing/__init__.py": code.format(calls=6000)})
    metadata = "built_thing-1.0.dist-info"
    copied = {
        "built_thing/__init__.py": code.format(calls=6000),
        f"{metadata}/METADATA": "Metadata-Version: 2.1\nName: built-thing\nVersion: 1.0\n",
        f"{metadata}/direct_url.json": f'{{"url": "{project.root.as_uri()}", "dir_info": {{}}}}',
        f"{metadata}/RECORD": f"built_thing/__init__.py,,\n{metadata}/METADATA,,\n",
    }
    write(site, copied)
    run = project.against()
    assert slowdown(run, "test_copy") > LEAST
    assert not run.notes("new interpreter")
