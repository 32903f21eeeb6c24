from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from builders import ALONE, ONE_CALL, PROVENANCE, git, result, stored

from pytest_rlperf.baseline import schema
from pytest_rlperf.baseline.machine import this_machine
from pytest_rlperf.baseline.store import Store

pytestmark = pytest.mark.usefixtures("alone")

LONG_ENOUGH = "--rlperf-max-time=2.5"  # for five workers to record phases too, also of the slowed GAE
SHORT = "--rlperf-max-time=0.8"  # for five workers to tell the unslowed GAE from one that takes three times as long
FAILED, OK, USAGE = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR

LEARNER = """
    import numpy as np

    def scan(rewards, values, dones, last_values):
        advantages = np.zeros_like(rewards)
        following, next_values = np.zeros_like(last_values), last_values
        for t in reversed(range(len(rewards))):
            going_on = 1 - dones[t]
            delta = rewards[t] + 0.99 * next_values * going_on - values[t]
            advantages[t] = following = delta + 0.99 * 0.95 * going_on * following
            next_values = values[t]
        return advantages

    def gae(rewards, values, dones, last_values):
        for _ in range({more}):
            scan(rewards, values, dones, last_values)
        return scan(rewards, values, dones, last_values)
"""

TEST_GAE = """
    from learner import gae

    def test_gae(rlperf_gae):
        rlperf_gae(gae, n_steps=16, n_envs=8)
"""

# A few microseconds of work that no library's version changes.
WORK = """
def work():
    return sum(i * i for i in range(400))
"""

BUSY = """
import time

def busy(seconds):
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(1000))
    return total
"""


def write_learner(pytester: pytest.Pytester, *, slow: bool) -> None:
    """Write the code under test: one backward scan, or five for the same result."""
    pytester.makepyfile(learner=LEARNER.format(more=4 if slow else 0))


def baseline_file(directory: Path, name: str = "default") -> Path:
    """Return the one baseline file there is of ``name``."""
    (path,) = (directory / "baselines" / name).glob("*")
    return path


def write_tests(pytester: pytest.Pytester, source: str) -> None:
    """Write tests that may measure WORK."""
    pytester.makepyfile(test_it=f"import pytest\n{WORK}\n{textwrap.dedent(source)}")


def verdicts(path: Path) -> dict[str, str]:
    """Return the verdict property of each test in a JUnit XML file, in the order of the run."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it
        for item in case.iter("property"):
            if item.get("name") == "rlperf_verdict":
                found[str(case.get("name"))] = str(item.get("value"))
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a baseline file of this machine with one entry, of WORK, as a run stored it."""
    directory = tmp_path_factory.mktemp("measured")
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (directory / "test_it.py").write_text(f"{WORK}\ndef test_it(rlperf): rlperf(work)\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--rlperf-save-baseline", "--rlperf-max-time=1"]
    subprocess.run(command, cwd=directory, env={**os.environ, **ALONE}, timeout=120, check=True, capture_output=True)
    return baseline_file(directory)


def write_baseline(directory: Path, measured: Path, factors: dict[str, Sequence[float]]) -> Path:
    """Store WORK's figures under the names in ``factors``, each worker's times its factor, each of its own session."""
    data = json.loads(measured.read_bytes())
    ((_, entry),) = data["results"].items()
    ((_, session),) = data["sessions"].items()
    data["results"], data["sessions"] = {}, {}
    for name, scales in factors.items():
        copy = json.loads(json.dumps(entry))
        copy["session"] = f"session of {name}"
        for worker, scale in zip(copy["result"]["workers"], scales, strict=True):
            scale_worker(worker, scale)
        data["results"][f"test_it.py::{name}"] = copy
        data["sessions"][copy["session"]] = session
    path = directory / "baselines" / "default" / measured.name
    path.parent.mkdir(parents=True)
    path.write_bytes(schema.encode(schema.decode(msgspec.json.encode(data))))
    return path


