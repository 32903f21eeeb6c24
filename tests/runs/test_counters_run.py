"""Exact counts from outside: what a user's run says of code that does more, or less, than what was stored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import source
from example import FAILED, OK, Example, Run
from wording import Wording, without_figures

# Hardly any time, which tells nothing: what is said comes from counting.
QUICK = (
    *("--rlperf-max-time=0.1", "--rlperf-tolerance=900%"),
    "--rlperf-findings=garbage=off,first_call=off,growth=off",
)

LIBRARY = source("counters_run/mylib.py")
BEFORE = source("counters_run/test_it.py")
NOW = BEFORE.replace("BEFORE = True", "BEFORE = False")


def write(directory: Path, tests: str) -> Example:
    """Return a project with measured tests, as they were or as they are now."""
    example = Example(directory, "counters_run")
    virtual_gpu = (Path(__file__).parents[1] / "helpers/virtual_gpu.py").read_text(encoding="utf-8")
    example.write({"test_it.py": tests, "virtual_gpu.py": virtual_gpu})
    return example


def baseline(example: Example) -> Path:
    (path,) = (example.root / "baselines" / "default").glob("*.json")
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """Return a project whose baseline is of the code before it changed."""
    example = write(tmp_path_factory.mktemp("counters"), BEFORE)
    example.pytest("--rlperf-save-baseline", *QUICK, code=OK)
    example.write({"test_it.py": NOW})
    return example


@pytest.fixture(scope="module")
def changed(project: Example) -> Run:
    return project.pytest("--rlperf", *QUICK, code=FAILED, COLUMNS="150")


def test_a_baseline_keeps_counts_and_nothing_that_says_nothing(project: Example) -> None:
    """Counts of the call and its phases are in the file; fields that tests on a CPU have no use for are not."""
    text = baseline(project).read_text(encoding="utf-8")
    result = json.loads(text)["results"]["test_it.py::test_more"]["result"]
    counts = {phase["path"]: phase["exact"] for phase in result["counting"]["phases"]}
    step_calls = 32  # the function, and its generator's every resumption
    assert counts["critic"]["python_calls"] >= 2 * counts["actor"]["python_calls"] >= 2 * step_calls
    assert result["counting"]["workers"] == 2
    assert "on_device" not in text
    assert '"shares"' not in text


def test_one_step_more_fails_at_the_users_line(changed: Run, wording: Wording) -> None:
    """Whatever the time says, with the count's name, its phase and both numbers."""
    assert changed.statuses["test_more"] == "SLOWER", changed.out
    assert changed.codes["test_more"] == "counters"
    failure = changed.failure("test_more")
    assert re.search(r"critic: python_calls \d+ → \d+", failure)
    assert re.search(r"(?m)^>.*# here$", failure)
    assert without_figures(re.findall(r"(?m)^E .*", failure)[0]) == wording
    (change,) = (each for each in changed.tests["test_more"]["verdict"]["counters"] if each["name"] == "python_calls")
    assert change["path"] == "critic"
    assert change["was"] < change["now"]


def test_one_step_less_is_faster(changed: Run) -> None:
    """With its number, and passes."""
    assert changed.statuses["test_less"] == "FASTER"
    assert re.search(r"test_less +FASTER\n +critic: python_calls \d+ → \d+", changed.out)


def test_a_device_is_counted_by_its_driver(changed: Run) -> None:
    """Waits, pageable copies and memory asked for gate like everything else that is counted."""
    assert changed.statuses["test_device"] == "SLOWER", changed.out
    gated = {"syncs": (0, 2), "pageable_copies": (0, 1), "device_allocations": (0, 1)}
    found = {each["name"]: (each["was"], each["now"]) for each in changed.tests["test_device"]["verdict"]["counters"]}
    assert {name: found[name] for name in gated} == gated


@pytest.mark.slow
def test_a_worse_count_locks_the_baseline(project: Example) -> None:
    """Figures of a test whose gated counts got worse replace none, unless that is accepted."""
    before = baseline(project).read_bytes()
    refused = project.pytest("--rlperf-save-baseline", *QUICK, "-k", "test_more", code=FAILED)
    assert baseline(project).read_bytes() == before
    assert re.search(r"not stored: .*old figures", refused.out), refused.out


