from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import builders
import msgspec
import pytest
from builders import ONE_CALL, PROVENANCE, result, source, stored
from example import FAILED, OK, USAGE, Example, Run
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.baseline import schema
from pytest_rlperf.baseline.machine import this_machine
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.model.measured import Start
from pytest_rlperf.run.baselines import WORKERS

LONG_ENOUGH = "--rlperf-max-time=2.5"  # for five workers to record phases too, also of the slowed GAE
SHORT = "--rlperf-max-time=0.8"  # for five workers to tell the unslowed GAE from one that takes three times as long

# A few microseconds of work that no library's version changes.
WORK = {"work.py": source("main_job/verdicts/work.py")}
NEW = "from work import work\n\ndef test_new(rlperf):\n    rlperf(work)\n"


def baseline_file(example: Example) -> Path:
    (path,) = (example.root / "baselines" / "default").glob("*")
    return path


def verdicts(suite: ElementTree.Element) -> dict[str, str]:
    """Return the verdict property of each test in JUnit's XML, in the order of the run."""
    return {
        str(case.get("name")): str(item.get("value"))
        for case in suite.iter("testcase")
        for item in case.iter("property")
        if item.get("name") == "rlperf_verdict"
    }


def junit(example: Example) -> ElementTree.Element:
    return ElementTree.parse(example.root / "junit.xml").getroot()[0]  # noqa: S314 - pytest wrote it


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a baseline file of this machine with one entry, of WORK, as a run stored it."""
    example = Example(tmp_path_factory.mktemp("measured"), {**WORK, "test_it.py": NEW})
    example.pytest("--rlperf-save-baseline", "--rlperf-max-time=1", code=OK)
    return baseline_file(example)


def write_baseline(example: Example, measured: Path, factors: dict[str, Sequence[float]]) -> Path:
    """Store figures of WORK under the names in ``factors``, each of its own session.

    All workers of each have one worker's times, times their factors: how much the machine disturbed the others when
    they were measured is in no verdict.
    """
    data = json.loads(measured.read_bytes())
    (entry,) = data["results"].values()
    entry["result"]["workers"] = entry["result"]["workers"][:1] * WORKERS
    (session,) = data["sessions"].values()
    data["results"], data["sessions"] = {}, {}
    for name, scales in factors.items():
        copy = json.loads(json.dumps(entry))
        copy["session"] = f"session-{name}"
        scale_workers(copy, scales)
        data["results"][f"test_it.py::{name}"] = copy
        data["sessions"][copy["session"]] = session
    path = example.root / "baselines" / "default" / measured.name
    path.parent.mkdir(parents=True)
    path.write_bytes(schema.encode(schema.decode(msgspec.json.encode(data))))
    return path


def scale_workers(entry: dict[str, Any], factors: Sequence[float]) -> None:
    """Multiply the times of a stored result's workers, by both clocks."""
    for worker, factor in zip(entry["result"]["workers"], factors, strict=True):
        for clock in worker.keys() & {"wall", "cpu"}:  # the CPU's is left out where it is no other
            worker[clock] = {name: value * factor for name, value in worker[clock].items()}


def scale(path: Path, factor: float) -> bytes:
    """Multiply the times in a baseline file, so that what comes next is far beyond any machine's noise."""
    data = json.loads(path.read_bytes())
    for entry in data["results"].values():
        scale_workers(entry, [factor] * WORKERS)
    path.write_bytes(schema.encode(schema.decode(msgspec.json.encode(data))))
    return path.read_bytes()


def run_until_decided(example: Example, *args: str) -> Run:
    """Run a measured test that has become slower; a restless machine may leave it UNDECIDED, but never acquit it."""
    for _ in range(5):
        run = example.pytest(*args)
        if run.code != OK:
            break
        assert run.statuses == {"test_gae": "UNDECIDED"}
    return run