def scale_worker(worker: dict[str, Any], factor: float) -> None:
    """Multiply a stored worker's times, by both clocks."""
    for clock in worker.keys() & {"wall", "cpu"}:  # the CPU's is left out where it is no other
        worker[clock] = {name: value * factor for name, value in worker[clock].items()}


def scale(path: Path, factor: float) -> bytes:
    """Multiply the times in a baseline file, so that what comes next is far beyond any machine's noise."""
    data = json.loads(path.read_bytes())
    for entry in data["results"].values():
        for worker in entry["result"]["workers"]:
            scale_worker(worker, factor)
    path.write_bytes(schema.encode(schema.decode(msgspec.json.encode(data))))
    return path.read_bytes()


def run_until_decided(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run a measured test that has become slower; a restless machine may leave it UNDECIDED, but never acquit it."""
    for _ in range(5):
        result = pytester.runpytest_subprocess(*args)
        if result.ret != OK:
            break
        result.stdout.fnmatch_lines(["test_gae * UNDECIDED"])
    return result


# --------------------------------------------------------------------------- the story


@pytest.mark.slow
def test_the_main_job(pytester: pytest.Pytester) -> None:
    """Store a baseline, pass unchanged, fail five times as slow, keep the file, accept with a reason, get faster."""
    write_learner(pytester, slow=False)
    pytester.makepyfile(test_it=TEST_GAE)

    saving = pytester.runpytest_subprocess("--rlperf-save-baseline", LONG_ENOUGH)
    assert saving.ret == OK
    saving.stdout.fnmatch_lines(
        [
            "test_gae * NEW",
            "  no baseline yet: nothing to compare with; stored now",
            "*stored 1 result in",
            "*live pairs can never run*",
            "next *from now on this compares with it:",
            "*pytest *--rlperf",
        ]
    )
    saving.stdout.no_fnmatch_line("*--rlperf-save-baseline*")
    path = baseline_file(pytester.path)
    before = path.read_bytes()
    assert len(json.loads(before)["results"]["test_it.py::test_gae"]["result"]["workers"]) == 5

    unchanged = pytester.runpytest_subprocess("--rlperf", SHORT)
    assert unchanged.ret == OK
    unchanged.assert_outcomes(passed=1)
    unchanged.stdout.no_fnmatch_line("*SLOWER")

    write_learner(pytester, slow=True)
    slower = run_until_decided(pytester, "--rlperf", LONG_ENOUGH, "--junitxml=junit.xml")
    assert slower.ret == FAILED
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(
        [
            ">       rlperf_gae(gae, n_steps=16, n_envs=8)",
            "E       pytest_rlperf.PerformanceRegression: SLOWER *: gae takes * a call, * in the baseline",
            "E       99 % interval *",
            "E       compared with baseline 'default' of 20*",
            'E       *--rlperf-save-baseline --rlperf-accept="why"*',
            "test_it.py:4: PerformanceRegression",
            "test *median *items/s *baseline *change *CI *verdict",
            "test_gae *s * *s * [[]+*, +*[]] *SLOWER",
            "*was * *s",
            '*pytest *--rlperf-save-baseline --rlperf-accept="why"',
            "FAILED test_it.py::test_gae - *PerformanceRegression: SLOWER*",
        ]
    )
    assert verdicts(pytester.path / "junit.xml") == {"test_gae": "SLOWER"}
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot()[0]  # noqa: S314 - pytest wrote it
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "SLOWER" in str(failure.get("message"))
    assert path.read_bytes() == before

    before = scale(path, 0.2)
    accepted = pytester.runpytest_subprocess("--rlperf-save-baseline", "--rlperf-accept=bigger net", SHORT)
    assert accepted.ret == OK
    accepted.stdout.fnmatch_lines(["test_gae *SLOWER (accepted)", "*stored 1 result in"])
    was = json.loads(before)["results"]["test_it.py::test_gae"]["result"]["workers"]
    entry = json.loads(path.read_bytes())["results"]["test_it.py::test_gae"]
    assert entry["accepted"]["reason"] == "bigger net"
    assert entry["accepted"]["previous_call_s"] == sorted(worker["wall"]["call_s"] for worker in was)[2]
    assert entry["accepted"]["created"] == next(iter(json.loads(path.read_bytes())["sessions"].values()))["created"]

    scale(path, 3.0)
    write_learner(pytester, slow=False)
    faster = pytester.runpytest_subprocess("--rlperf", SHORT)
    assert faster.ret == OK
    faster.stdout.fnmatch_lines(["test_gae *-*% *FASTER", "*pytest *--rlperf-save-baseline"])


# --------------------------------------------------------------------------- every verdict


@pytest.mark.slow
def test_a_run_with_every_verdict(pytester: pytest.Pytester, measured: Path) -> None:
    """Each test gets its own verdict; markers decide what fails; what failed or may be slower keeps its old figures."""
    write_tests(
        pytester,
        """
        pytestmark = pytest.mark.rlperf(max_time=1)

        def test_slower(rlperf):
            rlperf(work)

        @pytest.mark.rlperf(min_change="10s")
        def test_min_change(rlperf):
            rlperf(work)

        @pytest.mark.rlperf(gate=False)
        def test_ungated(rlperf):
            rlperf(work)

        @pytest.mark.rlperf(tolerance="900%")
        def test_tolerant(rlperf):
            rlperf(work)

        def test_faster(rlperf):
            rlperf(work)

        def test_scattered(rlperf):
            rlperf(work)

        def test_other_items(rlperf):
            rlperf(work, items=100)

        def test_other_unit(rlperf):
            rlperf(work, unit="step")

        @pytest.mark.rlperf(max_time=2)
        def test_new(rlperf):
            assert rlperf(work, items=7, unit="row").items == 7

        def test_fails_before(rlperf):
            raise ValueError("before")

        def test_fails_after(rlperf):
            result = rlperf(work)
            assert not result.measured, "after"
        """,
    )
    fifth, five_times = [0.2] * 5, [5.0] * 5
    path = write_baseline(
        pytester.path,
        measured,
        {
            "test_slower": fifth,
            "test_min_change": fifth,
            "test_ungated": fifth,
            "test_tolerant": fifth,
            "test_faster": five_times,
            "test_scattered": [0.2, 0.5, 1.0, 2.0, 5.0],
            "test_other_items": fifth,
            "test_other_unit": fifth,
            "test_fails_before": fifth,
        },
    )
    before = json.loads(path.read_bytes())
    result = pytester.runpytest_subprocess(
        "--rlperf-save-baseline", "--rlperf-max-time=1", "--junitxml=junit.xml", "-p", "no:randomly"
    )
    output = result.stdout.str()
    assert verdicts(pytester.path / "junit.xml") == {
        "test_slower": "SLOWER",
        "test_min_change": "SAME",
        "test_ungated": "SLOWER",
        "test_tolerant": "SAME",
        "test_faster": "FASTER",
        "test_scattered": "UNDECIDED",
        "test_other_items": "INCOMPARABLE",
        "test_other_unit": "INCOMPARABLE",
        "test_new": "NEW",
        "test_fails_after": "NEW",
    }, output
    assert result.ret == FAILED
    result.assert_outcomes(passed=8, failed=3)
    result.stdout.fnmatch_lines(
        [
            ">       rlperf(work)",
            "E       pytest_rlperf.PerformanceRegression: SLOWER *",
            "E       ValueError: before",
            "E       AssertionError: after",
            "test_ungated *SLOWER [*]",
            "[*] shown, not gated",
            "test_scattered  UNDECIDED",
            "*a call processed 1.00 calls in the baseline and 100 now*",
            "*the baseline measured callable in calls, this run callable in steps; stored",
            "*stored * results in",
            "*results not stored: test_slower, *",
        ]
    )
    assert "slower than before, or maybe; old figures stay, " in " ".join(output.split())  # lines are wrapped
    after = json.loads(path.read_bytes())
    new = after["results"].pop("test_it.py::test_new")
    assert (new["result"]["items"], new["result"]["unit"], "accepted" in new) == (7.0, "row", False)
    kept = {key.partition("::")[2] for key, entry in after["results"].items() if entry == before["results"][key]}
    # What wavers from a fifth to five times the figures may be slower, or not.
    assert kept - {"test_scattered"} == {"test_slower", "test_min_change", "test_ungated", "test_fails_before"}
    assert after["sessions"].keys() - before["sessions"].keys() == {new["session"]}


def test_strict(pytester: pytest.Pytester) -> None:
    """--rlperf-strict fails what is NEW, unless the test is not gated."""
    write_tests(
        pytester,
        """
        def test_new(rlperf):
            rlperf(work)

        @pytest.mark.rlperf(gate=False)
        def test_ungated(rlperf):
            rlperf(work)
        """,
    )
    result = pytester.runpytest_subprocess(*ONE_CALL, "--rlperf-strict")
    assert result.ret == FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [">       rlperf(work)", "E * NEW: *", "E * --rlperf-save-baseline", "FAILED test_it.py::test_new - *"]
    )


@pytest.mark.slow
def test_a_strict_run_can_store_its_first_baseline(pytester: pytest.Pytester) -> None:
    """With strictness in the ini file there must be a way to the first baseline: storing is what NEW asks for."""
    pytester.makeini("[pytest]\nrlperf_strict = true\n")
    write_tests(pytester, "def test_new(rlperf):\n    rlperf(work)\n")
    result = pytester.runpytest_subprocess("--rlperf-save-baseline", "--rlperf-max-time=0.5")
    result.stdout.fnmatch_lines(["*stored 1 result in"])
    assert result.ret == OK
    assert list(json.loads(baseline_file(pytester.path).read_bytes())["results"]) == ["test_it.py::test_new"]


def test_figures_of_another_machine(pytester: pytest.Pytester) -> None:
    """Where only another machine class has a baseline nothing is compared; saving stores one beside it."""
    write_tests(pytester, "def test_it(rlperf):\n    rlperf(work)\n")
    machine = this_machine()
    here, elsewhere = (
        Store(pytester.path / "baselines", "default", each)
        for each in (machine, replace(machine, cpu="Made Up 9000", cores=3))
    )
    entry = stored(result("test_it.py::test_it", component="callable", unit="call"))
    elsewhere.write("then", PROVENANCE, {"test_it.py::test_it": entry})
    before = elsewhere.path.read_bytes()
    found = pytester.runpytest_subprocess("--rlperf-save-baseline", "--rlperf-max-time=0.2")
    assert found.ret == OK
    found.stdout.fnmatch_lines(
        [
            "rlperf: baseline 'default' *none yet for this machine class; figures are stored there",
            "test_it *INCOMPARABLE",
            "*another machine class (cpu: Made Up 9000 there*",
            "*; stored now",
            "*stored 1 result in",
        ]
    )
    assert elsewhere.path.read_bytes() == before
    assert here.path.exists()


# --------------------------------------------------------------------------- what is stored


@pytest.mark.slow
def test_a_subset_stores_only_what_it_measured(
    pytester: pytest.Pytester, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -k all else in the file stays byte for byte; figures of a commit remember it, until something changes."""
    repository = pytester.mkdir("repository")  # pytester keeps files of its own beside it
    monkeypatch.chdir(repository)
    test = repository / "test_it.py"
    names = ("test_a", "test_b", "test_c")
    test.write_text(
        "import pytest\n"
        + WORK
        + "pytestmark = pytest.mark.rlperf(tolerance='500%')\n"
        + "".join(f"def {name}(rlperf): rlperf(work)\n" for name in names),
        encoding="utf-8",
    )
    (repository / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (repository / ".gitignore").write_text(".pytest_cache/\n", encoding="utf-8")
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=one")
    path = write_baseline(repository, measured, {name: [1.0] * 5 for name in names})

    def others(text: str) -> list[str]:
        """Return the entries of the tests that were not selected, as they stand in the file."""
        return re.findall(r'^  "test_it.py::test_[bc]": \{\n(?:   .*\n)+  \}', text, re.MULTILINE)

    before = path.read_text(encoding="utf-8")
    assert len(others(before)) == 2
    clean = pytester.runpytest_subprocess("--rlperf-save-baseline", "-k", "test_a", "--rlperf-max-time=2")
    clean.assert_outcomes(passed=1, deselected=2)
    clean.stdout.fnmatch_lines(["*stored 1 result in"])
    clean.stdout.no_fnmatch_line("*not from a clean commit*")
    after = path.read_text(encoding="utf-8")
    assert others(after) == others(before)
    data = json.loads(after)
    session = data["results"]["test_it.py::test_a"]["session"]
    assert set(data["sessions"]) == {"session of test_b", "session of test_c", session}
    commit = git(repository, "rev-parse", "HEAD")
    assert data["sessions"][session]["commit"] == commit
    assert data["sessions"][session]["dirty"] is False

    test.write_text(test.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    dirty = pytester.runpytest_subprocess("--rlperf-save-baseline", "-k", "test_a", "--rlperf-max-time=2")
    dirty.stdout.fnmatch_lines(
        [f"compared *baseline 'default' of 20*, commit {commit[:12]}", "*stored 1 result in", "*not from a clean*"]
    )
    data = json.loads(path.read_bytes())
    session = data["results"]["test_it.py::test_a"]["session"]
    assert set(data["sessions"]) == {"session of test_b", "session of test_c", session}
    assert data["sessions"][session]["dirty"] is True


# --------------------------------------------------------------------------- bad baselines


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"nonsense', "truncated"),
        ('{"schema": 99}', "schema version 99"),
    ],
)
def test_a_baseline_that_cannot_be_read(pytester: pytest.Pytester, content: str, says: str) -> None:
    """Comparing and storing alike stop before measuring, name the file and the way out, and leave it as it is."""
    pytester.makepyfile(test_it="def test_it(rlperf): rlperf(int)")
    path = Store(pytester.path / "baselines", "default", this_machine()).path
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    for args in (["--rlperf"], ["--rlperf-save-baseline", "--rlperf-accept=why"]):
        result = pytester.runpytest_subprocess(*args)
        assert result.ret == USAGE
        error = result.stderr.str()
        assert error.startswith(f"ERROR: {path}")
        assert says in error
        assert "restore it from version control" in error or "upgrade pytest-rlperf" in error
        assert path.read_text(encoding="utf-8") == content
        assert [path.name for path in path.parent.iterdir()] == [path.name]


# --------------------------------------------------------------------------- bad components

BROKEN = {
    "raises": ("rlperf", "rlperf(raises)", "ZeroDivisionError: in the component"),
    "checked": ("rlperf", "rlperf(int, check=refuse)", "AssertionError: 0 is wrong"),
    "no_items": ("rlperf", "rlperf(int, items=0)", "ComponentError: items=0"),
    "no_unit": ("rlperf", "rlperf(int, unit=5)", "ComponentError: unit=5"),
    "no_callable": ("rlperf", "rlperf(3)", "ComponentError: rlperf(fn) measures a callable, not int"),
    "no_env": (
        "rlperf_vecenv_step",
        "rlperf_vecenv_step(object())",
        "ComponentError: rlperf_vecenv_step does not support object. *gymnasium*",
    ),
    "small_batch": ("rlperf_replay_sample", "rlperf_replay_sample(Buffer(7), 8)", "ComponentError: *expected 8 rows"),
    "empty": ("rlperf_replay_sample", "rlperf_replay_sample(Buffer(0), 8)", "ValueError: the buffer is empty"),
    "no_batch": ("rlperf_replay_sample", "rlperf_replay_sample(Buffer(7), 0)", "ComponentError: batch_size=0*"),
    "nan": ("rlperf_gae", "rlperf_gae(nan_gae, n_steps=8, n_envs=2)", "ComponentError: *advantages are NaN*"),
    "shape": ("rlperf_gae", "rlperf_gae(flat_gae, n_steps=8, n_envs=2)", "ComponentError: *expected (8, 2)*"),
    "names": ("rlperf_gae", "rlperf_gae(odd_gae, n_steps=8, n_envs=2)", "ComponentError: *parameter 'x'; *"),
    "rollout": ("rlperf_ppo_collect", "rlperf_ppo_collect(Collector(), 8)", "ComponentError: *not full*"),
}

BROKEN_PARTS = """
import numpy as np

def raises():
    raise ZeroDivisionError("in the component")

def refuse(output):
    assert False, f"{output} is wrong"

def nan_gae(rewards, values, dones, last_values):
    return rewards * np.nan

def flat_gae(rewards, values, dones, last_values):
    return rewards[0]

def odd_gae(rewards, x):
    return rewards

class Buffer:
    def __init__(self, size):
        self.size = size

    def sample(self, batch_size):
        if not self.size:
            raise ValueError("the buffer is empty")
        return np.zeros((min(batch_size, self.size), 3))

class Collector:
    def collect(self, n_steps):
        return (np.zeros((n_steps - 1, 2)),)
"""


def assert_each_broken_alone(
    pytester: pytest.Pytester, parts: str, broken: dict[str, tuple[str, str, str]], *args: str
) -> None:
    """Run a test of each broken component between good ones: each fails at its line with its reason, nothing else."""
    source = "import pytest\n\n" + parts
    source += "\n\ndef test_good_first(rlperf):\n    rlperf(int)\n"
    for name, (fixture, call, _) in broken.items():
        source += f"\n\ndef test_{name}({fixture}):\n    {call}\n"
    source += "\n\ndef test_good_last(rlperf):\n    rlperf(int)\n"
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=2, failed=len(broken))
    assert result.ret == FAILED
    assert "INTERNALERROR" not in result.stdout.str()
    sections = re.split(r"^_+ (test_\w+) _+$", result.stdout.str(), flags=re.MULTILINE)
    shown = dict(zip(sections[1::2], sections[2::2], strict=True))
    for name, (_, call, says) in broken.items():
        lines = shown[f"test_{name}"].splitlines()
        assert f">       {call}" in lines or f"    {call}" in shown[f"test_{name}"], shown[f"test_{name}"]
        text = "\n".join(line.lstrip("E ") for line in lines if line.startswith("E "))
        pattern = ".*".join(re.escape(part) for part in says.split("*"))
        assert re.search(pattern, text, re.DOTALL), (name, text)


