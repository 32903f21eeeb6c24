"""The mistakes of a first day: each message has the value, the remedy, and a place in the docs."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import builders
import numpy  # noqa: F401 - before a run in place, for no process can load it again
import pytest
from example import FAILED, NOTHING, OK, USAGE, Example, Run

from pytest_rlperf.cli import main
from pytest_rlperf.errors import DOCS
from pytest_rlperf.fixtures import CALLS
from pytest_rlperf.model.judged import Status
from pytest_rlperf.report.summary import next_steps

BENCHMARK = ("pytest_benchmark.plugin", "rlperf")
ENV = """
    class Env:
        num_envs = 4
        single_action_space = type("Space", (), {"sample": lambda self: 0.0})()

        def reset(self, seed=None):
            raise RuntimeError("no simulator at /opt/sim")

        def step(self, actions):
            raise NotImplementedError


    def test_step(rlperf_vecenv_step):
        rlperf_vecenv_step(Env())
"""
BOTH = """
    def test_it(benchmark, rlperf):
        rlperf(lambda: sum(range(9)))
        benchmark(sum, range(9))
"""
SERVER = """
    import socket


    def test_it(rlperf):
        with socket.socket() as server:
            server.bind(("127.0.0.1", PORT))
            rlperf(lambda: sum(range(9)))
"""
EXAMPLES = """
    from hypothesis import HealthCheck, given, settings, strategies


    @settings(suppress_health_check=list(HealthCheck))
    @given(strategies.integers(1, 9))
    def test_it(rlperf, number):
        rlperf(lambda: sum(range(number)))
"""
LIBRARY = "import mylib\n\ndef test_it(rlperf):\n    rlperf(mylib.work)\n"
WORK = "def work():\n    return sum(range(9))\n"


STARTS = re.compile("--rlperf$|--rlperf-(against|save-baseline)")  # options that have a run measure


class Mistake(NamedTuple):
    """A test module, the options of the run, what it shows, and the place in the docs that it names.

    ``before`` are the files of a commit, which the tag v1.0 names.
    """

    tests: str
    options: tuple[str, ...]
    shown: tuple[str, ...]
    place: str
    code: int = FAILED
    before: Mapping[str, str] = {}


MISTAKES = {
    "fixture": Mistake(
        "def test_it(rlperf_vecenv_stp):\n    pass\n",
        (),
        ("there is no fixture 'rlperf_vecenv_stp'; did you mean rlperf_vecenv_step?",),
        "writing-tests.md#fixtures",
    ),
    "not called": Mistake(
        "def test_it(rlperf_gae):\n    pass\n",
        (),
        ("test_it passed but never calls rlperf_gae(compute_gae)",),
        "writing-tests.md#limits",
        OK,
    ),
    "no git": Mistake(
        LIBRARY,
        ("--rlperf-against=main",),
        ("--rlperf-against=main: ", "is not in a git working tree", "git init"),
        "comparing.md#live-comparisons",
        USAGE,
    ),
    "dirty tree": Mistake(
        "def test_it(rlperf):\n    rlperf(lambda: sum(range(9)))\n",
        ("--rlperf-max-time=0.3", "--rlperf-save-baseline"),
        (
            "stored 1 result",
            "not from a clean commit",
            "commit all that `git status` shows, or name it in .gitignore",
        ),
        "comparing.md#stored-baselines",
        OK,
        before={"mylib.py": WORK},
    ),
    "unknown base": Mistake(
        LIBRARY,
        ("--rlperf-against=v1.00",),
        ("there is no 'v1.00'", "did you mean v1.0?", "git fetch origin v1.00"),
        "comparing.md#live-comparisons",
        USAGE,
        before={"mylib.py": WORK},
    ),
    "dependency": Mistake(
        LIBRARY,
        ("--rlperf-against=v1.0", builders.ONE_CALL[1]),
        ("needs absent_library, which is not installed here: install it, then run this again",),
        "reading-a-report.md#incomparable",
        USAGE,
        before={"mylib.py": f"import absent_library\n\n{WORK}"},
    ),
    "port": Mistake(
        SERVER, builders.ONE_CALL, ("Address already in use", "PORT", "bind to port 0"), "writing-tests.md#which-tests"
    ),
    "reset": Mistake(
        ENV,
        (),
        ("Env.reset(seed=", "failed: RuntimeError: no simulator at /opt/sim; make this call work by itself"),
        "reading-a-report.md#error",
    ),
    "GAE": Mistake(
        "def test_it(rlperf_gae):\n    rlperf_gae(lambda rewards, values: rewards)\n",
        (),
        ("advantages differ from the float64 reference", "expected", "a function that also takes next_done"),
        "writing-tests.md#fixtures",
    ),
    "unittest": Mistake(
        "import unittest\nclass TestOld(unittest.TestCase):\n    def test_gae(self, rlperf_gae): ...\n",
        (),
        ("test_gae does not get the fixture 'rlperf_gae': in a class that is not a unittest.TestCase",),
        "writing-tests.md#limits",
    ),
    "benchmark": Mistake(
        BOTH,
        builders.ONE_CALL,
        ("test_it calls an rlperf fixture twice", "parametrize it, or write two tests"),
        "writing-tests.md#which-tests",
    ),
    "given": Mistake(
        EXAMPLES,
        (),
        ("test_it: @given calls a test with many examples", "parametrize that"),
        "writing-tests.md#which-tests",
    ),
    "option": Mistake(
        LIBRARY,
        ("--rlperf-agianst=HEAD",),
        ("there is no option --rlperf-agianst; did you mean --rlperf-against?",),
        "reference.md#options",
        USAGE,
    ),
    "setting": Mistake(
        LIBRARY,
        ("-o", "rlperf_tolerence=5%"),
        ("there is no ini setting rlperf_tolerence; did you mean rlperf_tolerance?",),
        "reference.md#options",
        USAGE,
    ),
}


IN_PLACE = {name: each for name, each in MISTAKES.items() if not any(map(STARTS.match, each.options))}


def check(mistake: Mistake, text: str, port: str = "") -> None:
    for shown in mistake.shown:
        assert shown.replace("PORT", port) in " ".join(text.split())
    assert re.search(rf"(?:see|what helps:)\s+{re.escape(f'{DOCS}/{mistake.place}')}\s", text)


RunInPlace = Callable[..., Run]


@pytest.fixture
def run_in_place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, alone: None) -> RunInPlace:
    """Return how pytest runs a file of tests in this process, as it starts none where nothing is measured."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(tests: str, *options: str) -> Run:
        pytester.makepyfile(mylib=WORK, test_it=tests)
        run = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
        return Run(int(run.ret), f"{run.stdout}\n", f"{run.stderr}\n", {})

    return run