@pytest.mark.slow
def test_the_main_job(tmp_path: Path, wording: Wording) -> None:
    """Store a baseline, pass unchanged, fail five times as slow, keep the file, accept with a reason, get faster."""
    example = Example(tmp_path, "main_job/story")
    example.commit()
    example.write({"notes.txt": "not committed, so that stored numbers decide"})
    saving = example.pytest("--rlperf-save-baseline", LONG_ENOUGH, code=OK)
    assert (saving.codes, saving.tests["test_gae"]["stored"]) == ({"test_gae": "new"}, True)
    assert saving.notes("git status") == wording
    assert len(saving.notes("stored 1 result")) == 1
    (following,) = saving.notes("from now on")
    assert following.endswith("--rlperf")
    assert "--rlperf-save-baseline" not in saving.out
    path = baseline_file(example)
    before = path.read_bytes()
    assert len(json.loads(before)["results"]["test_it.py::test_gae"]["result"]["workers"]) == WORKERS

    unchanged = example.pytest("--rlperf", SHORT, code=OK)
    assert unchanged.counts in ("1 passed", "1 undecided")
    assert unchanged.statuses["test_gae"] != "SLOWER"

    learner = source("main_job/story/learner.py")
    example.write({"learner.py": learner.replace("MORE = 0", "MORE = 4")})
    slower = run_until_decided(example, "--rlperf", LONG_ENOUGH, "--junitxml=junit.xml")
    assert (slower.code, slower.counts, slower.statuses) == (FAILED, "1 failed", {"test_gae": "SLOWER"})
    assert ">       rlperf_gae(gae, n_steps=16, n_envs=8)" in slower.failure("test_gae")
    assert "test_it.py:5: PerformanceRegression" in slower.failure("test_gae")
    error = slower.error("test_gae")
    assert error.startswith("pytest_rlperf.PerformanceRegression: SLOWER")
    for value in ("99 %", "'default'", "Rlperf-Accept: test_it.py::test_gae <= +"):
        assert value in error
    table = slower.section("rlperf")
    assert re.match(r"\ntest +median +items/s +baseline +change +99 % CI +verdict\n", table)
    assert re.search(r"^test_gae .*s .*s .* \[.*, .*\] +SLOWER$", table, re.MULTILINE)
    assert len(slower.notes("Rlperf-Accept: test_it.py::test_gae <= +")) == 1
    assert len(slower.notes("--rlperf-save-baseline")) == 1
    assert re.search(r"^FAILED test_it.py::test_gae - .*PerformanceRegression: SLOWER", slower.out, re.MULTILINE)
    suite = junit(example)
    assert verdicts(suite) == {"test_gae": "SLOWER"}
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "SLOWER" in str(failure.get("message"))
    assert path.read_bytes() == before

    before = scale(path, 0.2)
    sha = example.commit("Larger\n\nRlperf-Accept: test_gae <= +9999% bigger net")[:12]
    example.write({"notes.txt": "not committed either"})
    accepted = example.pytest("--rlperf-save-baseline", SHORT, code=OK)
    assert accepted.statuses == {"test_gae": "SLOWER"}
    assert accepted.tests["test_gae"]["stored"]
    assert "SLOWER (accepted)" in accepted.out
    was = json.loads(before)["results"]["test_it.py::test_gae"]["result"]["workers"]
    entry = json.loads(path.read_bytes())["results"]["test_it.py::test_gae"]
    assert entry["accepted"]["reason"] == f"bigger net ({sha})"
    assert entry["accepted"]["previous_call_s"] == sorted(worker["wall"]["call_s"] for worker in was)[WORKERS // 2]
    assert entry["accepted"]["created"] == next(iter(json.loads(path.read_bytes())["sessions"].values()))["created"]

    scale(path, 3.0)
    example.write({"learner.py": learner})
    faster = example.pytest("--rlperf", SHORT, code=OK)
    assert faster.statuses == {"test_gae": "FASTER"}
    assert len(faster.notes("--rlperf-save-baseline")) == 1


@pytest.mark.slow
def test_a_run_with_every_verdict(tmp_path: Path, measured: Path) -> None:
    """Each test gets its own verdict; markers decide what fails; what failed or may be slower keeps its old figures.

    What differs does so a hundredfold, and what is the same is so by a factor of seven or more: no noise is as much.
    """
    example = Example(tmp_path, "main_job/verdicts")
    hundredth = [0.01] * WORKERS
    path = write_baseline(
        example,
        measured,
        {
            "test_slower": hundredth,
            "test_min_change": hundredth,
            "test_ungated": hundredth,
            "test_tolerant": [0.7] * WORKERS,
            "test_faster": [100.0] * WORKERS,
            "test_scattered": [0.2, 1.0, 5.0],
            "test_other_items": hundredth,
            "test_other_unit": hundredth,
            "test_fails_before": hundredth,
        },
    )
    before = json.loads(path.read_bytes())
    run = example.pytest("--rlperf-save-baseline", "--rlperf-max-time=1", "--junitxml=junit.xml", code=FAILED)
    assert verdicts(junit(example)) == {
        "test_slower": "SLOWER",
        "test_min_change": "SAME",
        "test_ungated": "SLOWER",
        "test_tolerant": "SAME",
        "test_faster": "FASTER",
        "test_scattered": "UNDECIDED",
        "test_other_items": "INCOMPARABLE",
        "test_other_unit": "INCOMPARABLE",
        "test_new": "NEW",
        "test_fails_before": "ERROR",
        "test_fails_after": "ERROR",
    }, run.text
    assert run.counts == "3 failed, 5 passed, 1 undecided, 2 incomparable"
    assert ">       rlperf(work)" in run.failure("test_slower")
    assert run.error("test_slower").startswith("pytest_rlperf.PerformanceRegression: SLOWER")
    assert run.error("test_fails_before") == "ValueError: before"
    assert run.error("test_fails_after").startswith("AssertionError: after")
    assert re.search(r"^test_ungated .*SLOWER \*$", run.out, re.MULTILINE)
    reasons = {name: entry["verdict"]["reason"] for name, entry in run.tests.items()}
    assert reasons["test_other_items"]["code"] == reasons["test_other_unit"]["code"] == "workload"
    assert {"1", "100"} <= set(reasons["test_other_items"]["message"].split())
    assert "step" in reasons["test_other_unit"]["message"]
    after = json.loads(path.read_bytes())
    new = after["results"].pop("test_it.py::test_new")
    assert (new["result"]["items"], new["result"]["unit"], "accepted" in new) == (7.0, "row", False)
    kept = {key.partition("::")[2] for key, entry in after["results"].items() if entry == before["results"][key]}
    # What wavers from a fifth to five times the figures may be slower, or not.
    assert kept - {"test_scattered"} == {"test_slower", "test_min_change", "test_ungated", "test_fails_before"}
    assert {name for name, entry in run.tests.items() if entry["stored"]}.isdisjoint(kept)
    assert "Rlperf-Accept: TEST <= +N% REASON" in "".join(run.notes("test_slower"))
    assert after["sessions"].keys() - before["sessions"].keys() == {new["session"]}


def test_undecided_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    """Who only looks at pytest's last line sees it; exit codes, JUnit and other plugins see a test that has passed.

    Figures that waver from a twentieth to twenty times decide nothing. A test that gates nothing is as ever.
    """
    tests = f"{NEW}\n@pytest.mark.rlperf(fail=False)\ndef test_shown(rlperf):\n    rlperf(work)\n"
    example = Example(tmp_path, {**WORK, "test_it.py": f"import pytest\n{tests}"})
    workers = tuple(builders.worker(20e-6 * factor) for factor in (0.05, 1.0, 20.0))
    store = Store(example.root / "baselines", "default", this_machine())
    keys = [f"test_it.py::{name}" for name in ("test_new", "test_shown")]
    before = [result(key, component="callable", unit="call", workers=workers, start=Start.FORKED) for key in keys]
    store.write("then", PROVENANCE, {each.nodeid: stored(each) for each in before})
    run = example.pytest("--rlperf", "--rlperf-max-time=0.3", "-q", "--color=yes", "--junitxml=junit.xml", code=OK)
    assert run.statuses == {"test_new": "UNDECIDED", "test_shown": "UNDECIDED"}
    yellow, green = r"\x1b\[33m", r"\x1b\[32m"
    assert re.search(rf"{yellow}U\S*{green}\.", run.out)
    assert re.search(rf"{green}1 passed.*{yellow}\S*1 undecided.*{yellow} in ", run.out)
    suite = junit(example)
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "0"]


