"""Shards: equal parts of the tests on every machine, and their runs merged into one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_rlperf.cli import main
from pytest_rlperf.cli.command import Exit, parse
from pytest_rlperf.model.judged import Outcome, Shard, ShardPart, Status
from pytest_rlperf.model.reach import ChangedPart, Kind
from pytest_rlperf.report.run_json import MergeError, RunFile, document_of, merge_shards, written

KEYS = tuple(f"tests/test_it.py::test_{number}" for number in range(7))
COMMON = {"shards": "2", "tests": "7", "commit": "c" * 40, "tolerance": "0.03"}
OTHER = replace(builders.MACHINE, cpu="Made Up 9001")
ORIGIN = builders.provenance(commit="c" * 40, tree="d" * 40, packages={"numpy": "2.2"})


@given(st.sets(st.text(max_size=3), max_size=40), st.integers(1, 9), st.randoms())
def test_every_test_is_in_one_shard_whatever_the_order(names: set[str], count: int, random: Any) -> None:
    """Shards hold each test once, as many as the others or one more; another order changes no shard."""
    keys = sorted(names)
    parts = [Shard(number, count, tuple(keys), {}).tests for number in range(1, count + 1)]
    assert sorted(key for part in parts for key in part) == keys
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    random.shuffle(keys)
    assert [Shard(number, count, tuple(keys), {}).tests for number in range(1, count + 1)] == parts


def test_tests_of_a_module_stay_together() -> None:
    """Neighbours by name are in one shard, so that few modules have their fixtures set up twice."""
    keys = ("b::1", "a::1", "b::2", "a::2")
    assert Shard(1, 2, keys, {}).tests == ("a::1", "a::2")


def outcome(key: str, status: Status = Status.SAME, **changes: Any) -> Outcome:
    ratio = 1.2 if status is Status.SLOWER else 1.0
    judged = builders.verdict(status, ratio, message="because", **changes)
    return builders.outcome(builders.result(key), judged, builders.result(key, 0.9e-3))


def part_of(number: int, count: int = 2, **changes: Any) -> RunFile:
    """Return the run of one shard of KEYS, all of them SAME; ``changes`` replace fields."""
    shard = Shard(number, count, KEYS, COMMON)
    tests = {key: outcome(key) for key in shard.tests}
    run = RunFile(builders.MACHINE, ("HEAD with main, live",), ("a note",), tests, provenance=ORIGIN, shard=shard)
    return replace(run, **changes)


FIRST, SECOND = (Shard(number, 2, KEYS, COMMON) for number in (1, 2))


def read_back(text: str) -> RunFile:
    run = parse(text.encode(), "x")
    assert isinstance(run, RunFile)
    return run


def test_shards_leave_untested_what_none_of_them_executes() -> None:
    """What one shard does not run, another may; the merged run has the note."""
    names = ("f", "g", "h")
    f, g, h = (ChangedPart(Kind.FUNCTION, "lib.py", name, 1) for name in names)
    merged = merge_shards({"a": part_of(1, changed=3, untested=(f, g)), "b": part_of(2, changed=3, untested=(g, h))})
    assert (merged.changed, merged.untested) == (3, (g,))
    assert sum("g (lib.py:1)" in note for note in merged.notes) == 1


def test_shards_become_the_run_that_measures_all() -> None:
    """Merged in any order, tests stand as they were collected, and texts that shards share stand once."""
    runs = {f"{number}.json": part_of(number, 3, tolerances={KEYS[number]: number / 100}) for number in (3, 1, 2)}
    merged = merge_shards(runs)
    assert tuple(merged.tests) == KEYS
    assert merged.tolerances == {KEYS[1]: 0.01, KEYS[2]: 0.02, KEYS[3]: 0.03}
    assert merged.tests == {key: test for run in runs.values() for key, test in run.tests.items()}
    assert (merged.compared, merged.notes) == (("HEAD with main, live",), ("a note",))
    assert (merged.provenance, merged.shard, merged.failed) == (ORIGIN, None, ())


def test_a_merged_run_is_read_as_it_was_written() -> None:
    """Its JSON is a run's, in which each test has the machine that measured it."""
    merged = merge_shards({"a": part_of(1), "b": part_of(2, machine=OTHER)})
    assert merged.parts == (ShardPart(builders.MACHINE, FIRST.tests), ShardPart(OTHER, SECOND.tests))
    again = read_back(written(document_of(merged)))
    assert read_back(written(document_of(again))) == again
    assert again.parts == merged.parts
    lines = again.machine_lines()
    assert [
        (machine.cpu in line, str(len(shard.tests)) in line)
        for machine, shard, line in zip((builders.MACHINE, OTHER), (FIRST, SECOND), lines, strict=True)
    ] == [(True, True)] * 2


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ({"a": part_of(1), "b": part_of(1)}, ("b", "shard 1 of 2")),
        ({"a": part_of(1, 3), "b": part_of(3, 3)}, ("shard 2 of 3",)),
        ({"a": part_of(2, 9)}, ("shard 1 of 9",)),
        ({"a": part_of(1, shard=None), "b": part_of(2)}, ("a", "--rlperf-shard")),
        ({"a": merge_shards({"a": part_of(1), "b": part_of(2)})}, ("a", "--rlperf-shard")),
        ({"a": part_of(1, tests={"x": outcome("x")}), "b": part_of(2)}, ("a", "--rlperf-shard")),
        ({"a": part_of(1), "b": part_of(2, tests=part_of(1).tests)}, ("b", "--rlperf-shard")),
        *(
            ({"a": part_of(1), "b": part_of(2, shard=replace(SECOND, common=COMMON | {fact: "x"}))}, ("b", fact))
            for fact in COMMON
        ),
    ],
)  # fmt: skip
def test_what_are_not_the_shards_of_one_run(runs: dict[str, RunFile], names: tuple[str, ...]) -> None:
    """One sentence names the file or the shard, and what is wrong with it."""
    with pytest.raises(MergeError) as raised:
        merge_shards(runs)
    assert "\n" not in str(raised.value)
    for name in names:
        assert name in str(raised.value)


