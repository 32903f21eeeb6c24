"""Shards: tests divided the same way on every machine, and their runs merged into one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlperf.baseline.store import Store
from pytest_rlperf.cli import main
from pytest_rlperf.cli.command import Exit, UsageError
from pytest_rlperf.cli.files import parse
from pytest_rlperf.model import Live, Outcome, Shard, Status
from pytest_rlperf.options import read_config
from pytest_rlperf.report.merge import MergeError, machine_lines, merge_runs, merge_shards, without_result
from pytest_rlperf.report.run_json import RunFile, document_of, written
from pytest_rlperf.run.shards import divide, judging, make_shard

KEYS = [f"tests/test_it.py::test_{number}" for number in range(7)]
OTHER = replace(builders.MACHINE, cpu="Made Up 9001")
ORIGIN = builders.provenance(commit="c" * 40, tree="d" * 40, packages={"numpy": "2.2"})

# --------------------------------------------------------------------------- dividing


@given(
    seconds=st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-6, 1e3), min_size=1, max_size=30),
    count=st.integers(1, 9),
    data=st.data(),
)
def test_every_test_is_in_one_shard_whatever_the_order(
    seconds: dict[str, float], count: int, data: st.DataObject
) -> None:
    """Shards hold each test once, in the order collected; another order changes no shard."""
    keys = data.draw(st.permutations(sorted(seconds)))
    parts = divide(keys, seconds, count)
    assert sorted(key for part in parts for key in part) == sorted(keys)
    assert all(part == [key for key in keys if key in part] for part in parts)
    assert [set(part) for part in divide(sorted(keys), seconds, count)] == [set(part) for part in parts]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40), st.integers(1, 8))
def test_no_shard_takes_much_longer_than_its_part(times_s: list[float], count: int) -> None:
    """The longest shard is within the bound of list scheduling: an equal part, and most of the longest test."""
    seconds = {str(number): time_s for number, time_s in enumerate(times_s)}
    longest = max(sum(seconds[key] for key in part) for part in divide(list(seconds), seconds, count))
    bound = sum(times_s) / count + max(times_s) * (1 - 1 / count)
    assert longest <= bound * (1 + 1e-9)


def test_a_long_test_has_a_shard_to_itself() -> None:
    """Stored durations balance the shards: one test of a minute weighs as much as six of ten seconds."""
    seconds = {key: 60.0 if key == KEYS[3] else 10.0 for key in KEYS}
    assert divide(KEYS, seconds, 2) == [[KEYS[3]], [key for key in KEYS if key != KEYS[3]]]


def test_a_test_without_a_duration_takes_the_mean() -> None:
    """New tests are spread as tests of the mean duration; without any durations shards have equally many."""
    assert [len(part) for part in divide(KEYS, {}, 3)] == [3, 2, 2]
    assert divide(KEYS[:3], {KEYS[0]: 10.0, KEYS[1]: 20.0}, 2) == [[KEYS[1]], [KEYS[0], KEYS[2]]]
    assert divide([], {}, 2) == [[], []]


def test_shards_of_one_division_have_one_digest() -> None:
    """The digest is of all shards, so that one that was divided otherwise is found."""
    shards = [make_shard((number, 3), KEYS, KEYS[:5], {}) for number in (1, 2, 3)]
    assert len({shard.division for shard in shards}) == 1
    assert {(shard.collected, shard.gated) for shard in shards} == {(7, 5)}
    assert sorted(place for shard in shards for place in shard.places.values()) == list(range(7))
    assert make_shard((1, 3), KEYS[:6], KEYS[:5], {}).division != shards[0].division
    assert make_shard((1, 3), KEYS, KEYS[:5], {KEYS[0]: 9.0, KEYS[1]: 1.0}).division != shards[0].division
    assert make_shard((1, 3), KEYS, KEYS[:5], {"another baseline's": 1.0}).division != shards[0].division
    assert make_shard((1, 3), KEYS, KEYS[:5], {}, rules=[0.01]).division != shards[0].division


@pytest.mark.parametrize("option", ["--rlperf-tolerance=4%", "--rlperf-alpha=0.05", "--rlperf-pairs=4..5"])
def test_the_options_that_judge_are_in_the_digest(pytester: pytest.Pytester, option: str) -> None:
    """Each of them makes another division; the time for a test does not."""
    one, same, other = (
        judging(read_config(pytester.parseconfigure("--rlperf", *options)))
        for options in ((), ("--rlperf-max-time=2",), (option,))
    )
    assert one == same != other


# --------------------------------------------------------------------------- merging


def outcome(key: str, status: Status = Status.SAME, **changes: Any) -> Outcome:
    """Return the outcome of a test with that key."""
    ratio = 1.2 if status is Status.SLOWER else 1.0
    judged = builders.verdict(status, ratio, message="because", **changes)
    return builders.outcome(builders.result(key), judged, builders.result(key, 0.9e-3))


def part_of(number: int, count: int = 2, **changes: Any) -> RunFile:
    """Return the run of one shard of KEYS, all of them SAME; ``changes`` replace fields."""
    shard = make_shard((number, count), KEYS, KEYS, {})
    run = RunFile(
        machine=builders.MACHINE,
        compared=("HEAD with main, live",),
        notes=("a note",),
        tests={key: outcome(key) for key in shard.places},
        provenance=ORIGIN,
        shard=shard,
    )
    return replace(run, **changes)


def read_back(text: str) -> RunFile:
    """Return the run that a file holds."""
    run = parse(text.encode(), "x")
    assert isinstance(run, RunFile)
    return run


def shard_of(run: RunFile) -> Shard:
    """Return a run's shard, which it has."""
    assert run.shard is not None
    return run.shard