@pytest.mark.parametrize("args", [[], ONE_CALL])
def test_broken_components(pytester: pytest.Pytester, args: list[str]) -> None:
    """Measured or not, a component that does not work fails its own test at the user's line, and only that."""
    assert_each_broken_alone(pytester, BROKEN_PARTS, BROKEN, *args)


TORCH_PARTS = """
import torch

class Agent:
    def __init__(self, factor):
        self.net = torch.nn.Linear(2, 2)
        self.factor = factor

    def update(self, batch_size):
        with torch.no_grad():
            self.net.weight.mul_(self.factor)
"""

TORCH_BROKEN = {
    "idle": ("rlperf_sac_update", "rlperf_sac_update(Agent(1.0), batch_size=4)", "ComponentError: *changed none of*"),
    "nan": (
        "rlperf_sac_update",
        "rlperf_sac_update(Agent(float('nan')), batch_size=4)",
        "ComponentError: *weight holds NaN*",
    ),
    "no_size": ("rlperf_sac_update", "rlperf_sac_update(Agent(0.5))", "ComponentError: *batch_size=*"),
}


@pytest.mark.torch
@pytest.mark.slow  # test_components: test_a_sac_update_that_does_nothing, _that_diverges
def test_broken_agents(pytester: pytest.Pytester) -> None:
    """Likewise for an agent that learns nothing, or diverges."""
    pytest.importorskip("torch")
    assert_each_broken_alone(pytester, TORCH_PARTS, TORCH_BROKEN, *ONE_CALL)