def test_what_one_shard_lacks_or_has_changed_is_the_runs() -> None:
    """A merged run has uncommitted changes where a shard has; a test without a result fails."""
    merged = merge_shards({"a": part_of(1), "b": part_of(2, provenance=replace(ORIGIN, dirty=True))})
    assert merged.provenance is not None
    assert merged.provenance.dirty
    failed, skipped, missing = FIRST.tests
    merged = merge_shards({"a": part_of(1, tests={}, failed=(failed,), unmeasured=(skipped,)), "b": part_of(2)})
    assert merged.failed == (failed, missing)
    assert merged.unmeasured == (skipped,)
    assert all(key.rpartition(":")[2] in merged.notes[-1] for key in (failed, missing))


Save = Callable[..., list[str]]


@pytest.fixture
def save(tmp_path: Path) -> Save:

    def write(*runs: RunFile) -> list[str]:
        paths = [tmp_path / f"shard-{number}.json" for number in range(len(runs))]
        for path, run in zip(paths, runs, strict=True):
            path.write_text(written(document_of(run)), encoding="utf-8")
        return [str(path) for path in paths]

    return write


@pytest.mark.parametrize(
    ("status", "changes", "code"),
    [
        (Status.SLOWER, {}, Exit.SLOWER),
        (Status.UNDECIDED, {}, Exit.NOTHING_SLOWER),
        (Status.UNDECIDED, {"failed": (FIRST.tests[0],)}, Exit.SLOWER),
        (Status.SAME, {"failed": ("tests/test_broken.py",)}, Exit.SLOWER),
    ],
)
def test_the_exit_code_is_that_of_the_whole_run(
    status: Status, changes: dict[str, Any], code: Exit, save: Save
) -> None:
    """A verdict, a failure of another kind, and a file that cannot be collected fail the run of all shards."""
    first = part_of(1, **changes)
    found = replace(first, tests={**first.tests, FIRST.tests[0]: outcome(FIRST.tests[0], status)})
    assert main(["merge", *save(found, part_of(2))]) == code