def test_strict(tmp_path: Path, wording: Wording) -> None:
    """--rlperf-strict fails what is NEW, unless the test is not gated."""
    ungated = "import pytest\nfrom work import work\n\n@pytest.mark.rlperf(fail=False)\ndef test_ungated(rlperf):\n    "
    example = Example(tmp_path, {**WORK, "test_it.py": NEW, "test_ungated.py": f"{ungated}rlperf(work)\n"})
    run = example.pytest(*ONE_CALL, "--rlperf-strict", code=FAILED)
    assert run.counts == "1 failed, 1 passed"
    assert ">       rlperf(work)" in run.failure("test_new")
    first, *others = run.error("test_new").splitlines()
    assert first.startswith("pytest_rlperf.MeasurementError: NEW")
    assert others == wording
    assert "FAILED test_it.py::test_new" in run.out


@pytest.mark.slow
def test_a_strict_run_can_store_its_first_baseline(tmp_path: Path) -> None:
    """With strictness in the ini file there must be a way to the first baseline: storing is what NEW asks for."""
    example = Example(tmp_path, {**WORK, "test_it.py": NEW, "pytest.ini": "[pytest]\nrlperf_strict = true\n"})
    run = example.pytest("--rlperf-save-baseline", "--rlperf-max-time=0.5", code=OK)
    assert run.tests["test_new"]["stored"]
    assert list(json.loads(baseline_file(example).read_bytes())["results"]) == ["test_it.py::test_new"]