def test_one_test_measures_one_component(pytester: pytest.Pytester) -> None:
    """A second call, of the same fixture or of another, fails where it stands; the first was measured all the same."""
    pytester.makepyfile(
        test_it="""
        import numpy as np
        import pytest

        class Buffer:
            def sample(self, batch_size):
                return np.zeros((batch_size, 3))

        def test_twice(rlperf):
            rlperf(int)
            rlperf(float)

        def test_two(rlperf, rlperf_replay_sample):
            first = rlperf(int)
            rlperf_replay_sample(Buffer(), batch_size=4)

        @pytest.mark.xfail
        def test_expected(rlperf):
            rlperf(int)
            assert False, "as everybody knows"
        """
    )
    for args in ([], ["--rlperf-save-baseline", *ONE_CALL]):
        result = pytester.runpytest_subprocess(*args)
        result.assert_outcomes(failed=2, xfailed=1)
        result.stdout.fnmatch_lines(
            [
                ">       rlperf(float)",
                "E * test_twice calls an rlperf fixture a second time; *parametrize it, or write two tests",
                ">       rlperf_replay_sample(Buffer(), batch_size=4)",
                "E * test_two calls an rlperf fixture a second time; *",
            ]
        )
    result.stdout.fnmatch_lines(["*3 results not stored: their tests failed"])
    assert not list((pytester.path / "baselines").glob("*/*.json"))


