"""A suite written for pytest-benchmark, with and without --rlperf."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import ONE_CALL

OK, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
SHORT = ("--rlperf-max-time=0.3", "-p", "no:cacheprovider")

# As its documentation shows each of its ways.
SUITE = """
import pytest

TIMES = {times}


def work(count, scale=1):
    return sum(range(count * scale * TIMES))


@pytest.mark.benchmark(group="sums")
@pytest.mark.parametrize("count", [500, 1500])
def test_call(benchmark, count):
    benchmark.extra_info["count"] = count
    assert benchmark(work, count, scale=1) == work(count)


def test_decorated(benchmark):
    @benchmark
    def result():
        return work(400)

    assert result == work(400)


def test_rounds(benchmark):
    ends = []

    def setup():
        assert not ends or len(ends) == setup.begun
        setup.begun += 1
        return ([3, 1, 2] * 100,), {{"reverse": True}}

    def teardown(items, reverse):
        assert reverse
        ends.append(len(items))

    setup.begun = 0
    result = benchmark.pedantic(sorted, setup=setup, teardown=teardown, rounds=3, warmup_rounds=1)
    assert result == [3] * 100 + [2] * 100 + [1] * 100
    assert len(ends) == setup.begun


def test_iterations(benchmark):
    benchmark.group = "sums"
    assert benchmark.pedantic(work, args=(300,), kwargs={{"scale": 2}}, iterations=10, rounds=5) == work(600)


def test_without():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a directory with a suite, for runs with pytest-benchmark and this plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")
    write(pytester, 1)
    return pytester


def write(pytester: pytest.Pytester, times: int) -> None:
    """Write the suite, its work so many times as much."""
    (pytester.path / "test_suite.py").write_text(SUITE.format(times=times), encoding="utf-8")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest with both plugins."""
    plugins = ("-p", "pytest_benchmark.plugin", "-p", "pytest_rlperf.plugin")
    return pytester.run(sys.executable, "-m", "pytest", *plugins, *SHORT, *args, timeout=120)


def benchmarks(path: Path) -> dict[str, Any]:
    """Return what pytest-benchmark wrote, by test."""
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]}


def test_every_way_is_measured_and_still_in_its_own_reports(suite: pytest.Pytester) -> None:
    """Each way to use the fixture gets a verdict, a row in pytest-benchmark's table and an entry in its JSON."""
    measured = run(suite, *ONE_CALL, "--benchmark-json=out.json")
    out = measured.stdout.str()
    assert measured.ret == OK, out
    names = {"test_call[500]", "test_call[1500]", "test_decorated", "test_rounds", "test_iterations"}
    for name in names:
        measured.stdout.re_match_lines([rf"{name.replace('[', '.').replace(']', '.')} .* NEW$"])
    assert "5 passed, 1 deselected" in out
    assert "benchmark 'sums': 3 tests" in out
    written = benchmarks(suite.path / "out.json")
    assert set(written) == names
    assert written["test_call[500]"]["extra_info"] == {"count": 500}
    assert written["test_call[500]"]["params"] == {"count": 500}
    assert written["test_iterations"]["group"] == "sums"
    several = run(suite, "--rlperf", "--benchmark-json=several.json", "-k", "decorated")
    assert several.ret == OK, several.stdout.str()
    (by_five,) = benchmarks(suite.path / "several.json").values()
    for rounds, entry in [(5, by_five), *((1, entry) for entry in written.values())]:
        assert entry["stats"]["rounds"] == rounds
        assert 0 < entry["stats"]["min"] <= entry["stats"]["median"] <= entry["stats"]["max"]


@pytest.mark.slow
def test_a_slowdown_fails_its_test(suite: pytest.Pytester) -> None:
    """Stored and compared like any test of ours: ten times the work is SLOWER, at the user's line."""
    stored = run(suite, "--rlperf-save-baseline", "-k", "call or rounds")
    assert stored.ret == OK, stored.stdout.str()
    write(suite, 10)
    slower = run(suite, "--rlperf", "-k", "call or rounds")
    out = slower.stdout.str()
    assert slower.ret == FAILED, out
    slower.stdout.fnmatch_lines(["*assert benchmark(work, count, scale=1) == work(count)*", "E*PerformanceRegression*"])
    assert "2 failed, 1 passed" in out


def test_without_rlperf_pytest_benchmark_is_untouched(suite: pytest.Pytester) -> None:
    """Its own rounds, its own options, and nothing of ours in the output."""
    plain = run(suite, "--benchmark-json=out.json", "--benchmark-max-time=0.01", "--benchmark-min-rounds=7")
    assert plain.ret == OK, plain.stdout.str()
    assert "6 passed" in plain.stdout.str()
    assert "rlperf ===" not in plain.stdout.str()
    written = benchmarks(suite.path / "out.json")
    assert written["test_rounds"]["stats"]["rounds"] == 3
    assert written["test_call[500]"]["stats"]["rounds"] >= 7
    assert written["test_iterations"]["stats"]["iterations"] == 10


def test_misuse_is_pytest_benchmarks_own_error(suite: pytest.Pytester) -> None:
    """Used twice, or with counts that mean nothing, the fixture says what it says without --rlperf."""
    (suite.path / "test_suite.py").write_text(
        """
def test_twice(benchmark):
    benchmark(int)
    benchmark(int)

def test_none(benchmark):
    benchmark.pedantic(int, rounds=0)

def test_both(benchmark):
    benchmark.pedantic(int, args=("1",), setup=lambda: (("2",), {}))

def test_raises(benchmark):
    benchmark(lambda: 1 / 0)
""",
        encoding="utf-8",
    )
    misused = run(suite, *ONE_CALL)
    assert misused.ret == FAILED
    misused.stdout.fnmatch_lines(
        [
            "E*FixtureAlreadyUsed: Fixture can only be used once*",
            "E*ValueError: Must have positive int for `rounds`.",
            "E*TypeError: Can't use `args` or `kwargs` if `setup` returns the arguments.",
            "E*ZeroDivisionError*",
        ]
    )


def test_without_pytest_benchmark_this_plugin_loads(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked, or with another plugin's fixture of that name in its place, ours is measured and theirs left alone."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def benchmark():
            return lambda function: function()
        """
    )
    pytester.makepyfile(
        """
        def test_theirs(benchmark):
            assert benchmark(lambda: 1) == 1

        def test_ours(rlperf):
            rlperf(lambda: sum(range(100)))
        """
    )
    args = ("-p", "no:benchmark", "-p", "pytest_rlperf.plugin", *SHORT)
    measured = pytester.run(sys.executable, "-m", "pytest", *args, *ONE_CALL, timeout=60)
    assert measured.ret == OK, measured.stdout.str()
    assert "1 passed, 1 deselected" in measured.stdout.str()
    plain = pytester.run(sys.executable, "-m", "pytest", *args[:4], timeout=60)
    assert "2 passed" in plain.stdout.str()