def test_shards_become_the_run_that_measures_all() -> None:
    """Merged in any order, tests stand as they were collected, and texts that shards share stand once."""
    runs = {f"{number}.json": part_of(number, 3) for number in (3, 1, 2)}
    merged = merge_shards(runs)
    assert list(merged.tests) == KEYS
    assert merged.tests == {key: test for run in runs.values() for key, test in run.tests.items()}
    assert (merged.compared, merged.notes) == (("HEAD with main, live",), ("a note",))
    assert [part.name for part in merged.parts] == ["shard 1 of 3", "shard 2 of 3", "shard 3 of 3"]
    assert merged.provenance == ORIGIN
    assert merged.shard is None
    assert machine_lines(merged) == [
        "Made Up 9000, 4 cores, Linux x86_64, CPython 3.11: shard 1 of 3, shard 2 of 3, shard 3 of 3, 7 tests"
    ]


def test_a_merged_run_is_read_as_it_was_written() -> None:
    """Its JSON is a run's, which every reader of runs reads."""
    merged = merge_shards({"a": part_of(1), "b": part_of(2, machine=OTHER)})
    again = read_back(written(document_of(merged)))
    assert read_back(written(document_of(again))) == again
    assert (list(again.tests), again.parts) == (KEYS, merged.parts)


def test_machines_are_named_with_their_parts() -> None:
    """Figures of several machines are told apart: a line a machine names its shards."""
    runs = {"a": part_of(1, 3), "b": part_of(2, 3, machine=OTHER), "c": part_of(3, 3)}
    assert machine_lines(merge_shards(runs)) == [
        "Made Up 9000, 4 cores, Linux x86_64, CPython 3.11: shard 1 of 3, shard 3 of 3, 5 tests",
        "Made Up 9001, 4 cores, Linux x86_64, CPython 3.11: shard 2 of 3, 2 tests",
    ]


def test_nodes_without_shards_are_merged_too() -> None:
    """The merging itself needs no shards: tests of nodes are put in the order of the collection."""
    one, two = ({key: outcome(key) for key in keys} for keys in (KEYS[4:], KEYS[:4]))
    runs = {name: part_of(1, tests=tests, shard=None) for name, tests in (("node 1", one), ("node 2", two))}
    merged = merge_runs(runs, {key: place for place, key in enumerate(KEYS)})
    assert list(merged.tests) == KEYS
    assert [(part.name, len(part.tests)) for part in merged.parts] == [("node 1", 3), ("node 2", 4)]


def with_shard(run: RunFile, **changes: Any) -> RunFile:
    """Return a run with another shard."""
    return replace(run, shard=replace(shard_of(run), **changes))