# --------------------------------------------------------------------------- long and short calls


@pytest.mark.slow
def test_long_and_short_calls(pytester: pytest.Pytester) -> None:
    """A call too long for the time is measured once, or in few workers, and says so; rounds of short calls grow."""
    pytester.makepyfile(
        test_it=f"""{BUSY}
def test_too_long(rlperf):
    result = rlperf(lambda: busy(0.6))
    assert [worker.calls for worker in result.workers] == [1]
    assert len(result.notes) == 1

def test_long(rlperf):
    result = rlperf(lambda: busy(0.15))
    assert len(result.workers) == 1
    assert len(result.notes) == 1

def test_short(rlperf):
    result = rlperf(int)
    assert all(worker.calls >= 100 * worker.slices for worker in result.workers)
"""
    )
    result = pytester.runpytest_subprocess("--rlperf-save-baseline", "--rlperf-max-time=0.5")
    result.assert_outcomes(passed=3)
    flat = " ".join(result.stdout.str().split())
    assert re.search(r"the first call took \S+ ms\b.* all of a test's 0\.5 s: it is the only figure", flat)
    assert re.search(r"--rlperf-max-time leaves time for 1 of 5 workers, all of them take about \d+ s", flat)
    assert "2 results not stored: 1 of 5 workers measured them; raise --rlperf-max-time" in flat
    for path in (pytester.path / "baselines").glob("*/*.json"):
        assert list(json.loads(path.read_bytes())["results"]) == ["test_it.py::test_short"]