def test_files_that_are_no_shards_are_usage_errors(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 and one sentence for each: one alone, one twice, a broken one, none, and an output that is none."""
    one, two = save(part_of(1), part_of(2))
    broken = tmp_path / "broken.json"
    broken.write_bytes(Path(one).read_bytes()[:-30])
    none = str(tmp_path / "none.json")
    for files in ([one], [one, one], [one, str(broken)], [one, none], [one, two, f"--json={tmp_path}"]):
        assert main(["merge", *files]) == Exit.USAGE, files
        printed = capsys.readouterr()
        assert printed.err.startswith("rlperf: error: ")
        assert printed.err.count("\n") == 1


TESTS = """
import pytest


@pytest.mark.parametrize("n", range(3))
def test_some(rlperf, n):
    rlperf(lambda: n)


@pytest.mark.rlperf(fail=False)
def test_shown(rlperf):
    rlperf(lambda: None)


@pytest.mark.skip(reason="not today")
def test_skipped(rlperf):
    rlperf(lambda: None)


def test_plain():
    pass
"""


def pytest_run(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with this plugin alone, every call measured once."""
    command = [sys.executable, "-m", "pytest", *builders.ONE_CALL, "-p", "no:cacheprovider", *args]
    return subprocess.run(
        command,
        cwd=directory,
        env=builders.environment(**builders.ALONE),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("alone")
def test_all_shards_share_the_error_rate(pytester: pytest.Pytester) -> None:
    """The gated tests are counted before they are divided, ungated ones left out."""
    pytester.makepyfile(test_it=TESTS)
    counted = []

    class Spy:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            session.items.clear()  # nothing is measured

        def pytest_sessionfinish(self, session: pytest.Session) -> None:
            run: Any = session.config.pluginmanager.get_plugin("rlperf-run")
            counted.append(run._run.gated)

    for shard in ("2/2", "6/6"):
        pytester.inline_run(*builders.ONE_CALL, f"--rlperf-shard={shard}", plugins=[Spy()])
    assert counted == [4, 4]


@pytest.mark.usefixtures("alone")
def test_a_shard_without_tests_passes(pytester: pytest.Pytester) -> None:
    """It says so; of six shards of one module all but the last have none."""
    pytester.makepyfile(test_it=TESTS)
    run = pytester.runpytest_inprocess(*builders.ONE_CALL, "-p", "no:cacheprovider", "--rlperf-shard=1/6")
    assert "shard 1 of 6: none of 5 tests" in str(run.stdout)
    assert run.ret == 0


def test_shards_measure_all_tests_once(tmp_path: Path) -> None:
    """Each shard says which part it is, and deselects the others' tests; merged they are the whole run."""
    builders.write(tmp_path, {"test_it.py": TESTS})
    first, second = (
        pytest_run(tmp_path, f"--rlperf-shard={number}/2", f"--rlperf-json={number}.json") for number in (1, 2)
    )
    assert "shard 1 of 2: 2 of 5 tests" in first.stdout
    assert "shard 2 of 2: 3 of 5 tests" in second.stdout
    assert [first.returncode, second.returncode] == [0, 0], first.stdout + second.stdout
    merged = merge_shards({str(n): read_back((tmp_path / f"{n}.json").read_text(encoding="utf-8")) for n in (1, 2)})
    names = ["test_some[0]", "test_some[1]", "test_some[2]", "test_shown"]
    assert [test.result.name for test in merged.tests.values()] == names
    assert merged.unmeasured == ("test_it.py::test_skipped",)
    assert merged.failed == ()