@pytest.mark.parametrize("mistake", IN_PLACE.values(), ids=IN_PLACE)
def test_the_message_helps_where_nothing_is_measured(run_in_place: RunInPlace, mistake: Mistake) -> None:
    """It shows the value and what to do, and ends with an address."""
    run = run_in_place(mistake.tests, *mistake.options)
    assert run.code == mistake.code
    check(mistake, run.text)


@pytest.mark.parametrize(
    "mistake",
    [
        # test_live: test_a_port_or_file_that_the_other_side_has_is_an_error_with_its_way_out
        pytest.param(each, id=name, marks=pytest.mark.slow if name == "port" else ())
        for name, each in MISTAKES.items()
        if name not in IN_PLACE
    ],
)
def test_the_message_helps(tmp_path: Path, mistake: Mistake) -> None:
    """It shows the value and what to do, and ends with an address."""
    example = Example(tmp_path, mistake.before or {"mylib.py": WORK})
    if mistake.before:
        example.commit()
        example.git("tag", "v1.0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        example.write({"test_it.py": mistake.tests.replace("PORT", port), "mylib.py": WORK})
        plugins = BENCHMARK if "benchmark" in mistake.tests else ("rlperf",)
        run = example.pytest(*mistake.options, plugins=plugins, code=mistake.code)
    check(mistake, run.text, port)


def test_a_fixture_that_is_asked_for_late_is_named(tmp_path: Path) -> None:
    """Which tests are measured is fixed before they run: a line has the test, the fixture and the edit."""
    tests = """
        import pytest

        @pytest.fixture
        def measure(request):
            return request.getfixturevalue("rlperf_gae")

        def test_direct(request):
            request.getfixturevalue("rlperf")(lambda: None)

        def test_through_a_fixture(measure): ...
        def test_other(request): request.getfixturevalue("tmp_path")
    """
    run = Example(tmp_path, {"test_it.py": tests}).pytest(*builders.ONE_CALL, code=NOTHING)
    asked = "is not measured: it asks for {} by request.getfixturevalue; name it in the signature"
    lines = [
        f"rlperf: {test} {asked.format(name)}"
        for test, name in (("test_direct", "rlperf"), ("test_through_a_fixture", "rlperf_gae"))
    ]
    assert [line for line in run.out.splitlines() if "getfixturevalue" in line] == lines


def test_a_failing_test_shows_a_fixture_by_its_name(run_in_place: RunInPlace) -> None:
    """Each that pytest's traceback has as an argument of the test."""
    run = run_in_place(f"def test_it({', '.join(CALLS)}):\n    assert False\n")
    assert run.code == FAILED
    shown = re.findall(r"\b(\w+) = <function (\S+) at", run.failure("test_it"))
    assert shown == [(name, name) for name in CALLS]


def test_an_argument_of_another_kind_says_what_to_give(run_in_place: RunInPlace) -> None:
    """A class in place of its object, and NumPy's arrays for a function of tensors."""
    tests = """
        class Agent:
            def update(self, batch_size): ...

        def gae(rewards, values):
            raise TypeError("zeros_like(): argument 'input' must be Tensor, not numpy.ndarray")

        def test_class(rlperf_sac_update):
            rlperf_sac_update(Agent, batch_size=8)

        def test_arrays(rlperf_gae):
            rlperf_gae(gae)
    """
    run = run_in_place(tests)
    assert run.code == FAILED
    assert "rlperf_sac_update measures an object, not the class Agent: make one, rlperf_sac_update(Agent(…))" in run.out
    assert "PyTorch's with backend='torch'" in run.error("test_arrays")


def test_a_misspelt_command_gets_a_suggestion(tmp_path: Path) -> None:
    """It is that of `rlperf`, too."""
    run = Example(tmp_path).rlperf("inti", code=USAGE)
    assert "there is no command 'inti'" in run.err
    assert "did you mean init?" in run.err
    assert f"see {DOCS}/reference.md#commands\n" in run.err


@pytest.mark.parametrize(
    ("command", "says"),
    [("anchor", "rlperf anchor is gone: write pytest --rlperf-against=REF"), ("gate", "there is no command 'gate'")],
)
def test_a_command_of_an_earlier_version_says_what_to_write(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that was only a marker's keyword is no command's."""
    with pytest.raises(SystemExit):
        main([command])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("status", [Status.ERROR, Status.INVALID, Status.UNDECIDED, Status.INCOMPARABLE])
def test_what_is_not_settled_leads_to_what_helps(status: Status) -> None:
    """The last of the next steps is the part of the docs on this verdict."""
    outcomes = [builders.outcome(judged=builders.verdict(status))]
    step = next_steps(outcomes, "pytest", saved=False, against=True, verbose=False)[-1]
    assert step.lines == (f"{DOCS}/reading-a-report.md#{status.value.lower()}",)


def test_equal_code_that_is_wrong_is_an_error(tmp_path: Path) -> None:
    """A component whose code is the same on both sides runs once, as it does without --rlperf."""
    example = Example(tmp_path, {"test_it.py": MISTAKES["GAE"].tests})
    example.commit()
    run = example.pytest("--rlperf-against=HEAD", code=FAILED)
    assert run.statuses == {"test_it": "ERROR"}
    assert "advantages differ" in run.error("test_it")


def test_a_test_of_something_else_says_so(tmp_path: Path) -> None:
    """A test that loads nothing of the project says so, and the others are compared."""
    tests = """
        def test_else(rlperf):
            rlperf(lambda: sum(range(9)))


        def test_work(rlperf):
            from mylib import work

            rlperf(work.work)
    """
    files = {"mylib/__init__.py": "", "mylib/work.py": WORK, "mylib/other.py": "", "test_it.py": tests}
    example = Example(tmp_path, files)
    example.commit()
    example.write({"mylib/other.py": "CHANGED = True\n"})
    run = example.pytest("--rlperf-against=HEAD", *builders.TWO_PAIRS, code=OK)
    assert run.statuses == {"test_else": "SAME", "test_work": "SAME"}
    assert "loads only test files and none of your code" in run.reasons["test_else"]


def test_pytest_lists_nothing_private(run_in_place: RunInPlace) -> None:
    """Neither its fixtures nor its markers and options have names of ours that are for us alone."""
    asked = [("--fixtures", "-v"), ("--markers",), ("--help",), ()]
    lists = [run_in_place("def test_it(absent):\n    pass\n", *options).out for options in asked]
    assert all("rlperf" in text for text in lists)
    assert not [name for text in lists for name in re.findall(r"\b\w*rlperf\w*", text) if name.startswith("_")]