def against(number: int, commit: str, ref: str | None = "main") -> RunFile:
    """Return a shard that was compared live with a commit."""
    run = part_of(number, against=ref)
    live = Live("main", "HEAD", builders.result(), (builders.pair(0.0),) * 3, (), base_commit=commit)
    return replace(run, tests={key: replace(found, live=live) for key, found in run.tests.items()})


def test_shards_of_one_base_are_merged() -> None:
    """Each test of a baseline has a commit of its own."""
    for runs in (
        {"a": against(1, "a" * 40), "b": against(2, "a" * 40)},
        {"a": against(1, "a" * 40, None), "b": against(2, "b" * 40, None)},
        {"a": against(1, "a" * 40), "b": part_of(2, against="main")},
    ):
        assert list(merge_shards(runs).tests) == KEYS


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"a": part_of(1), "b": part_of(1)}, "a and b are both shard 1 of 2: give each shard once"),
        ({"a": part_of(1), "b": part_of(2, 3)}, "a is shard 1 of 2, and b is shard 2 of 3: merge shards of one run"),
        ({"a": part_of(1, 3), "b": part_of(3, 3)}, "shard 2 of 3 is missing: give the files of all shards"),
        ({"a": part_of(2, 9)}, "shards 1, 3, 4, 5, 6 and 3 more of 9 are missing"),
        ({"a": part_of(1, shard=None), "b": part_of(2)}, "a is no shard: merge the files that --rlperf-shard=K/N"),
        ({"a": merge_shards({"a": part_of(1), "b": part_of(2)})}, "a is merged already"),
        (
            {"a": part_of(1), "b": with_shard(part_of(2), division="other", collected=8)},
            "a and b are shards of different tests or options (7 and 8 collected): start all shards",
        ),
        (
            {"a": part_of(1), "b": with_shard(part_of(2), gated=3)},
            "a and b are shards of different tests or options (7 and 7 collected)",
        ),
        (
            {"a": part_of(1), "b": part_of(2, strict=True)},
            "b is of --rlperf-strict, and a is not: start all shards with it, or none",
        ),
        (
            {"a": part_of(1), "b": part_of(2, against="v0.9")},
            "a compared with the baseline, and b with v0.9: start all shards with one --rlperf-against",
        ),
        (
            {"a": against(1, "a" * 40), "b": against(2, "b" * 40)},
            "a compared with commit aaaaaaaaaaaa, and b with bbbbbbbbbbbb: a branch may have moved",
        ),
        (
            {"a": part_of(1), "b": part_of(2, provenance=replace(ORIGIN, commit="e" * 40))},
            "shard 1 of 2 measured commit cccccccccccc, and shard 2 of 2 commit eeeeeeeeeeee: merge runs of one commit",
        ),
        ({"a": part_of(1), "b": part_of(2, provenance=None)}, "shard 2 of 2 code outside git"),
        ({"a": with_shard(part_of(1), number=3), "b": part_of(2)}, "a is not as --rlperf-json writes it"),
        ({"a": part_of(1, tests={"x": outcome("x")}), "b": part_of(2)}, "a is not as --rlperf-json writes it"),
        (
            {"a": part_of(1), "b": with_shard(part_of(2), places=shard_of(part_of(1)).places, number=2)},
            "b is not as --rlperf-json writes it: its tests are not those of its shard",
        ),
        (
            {"a": part_of(1), "b": part_of(2, shard=replace(shard_of(part_of(1)), number=2), tests={})},
            "the shards are not as --rlperf-json writes them: together they have not all collected tests",
        ),
        (
            {name: with_shard(part_of(n), collected=10**18, count=2) for n, name in ((1, "a"), (2, "b"))},
            "the shards are not as --rlperf-json writes them",
        ),
        ({"a": with_shard(part_of(1), count=10**18)}, "2, 3, 4, 5, 6 and 999999999999999994 more of 10000"),
    ],
)
def test_what_are_not_the_shards_of_one_run(runs: Mapping[str, RunFile], message: str) -> None:
    """One sentence names the files and what is wrong with them."""
    with pytest.raises(MergeError) as raised:
        merge_shards(runs)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_one_test_in_two_runs_has_no_verdict() -> None:
    """Whatever their verdicts are, which of the two counts is nobody's guess."""
    runs = {"a": part_of(1, tests={"t": outcome("t")}), "b": part_of(2, tests={"t": outcome("t", Status.SLOWER)})}
    with pytest.raises(MergeError, match=r"a and b both have t \(SAME and SLOWER\)"):
        merge_runs(runs, {})