def test_a_marker_gives_a_test_more_time(pytester: pytest.Pytester) -> None:
    """A marker beats the command line for the time as for all else, in both directions."""
    pytester.makepyfile(
        test_it=f"""import pytest
{BUSY}
@pytest.mark.rlperf(max_time=4)
def test_more(rlperf):
    result = rlperf(lambda: busy(0.6))
    assert sum(worker.calls for worker in result.workers) > 1

@pytest.mark.rlperf(max_time=0.1)
def test_less(rlperf):
    result = rlperf(lambda: busy(0.2))
    assert [worker.calls for worker in result.workers] == [1]
"""
    )
    result = pytester.runpytest_subprocess("--rlperf", "--rlperf-max-time=0.5")
    result.assert_outcomes(passed=2)


def test_a_budget_is_shared_out(pytester: pytest.Pytester) -> None:
    """--rlperf-budget bounds all tests together, whatever each might take."""
    tests = """
@pytest.mark.parametrize("number", range(3))
def test_it(rlperf, number):
    result = rlperf(lambda: busy(0.4))
    assert [worker.calls for worker in result.workers] == [1]
"""
    pytester.makepyfile(test_it=f"import pytest\n{BUSY}{tests}")
    pytester.runpytest_subprocess("--rlperf", "--rlperf-budget=0.3").assert_outcomes(passed=3)
