"""A suite written for pytest-benchmark, with and without --rlperf."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import ONE_CALL
from example import OK, Example, Run

SUITE = "test_suite.py"  # each way of using the fixture, as its documentation shows them


@pytest.fixture
def suite(tmp_path: Path) -> Example:
    """Return a project with a suite, for runs with pytest-benchmark and this plugin."""
    return Example(tmp_path, "benchmark_suites")


def run(example: Example, *args: str, code: int = OK) -> Run:
    return example.pytest(*args, plugins=("pytest_benchmark.plugin", "rlperf"), code=code)


def benchmarks(path: Path) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]}


def test_every_way_is_measured_and_still_in_its_own_reports(suite: Example) -> None:
    """Each way to use the fixture gets a verdict, a row in pytest-benchmark's table and an entry in its JSON."""
    measured = run(suite, SUITE, *ONE_CALL, "--benchmark-json=out.json")
    once = {"test_call[500]", "test_call[1500]", "test_decorated", "test_rounds", "test_iterations"}
    names = {*once, "test_several"}
    assert measured.statuses == dict.fromkeys(names, "NEW")
    assert measured.counts == "6 passed, 1 deselected"
    assert re.search("^-+ benchmark 'sums': 3 ", measured.out, re.MULTILINE)
    written = benchmarks(suite.root / "out.json")
    assert set(written) == names
    assert written["test_call[500]"]["extra_info"] == {"count": 500}
    assert written["test_call[500]"]["params"] == {"count": 500}
    assert written["test_iterations"]["group"] == "sums"
    for name, entry in written.items():
        assert entry["stats"]["rounds"] == (1 if name in once else 3)
        assert 0 < entry["stats"]["min"] <= entry["stats"]["median"] <= entry["stats"]["max"]


def test_without_rlperf_pytest_benchmark_is_untouched(suite: Example) -> None:
    """Its own rounds, its own options, and nothing of ours in the output."""
    plain = run(suite, SUITE, "--benchmark-json=out.json", "--benchmark-max-time=0.01", "--benchmark-min-rounds=7")
    assert (plain.counts, plain.section("rlperf")) == ("7 passed", "")
    written = benchmarks(suite.root / "out.json")
    assert written["test_rounds"]["stats"]["rounds"] == 3
    assert written["test_call[500]"]["stats"]["rounds"] >= 7
    assert written["test_iterations"]["stats"]["iterations"] == 10


def test_a_project_without_benchmarks_sees_nothing_of_pytest_benchmark(tmp_path: Path) -> None:
    """No directory and no line of the header; one that was there, or is asked for, stays."""
    example = Example(tmp_path, {"test_it.py": "def test_it(rlperf):\n    rlperf(int)\n"})
    storage = example.root / ".benchmarks"
    for args in ((), ONE_CALL):
        assert not re.search("^benchmark", run(example, *args).out, re.MULTILINE)
        assert not storage.exists()
    run(example, "--benchmark-storage=other")
    assert (example.root / "other").is_dir()
    storage.mkdir()
    run(example)
    assert storage.is_dir()


def test_a_benchmark_is_announced_and_stored(tmp_path: Path) -> None:
    """By the line that the header of every run had, unless there is to be none, and by a file that is asked for."""
    example = Example(tmp_path, {"test_it.py": "def test_it(benchmark):\n    benchmark(int)\n"})
    fast = "--benchmark-max-time=0.001"
    assert len(re.findall(r"^benchmark: .*\(defaults:", run(example, fast).out, re.MULTILINE)) == 1
    assert not (example.root / ".benchmarks").exists()
    assert "(defaults:" not in run(example, fast, "-q", "--benchmark-save=it").out
    assert [path.name for path in (example.root / ".benchmarks").rglob("*.json")] == ["0001_it.json"]


def test_without_pytest_benchmark_this_plugin_loads(tmp_path: Path) -> None:
    """Blocked, or with another plugin's fixture of that name in its place, ours is measured and theirs left alone."""
    files = {
        "conftest.py": """
            import pytest

            @pytest.fixture
            def benchmark():
                return lambda function: function()
            """,
        "test_it.py": """
            def test_theirs(benchmark):
                assert benchmark(lambda: 1) == 1

            def test_ours(rlperf):
                rlperf(lambda: sum(range(100)))
            """,
    }
    example, plugins = Example(tmp_path, files), ("no:benchmark", "rlperf")
    assert example.pytest(*ONE_CALL, plugins=plugins, code=OK).counts == "1 passed, 1 deselected"
    assert example.pytest(plugins=plugins, code=OK).counts == "2 passed"