def test_figures_of_another_machine(tmp_path: Path) -> None:
    """Where only another machine class has a baseline nothing is compared; saving stores one beside it."""
    example = Example(tmp_path, {**WORK, "test_it.py": NEW})
    machine = this_machine()
    here, elsewhere = (
        Store(example.root / "baselines", "default", each)
        for each in (machine, replace(machine, cpu="Made Up 9000", cores=3))
    )
    entry = stored(result("test_it.py::test_new", component="callable", unit="call"))
    elsewhere.write("then", PROVENANCE, {"test_it.py::test_new": entry})
    before = elsewhere.path.read_bytes()
    run = example.pytest("--rlperf-save-baseline", "--rlperf-max-time=0.2", code=OK)
    assert (run.statuses, run.codes) == ({"test_new": "INCOMPARABLE"}, {"test_new": "machine"})
    assert run.counts == "1 incomparable"
    assert "Made Up 9000" in run.tests["test_new"]["verdict"]["reason"]["message"]
    assert run.tests["test_new"]["stored"]
    assert elsewhere.path.read_bytes() == before
    assert here.path.exists()


@pytest.mark.slow
def test_a_subset_stores_only_what_it_measured(tmp_path: Path, measured: Path) -> None:
    """With -k all else in the file stays byte for byte; figures of a commit remember it, until something changes."""
    names = ("test_a", "test_b", "test_c")
    tests = "".join(f"def {name}(rlperf): rlperf(work)\n" for name in names)
    marked = f"import pytest\nfrom work import work\npytestmark = pytest.mark.rlperf(tolerance='500%')\n{tests}"
    example = Example(tmp_path, {**WORK, "test_it.py": marked})
    commit = example.commit()
    path = write_baseline(example, measured, {name: [1.0] * WORKERS for name in names})
    save = ("--rlperf-save-baseline", "-k", "test_a", "--rlperf-max-time=2")

    def others(text: str) -> list[str]:
        return re.findall(r'^  "test_it.py::test_[bc]": (.*?),?$', text, re.MULTILINE)

    before = path.read_text(encoding="utf-8")
    assert len(others(before)) == 2
    clean = example.pytest(*save, code=OK)
    assert clean.counts == "1 passed, 2 deselected"
    assert clean.tests["test_a"]["stored"]
    assert not clean.notes("git status")
    after = path.read_text(encoding="utf-8")
    assert others(after) == others(before)
    data = json.loads(after)
    session = data["results"]["test_it.py::test_a"]["session"]
    assert set(data["sessions"]) == {"session-test_b", "session-test_c", session}
    assert data["sessions"][session]["commit"] == commit
    assert data["sessions"][session]["dirty"] is False

    example.write({"test_it.py": f"{marked}# changed\n"})
    dirty = example.pytest(*save, code=OK)
    assert dirty.tests["test_a"]["stored"]
    assert dirty.notes("git status")
    assert re.search(rf"^compared .*'default' of 20.*{commit[:12]}", dirty.out, re.MULTILINE)
    data = json.loads(path.read_bytes())
    session = data["results"]["test_it.py::test_a"]["session"]
    assert set(data["sessions"]) == {"session-test_b", "session-test_c", session}
    assert data["sessions"][session]["dirty"] is True


def test_a_baseline_that_cannot_be_read(tmp_path: Path, wording: Wording) -> None:
    """Comparing and storing alike stop before measuring, name the file and the way out, and leave it as it is."""
    example = Example(tmp_path, {"test_it.py": "def test_it(rlperf): rlperf(int)"})
    path = Store(example.root / "baselines", "default", this_machine()).path
    path.parent.mkdir(parents=True)
    path.write_text('{"nonsense', encoding="utf-8")
    for args in (["--rlperf"], ["--rlperf-save-baseline"]):
        error = example.pytest(*args, code=USAGE).err
        assert error.startswith(f"ERROR: {path}")
        assert error.replace(path.name, "MACHINE.json") == wording
        assert path.read_text(encoding="utf-8") == '{"nonsense'
        assert [path.name for path in path.parent.iterdir()] == [path.name]