@pytest.fixture
def repository(tmp_path: Path) -> Example:
    """Return a project whose first commit does two steps, and whose tests need no edit for another."""
    example = write(tmp_path, BEFORE)
    example.commit()
    return example


# One more function around the same work: nothing that a clock would tell.
WRAPPED = LIBRARY.replace("        step()\n    with", "        (lambda: step())()\n    with")
LIVE = ("-o", "rlperf_pairs=2..2", "--rlperf-max-time=1", "--rlperf-tolerance=900%", "-k", "test_more")


@pytest.mark.slow  # test_where_time_decides_nothing_the_count_is_the_first_line
def test_live_sides_are_counted_by_themselves(repository: Example) -> None:
    """Against a commit both sides count: what changed is named, though nothing was ever stored."""
    repository.write({"mylib.py": WRAPPED})
    repository.commit()
    live = repository.pytest("--rlperf-against=HEAD~1", *LIVE, code=FAILED)
    assert live.statuses["test_more"] == "SLOWER"
    assert re.search(r"critic: python_calls \d+ → \d+", live.out)
    assert live.tests["test_more"]["live"]["base"]["counting"]["workers"] >= 2


RESTLESS = """
    import array
    import os

    def store(steps, value):
        steps.append(value)

    def rollout():
        steps = []
        for _ in range(8):
            store(steps, array.array("d", [sum(range(SIZE))]))
        return len(steps)

    # The sides are quicker in turns: the processes of each count themselves, and the head's begin with the other pace.
    with open(os.environ["TURNS"] + os.path.basename(os.getcwd()), "ab", buffering=0) as turns:
        turns.write(b".")
        SIZE = (50, 1_000)[(turns.tell() + ("tolist" in store.__code__.co_names)) % 2]
    """


def test_where_time_decides_nothing_the_count_is_the_first_line(tmp_path: Path) -> None:
    """Of a green job too: what a call does more, the function that does it, and that counts could gate."""
    tests = "from library import rollout\n\ndef test_rollout(rlperf):\n    rlperf(rollout)\n"
    files = {"pytest.ini": "[pytest]\npythonpath = .\n", "library.py": RESTLESS, "test_it.py": tests}
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    of_github = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output)}
    example = Example(tmp_path, files, TURNS=str(tmp_path / "turns-"), GITHUB_ACTIONS="true", **of_github)
    example.commit()
    example.write({"library.py": RESTLESS.replace("append(value)", "append(value.tolist())")})
    run = example.pytest("--rlperf-against=HEAD", "-o", "rlperf_pairs=2..2", "--rlperf-max-time=3", code=OK)
    assert run.counts == "1 undecided", run.text
    count = "a call does more: native_calls:array 0 → 8"
    assert re.search(rf"test_rollout  UNDECIDED\n  {count}\n  changed: library.py:5 store", run.out), run.text
    assert "--rlperf-findings=counts=gate" in run.reasons["test_rollout"]
    assert f"rollout</code>: {count}" in summary.read_text(encoding="utf-8").replace("&#58;", ":").replace("&#95;", "_")
    (more,) = run.tests["test_rollout"]["verdict"]["more_work"]
    assert (more["name"], more["was"], more["now"]) == ("native_calls:array", 0, 8)


@pytest.mark.slow
def test_counts_of_other_versions_are_settled_live(repository: Example) -> None:
    """Where packages have changed since, only the baseline's code under today's packages can tell."""
    repository.pytest("--rlperf-save-baseline", *QUICK, "-k", "test_more", code=OK)
    stored = json.loads(baseline(repository).read_bytes())
    (session,) = stored["sessions"].values()
    session["packages"]["numpy"] = "0.1"
    baseline(repository).write_text(json.dumps(stored), encoding="utf-8")
    repository.write({"mylib.py": WRAPPED})
    settled = repository.pytest("--rlperf", *LIVE, code=FAILED)
    assert settled.tests["test_more"]["live"] is not None
    assert re.search(r"critic: python_calls \d+ → \d+", settled.out)