def test_what_differs_between_shards_is_noted() -> None:
    """Uncommitted changes and versions of one machine alone leave the verdicts as they are, and are seen."""
    changed = replace(ORIGIN, dirty=True, packages={"numpy": "2.3", "torch": "2.9"})
    merged = merge_shards({"a": part_of(1), "b": part_of(2, provenance=changed)})
    assert merged.notes == (
        "a note",
        "shard 2 of 2 measured uncommitted changes, and the others did not",
        "the parts ran with different versions: numpy 2.2 and 2.3",
    )
    assert merged.provenance is not None
    assert merged.provenance.dirty
    merged = merge_shards({"a": part_of(1, provenance=changed), "b": part_of(2, provenance=changed)})
    assert merged.notes[-1] == "all shards measured uncommitted changes, and nothing shows that these are the same"


def test_what_cannot_be_collected_fails_the_run(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the same in all shards, and no test of theirs."""
    paths = save(*(part_of(number, failed=("tests/test_broken.py",)) for number in (1, 2)))
    assert main(["merge", *paths]) == Exit.SLOWER
    assert "failed, as the logs of their shards show: tests/test_broken.py\n" in capsys.readouterr().out


def test_a_shard_that_ended_early_is_seen() -> None:
    """A test without a result, that neither failed nor was skipped, was never run."""
    first, *others = shard_of(part_of(1)).places
    left = {key: outcome(key) for key in others[2:]}
    merged = merge_shards({"a": part_of(1, tests=left, failed=(first,), unmeasured=(others[0],)), "b": part_of(2)})
    assert merged.notes[-1] == "shard 1 of 2 ended early: 1 of its 4 tests have no result"
    assert without_result(merged) == {"shard 1 of 2": [others[1]]}


# --------------------------------------------------------------------------- rlperf merge

Save = Callable[..., list[str]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes runs to files, and returns their paths."""

    def write(*runs: RunFile) -> list[str]:
        paths = [tmp_path / f"shard-{number}.json" for number in range(len(runs))]
        for path, run in zip(paths, runs, strict=True):
            path.write_text(written(document_of(run)), encoding="utf-8")
        return [str(path) for path in paths]

    return write


@pytest.fixture(autouse=True)
def _outside_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def test_merged_shards_are_shown_as_one_run(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One table, the same as of the JSON that it writes, and exit code 0."""
    out = tmp_path / "run.json"
    assert main(["merge", *save(part_of(2), part_of(1)), f"--json={out}"]) == Exit.NOTHING_SLOWER
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[2:9]] == [f"test_{number}" for number in range(7)]
    assert main(["show", str(out)]) == Exit.NOTHING_SLOWER
    assert capsys.readouterr().out == table


def test_a_failed_test_of_any_shard_fails_the_run(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 for a verdict, for a failure of another kind, and for what --rlperf-strict fails."""
    first = next(iter(shard_of(part_of(1)).places))
    tests = part_of(1).tests
    slower, undecided = ({**tests, first: outcome(first, status)} for status in (Status.SLOWER, Status.UNDECIDED))
    assert main(["merge", *save(part_of(1, tests=slower), part_of(2))]) == Exit.SLOWER
    assert main(["merge", *save(part_of(1, tests=undecided), part_of(2))]) == Exit.NOTHING_SLOWER
    assert main(["merge", *save(part_of(1, tests=undecided, strict=True), part_of(2, strict=True))]) == Exit.SLOWER
    without = {key: test for key, test in tests.items() if key != first}
    capsys.readouterr()
    assert main(["merge", *save(part_of(1, tests=without, failed=(first,)), part_of(2))]) == Exit.SLOWER
    assert f"failed, as the logs of their shards show: {first}" in capsys.readouterr().out
    ungated = {**tests, first: outcome(first, Status.SLOWER, gated=False)}
    assert main(["merge", *save(part_of(1, tests=ungated), part_of(2))]) == Exit.NOTHING_SLOWER


def test_a_run_that_is_not_whole_is_no_success(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """A shard that ended early, or no test that runs on the base side, is a usage error; nothing measured is 5."""
    assert main(["merge", *save(part_of(1, tests={}), part_of(2))]) == Exit.USAGE
    assert capsys.readouterr().err == (
        "rlperf: error: shard 1 of 2 ended early: run it again, and merge its new file\n"
    )
    new = [
        part_of(number, tests={key: outcome(key, Status.NEW, code="base") for key in shard_of(part_of(number)).places})
        for number in (1, 2)
    ]
    assert main(["merge", *save(*new)]) == Exit.USAGE
    assert "nothing was compared: no gated test runs on the base side" in capsys.readouterr().err
    skipped = [part_of(number, tests={}, unmeasured=tuple(shard_of(part_of(number)).places)) for number in (1, 2)]
    assert main(["merge", *save(*skipped)]) == Exit.NOTHING_MEASURED


def test_files_that_are_no_shards_are_usage_errors(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 and one sentence for each: another file, a broken one, none, a self-check, one given twice."""
    one, two = save(part_of(1), part_of(2))
    broken = tmp_path / "broken.json"
    broken.write_bytes(Path(one).read_bytes()[:-30])
    baseline = Store(tmp_path / "baselines", "default", builders.MACHINE)
    baseline.write("then", ORIGIN, {KEYS[0]: builders.stored(builders.result(KEYS[0]))})
    for files in (
        [one],
        [one, one],
        [one, str(broken)],
        [one, str(tmp_path / "none.json")],
        [one, str(baseline.path)],
        [one, two, f"--json={tmp_path}"],
        [one, two, f"--json={tmp_path}/o.x", f"--html={tmp_path}/o.x"],
    ):
        assert main(["merge", *files]) == Exit.USAGE, files
        printed = capsys.readouterr()
        assert printed.err.startswith("rlperf: error: ")
        assert printed.err.count("\n") == 1
        assert "Traceback" not in printed.err


@given(data=st.data())
def test_any_change_of_a_shard_is_read_or_refused(data: st.DataObject) -> None:
    """A hostile shard, of any values at all, is merged or is one sentence."""
    document = json.loads(written(document_of(part_of(1))))
    name = data.draw(st.sampled_from(sorted(document["shard"])))
    values = st.one_of(st.integers(), st.none(), st.text(), st.dictionaries(st.text(), st.integers()), st.just([1]))
    document["shard"][name] = data.draw(values)
    with suppress(MergeError, UsageError):
        assert list(merge_shards({"a": read_back(json.dumps(document)), "b": part_of(2)}).tests) == KEYS


def test_the_job_that_merges_has_the_summary(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On GitHub the merged run has the summary and the outputs; the shards have made the annotations."""
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    first = next(iter(shard_of(part_of(1)).places))
    slower = {**part_of(1).tests, first: outcome(first, Status.SLOWER)}
    out = tmp_path / "run.json"
    assert main(["merge", *save(part_of(1, tests=slower), part_of(2)), f"--json={out}"]) == Exit.SLOWER
    assert "::error" not in capsys.readouterr().out
    assert "1 of 7 gated tests got slower" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    outputs = (tmp_path / "GITHUB_OUTPUT").read_text(encoding="utf-8")
    assert f"\n{out}\n" in outputs
    assert "\nSLOWER\n" in outputs


@pytest.mark.parametrize("command", ["merge", "show"])
def test_a_reader_that_leaves_changes_no_exit_code(command: str, save: Save, tmp_path: Path) -> None:
    """As `rlperf merge | head -1` has: the files are written, and a slower test is exit code 1."""
    first = next(iter(shard_of(part_of(1)).places))
    slower = part_of(1, tests={**part_of(1).tests, first: outcome(first, Status.SLOWER)})
    out = tmp_path / "run.json"
    arguments = ["merge", *save(slower, part_of(2)), f"--json={out}"] if command == "merge" else ["show", *save(slower)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_rlperf", *arguments],
            env=builders.environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.SLOWER, b"")
    assert command == "show" or list(read_back(out.read_text(encoding="utf-8")).tests) == KEYS


def test_all_machines_of_a_merged_run_are_shown(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column for each class, with its shards; its verdicts name the one that measured them."""
    out = tmp_path / "run.json"
    assert main(["merge", *save(part_of(1), part_of(2, machine=OTHER)), f"--json={out}"]) == Exit.NOTHING_SLOWER
    capsys.readouterr()
    assert main(["machine", str(out)]) == Exit.NOTHING_SLOWER
    text = capsys.readouterr().out
    assert f"A1  {out}: shard 1 of 2\nA2  {out}: shard 2 of 2\n" in text
    assert "Made Up 9000" in text
    assert "Made Up 9001" in text
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("class")] == [
        "class of A1",
        "class of A2",
        "class of this machine",
    ]


# --------------------------------------------------------------------------- as a run

TESTS = """
import pytest


@pytest.mark.parametrize("n", range(3))
def test_some(rlperf, n):
    rlperf(lambda: n)


@pytest.mark.rlperf(gate=False)
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


def test_all_shards_share_the_error_rate(pytester: pytest.Pytester) -> None:
    """The gated tests are counted before they are divided, ungated ones left out."""
    pytester.makepyfile(test_it=TESTS)
    counted = []

    class Spy:
        def pytest_sessionfinish(self, session: pytest.Session) -> None:
            run: Any = session.config.pluginmanager.get_plugin("rlperf-run")
            counted.append(run._run.gated)

    for shard in ("1/2", "2/2", "6/6"):
        pytester.inline_run(*builders.ONE_CALL, f"--rlperf-shard={shard}", plugins=[Spy()])
    assert counted == [4, 4, 4]


def test_a_file_that_cannot_be_collected_is_in_the_json(pytester: pytest.Pytester) -> None:
    """With --continue-on-collection-errors the run fails, and so does the merged one."""
    pytester.makepyfile(test_it="def test_it(rlperf):\n    rlperf(lambda: 1)", test_broken="import no_such_module")
    options = ("--rlperf-shard=1/1", "--rlperf-json=1.json", "--continue-on-collection-errors")
    run = pytester.inline_run(*builders.ONE_CALL, *options)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert read_back((pytester.path / "1.json").read_text(encoding="utf-8")).failed == ("test_broken.py",)
    assert main(["merge", str(pytester.path / "1.json")]) == Exit.SLOWER


def test_shards_measure_all_tests_once(tmp_path: Path) -> None:
    """Each shard says which part it is, and deselects the others' tests; merged they are the whole run."""
    builders.write(tmp_path, {"test_it.py": TESTS})
    first, second, none = (
        pytest_run(tmp_path, f"--rlperf-shard={shard}", f"--rlperf-json={shard[0]}.json")
        for shard in ("1/2", "2/2", "6/6")
    )
    assert "rlperf: shard 1 of 2: 3 of 5 tests in " in first.stdout
    assert "rlperf: shard 2 of 2: 2 of 5 tests in " in second.stdout
    assert not re.search(r"^rlperf: .*\d (s|min)\b", first.stdout, re.MULTILINE), "no time is announced"
    assert "collected 6 items / 3 deselected / 3 selected" in first.stdout
    assert "rlperf: shard 6 of 6: none of 5 tests, which others measure" in none.stdout
    assert [first.returncode, second.returncode, none.returncode] == [0, 0, 0], first.stdout + second.stdout
    documents = [json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8")) for number in (1, 2)]
    assert [document["shard"]["gated"] for document in documents] == [4, 4]
    merged = merge_shards({str(n): read_back((tmp_path / f"{n}.json").read_text(encoding="utf-8")) for n in (1, 2)})
    names = ["test_some[0]", "test_some[1]", "test_some[2]", "test_shown"]
    assert [test.result.name for test in merged.tests.values()] == names
    assert merged.unmeasured == ("test_it.py::test_skipped",)
    assert without_result(merged) == {}
