from __future__ import annotations

import json
import math
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import git
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe, differences, slug, this_machine
from pytest_rlperf.baseline.provenance import make_provenance, read_tree
from pytest_rlperf.baseline.store import SCHEMA, BaselineError, Store
from pytest_rlperf.model import (
    Acceptance,
    Bound,
    Counting,
    DeviceTimes,
    Figures,
    Phase,
    PhaseCounts,
    Provenance,
    Result,
    Share,
    StoredResult,
    WorkerRecord,
)

HERE = builders.MACHINE
ELSEWHERE = replace(HERE, cpu="Made Up 8000", cores=2)
ORIGIN = builders.provenance(packages={"numpy": "2"})


def provenance(root: Path, baseline_dir: Path, modules: list[str]) -> Provenance:
    """Return the provenance of figures measured now, from a tree that stays as it is meanwhile."""
    tree = read_tree(root, baseline_dir)
    return make_provenance(tree, read_tree(root, baseline_dir), modules)


def worker(call_s: float, **changes: Any) -> WorkerRecord:
    """Return a worker's figures, those in ``changes`` set."""
    fields: dict[str, Any] = {"items_per_call": 8.0, "slices": 12, "calls": 100, "collections": 1, "seed": 1000}
    return builders.worker(call_s, 20.5, 0.25, **(fields | changes))


def stored(key: str, session: str = "s", accepted: Acceptance | None = None, **changes: Any) -> StoredResult:
    """Return an entry for ``key`` with five workers and one phase, ``changes`` set in its result."""
    fields: dict[str, Any] = {
        "items": 8.0,
        "workers": tuple(worker(call_s) for call_s in (0.001, 0.00101, 0.00102, 0.00103, 0.00104)),
        "phases": (Phase("gae", 1.0, 0.001, 0.001, "host"),),
        "traced_call_s": 0.0011,
    }
    return builders.stored(builders.result(key, **(fields | changes)), session, accepted=accepted)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store of the machine HERE."""
    return Store(tmp_path / "baselines", "default", HERE)


def edit(store: Store, change: Callable[[Any], None]) -> None:
    """Change the stored JSON of ``store`` in place."""
    data = json.loads(store.path.read_bytes())
    change(data)
    store.path.write_text(json.dumps(data), encoding="utf-8")


# --------------------------------------------------------------------------- writing


def test_an_empty_store_reads_as_none(store: Store) -> None:
    """Where nothing was stored there is no baseline, no name and no other machine."""
    assert store.read() is None
    assert store.names() == []
    assert store.others() == []


def test_what_is_written_reads_back(store: Store) -> None:
    """Figures, provenance and acceptance survive the journey through the file."""
    accepted = Acceptance("bigger net", ORIGIN.created, 0.0005)
    entry = stored("test_a.py::test_é[1-x]", accepted=accepted, notes=("a note",))
    store.write("s", ORIGIN, {"test_a.py::test_é[1-x]": entry})
    baseline = store.read()
    assert baseline is not None
    assert baseline.schema == SCHEMA
    assert baseline.machine == HERE
    assert baseline.sessions == {"s": ORIGIN}
    assert baseline.results == {"test_a.py::test_é[1-x]": entry}


def test_figures_are_stored_with_five_significant_digits(store: Store) -> None:
    """Every float in the file has at most five digits that mean something."""
    figures = stored(
        "a",
        items=1 / 3,
        traced_call_s=math.pi * 1e-6,
        workers=(worker(math.e * 1e-5, cpu_share=2 / 3), worker(123456.789)),
        phases=(Phase("gae", 7 / 3, math.pi, math.pi / 7, "host"),),
    )
    store.write("s", ORIGIN, {"a": figures})
    result = json.loads(store.path.read_bytes())["results"]["a"]["result"]
    assert result["items"] == 0.33333
    assert result["traced_call_s"] == 3.1416e-6
    assert result["workers"][0]["wall"]["call_s"] == 2.7183e-5
    assert result["workers"][0]["cpu_share"] == 0.66667
    assert result["workers"][1]["cpu"]["call_s"] == 123460.0
    assert result["phases"][0] == {
        "path": "gae",
        "count": 2.3333,
        "total_s": 3.1416,
        "self_s": 0.4488,
        "device": "host",
    }


def test_what_was_not_measured_takes_no_room(store: Store) -> None:
    """Fields that reading fills in by itself are not written: the file is as it was before there were such fields."""
    store.write("s", ORIGIN, {"a": stored("a")})
    data = json.loads(store.path.read_bytes())
    result = data["results"]["a"]["result"]
    assert not {"counting", "shares"} & set(result)
    assert "device" not in result["workers"][0]
    assert "accelerators" not in data["machine"]
    assert data["results"]["a"]["accepted"] is None  # what has always been there stays


def test_counts_are_stored_with_the_figures(store: Store) -> None:
    """Exact counts as numbers, others as the least and the most; shares of time to five digits, device times too."""
    counting = Counting(
        (PhaseCounts("", {"ops": 344, "syncs": 0}, {"python_calls": (690, 693)}),), 5, 2, ("not counted: graphs",)
    )
    times = DeviceTimes(1 / 3, 1 / 7, "0", 0.0, 0.0, Bound.LAUNCH, is_synced=False, peak_bytes=3, allocations=0.0)
    phase = Phase("gae", 1.0, 0.001, 0.001, "cuda:0", times)
    entry = stored("a", counting=counting, shares=(Share("python", 2 / 3),), phases=(phase,))
    store.write("s", ORIGIN, {"a": entry})
    result = json.loads(store.path.read_bytes())["results"]["a"]["result"]
    assert result["counting"] == {
        "phases": [{"path": "", "exact": {"ops": 344, "syncs": 0}, "inexact": {"python_calls": [690, 693]}}],
        "workers": 5,
        "repetitions": 2,
        "notes": ["not counted: graphs"],
    }
    assert result["shares"] == [{"name": "python", "share": 0.66667}]
    assert result["phases"][0]["on_device"]["span_s"] == 0.33333
    baseline = store.read()
    assert baseline is not None
    assert baseline.results["a"].result.counting == counting
    assert baseline.results["a"].result.phases[0].on_device == replace(times, span_s=0.33333, self_s=0.14286)


def test_counts_the_wrong_way_round_are_refused(store: Store) -> None:
    """A range whose least is more than its most is no measurement's."""
    counting = Counting((PhaseCounts("", {}, {"ops": (1, 2)}),), 5, 2, ())
    store.write("s", ORIGIN, {"a": stored("a", counting=counting)})
    edit(store, lambda data: data["results"]["a"]["result"]["counting"]["phases"][0]["inexact"].update(ops=[2, 1]))
    assert "counting.phases[0].inexact['ops'] is [2, 1], expected the least first" in refusal(store)


def test_the_file_is_made_for_diffs(store: Store) -> None:
    """Keys are sorted at every level, one to a line, and the text ends with a newline."""
    store.write("s", ORIGIN, {"b": stored("b"), "a": stored("a")})
    text = store.path.read_text(encoding="utf-8")
    pairs: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda found: pairs.append([key for key, _ in found]))
    assert all(keys == sorted(keys) for keys in pairs)
    assert text.endswith("}\n")
    assert all(line.count('":') <= 1 for line in text.splitlines())


def test_the_same_figures_make_the_same_file(store: Store) -> None:
    """Storing what is stored already changes no byte."""
    store.write("s", ORIGIN, {"a": stored("a", items=1 / 7), "b": stored("b")})
    before = store.path.read_bytes()
    baseline = store.read()
    assert baseline is not None
    store.write("s", ORIGIN, {"b": stored("b"), **baseline.results})
    assert store.path.read_bytes() == before


def test_a_session_updates_only_what_it_measured(store: Store) -> None:
    """Entries of other tests stay as they were, and sessions that no entry comes from any more go."""
    store.write("first", ORIGIN, {"a": stored("a", "first"), "b": stored("b", "first")})
    store.write("second", ORIGIN, {"b": stored("b", "second"), "c": stored("c", "second")})
    before = json.loads(store.path.read_bytes())["results"]
    assert set(json.loads(store.path.read_bytes())["sessions"]) == {"first", "second"}
    store.write("third", ORIGIN, {"a": stored("a", "third", items=9.0)})
    after = json.loads(store.path.read_bytes())
    assert set(after["sessions"]) == {"second", "third"}
    assert {key: after["results"][key] for key in "bc"} == {key: before[key] for key in "bc"}
    assert after["results"]["a"]["result"]["items"] == 9.0


def test_writing_leaves_nothing_else_behind(store: Store) -> None:
    """The directory holds the baseline alone, readable as the umask allows."""
    store.check_writable()
    before = os.umask(0o027)
    try:
        store.write("s", ORIGIN, {"a": stored("a")})
    finally:
        os.umask(before)
    assert [path.name for path in store.directory.iterdir()] == [store.path.name]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o640


_WRITE_UNDER_A_LIMIT = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_store import HERE, ORIGIN, Store, stored
signal.signal(signal.SIGXFSZ, getattr(signal, sys.argv[3]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
Store(Path(sys.argv[2]), "default", HERE).write("new", ORIGIN, {"a": stored("a", "new")})
"""


def write_under_a_limit(store: Store, on_limit: str) -> subprocess.CompletedProcess[str]:
    """Write in a process that may write 100 bytes a file: beyond, SIGXFSZ kills it or writing fails."""
    arguments = [str(Path(__file__).parent), str(store.directory.parent), on_limit]
    return subprocess.run(
        [sys.executable, "-c", _WRITE_UNDER_A_LIMIT, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on a file's size")
def test_a_write_that_fails_leaves_the_old_file(store: Store) -> None:
    """On a full disk the old baseline stays, no half-written file is left, and the error says so."""
    store.write("s", ORIGIN, {"a": stored("a")})
    before = store.path.read_bytes()
    done = write_under_a_limit(store, "SIG_IGN")
    assert "BaselineError: cannot write" in done.stderr
    assert str(store.path) in done.stderr
    assert "nothing was replaced" in done.stderr
    assert store.path.read_bytes() == before
    assert [path.name for path in store.directory.iterdir()] == [store.path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on a file's size")
def test_a_process_killed_while_writing_leaves_the_old_file(store: Store) -> None:
    """A file that a killed process left half written is never read as a baseline."""
    store.write("s", ORIGIN, {"a": stored("a")})
    before = store.path.read_bytes()
    done = write_under_a_limit(store, "SIG_DFL")
    assert done.returncode < 0
    assert store.path.read_bytes() == before
    assert store.others() == []
    assert store.names() == ["default"]
    store.write("t", ORIGIN, {"a": stored("a", "t")})
    assert store.read() is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"items": 0.0},
        {"items": math.nan},
        {"workers": ()},
        {"workers": (worker(0.0),)},
        {"workers": (worker(math.inf),)},
        {"workers": (worker(1.0, items_per_call=0.0),)},
        {"workers": (worker(1.0, wall=Figures(1.0, math.nan, 1.0)),)},
        {"workers": (worker(1.0, cpu=Figures(1.0, 1.0, 0.0)),)},
    ],
)
def test_what_could_not_be_read_back_is_not_written(store: Store, changes: dict[str, Any]) -> None:
    """Figures that reading would refuse are refused before they replace a good file."""
    store.write("s", ORIGIN, {"a": stored("a")})
    before = store.path.read_bytes()
    with pytest.raises(BaselineError, match=re.escape("'b'")):
        store.write("t", ORIGIN, {"b": stored("b", "t", **changes)})
    assert store.path.read_bytes() == before
    assert store.read() is not None


def test_names_and_other_machines(tmp_path: Path) -> None:
    """A store tells which names there are, and which other machines have a baseline of its own."""
    root = tmp_path / "baselines"
    Store(root, "default", HERE).write("s", ORIGIN, {"a": stored("a")})
    Store(root, "default", ELSEWHERE).write("s", ORIGIN, {"a": stored("a")})
    Store(root, "night-1.2", ELSEWHERE).write("s", ORIGIN, {"a": stored("a")})
    (root / "README.md").write_text("how to read these", encoding="utf-8")
    (root / "empty").mkdir()
    here = Store(root, "default", HERE)
    assert here.names() == ["default", "night-1.2"]
    assert [other.machine for other in here.others()] == [ELSEWHERE]
    assert Store(root, "night-1.2", HERE).read() is None
    assert [other.machine for other in Store(root, "night-1.2", HERE).others()] == [ELSEWHERE]


words = st.text(max_size=20)
figures = st.floats(min_value=1e-15, max_value=1e15)
counts = st.integers(min_value=0, max_value=2**53)
clocks = st.builds(Figures, figures, figures, figures)
workers = st.builds(
    WorkerRecord,
    wall=clocks,
    cpu=clocks,
    long=st.booleans(),
    alone=st.booleans(),
    items_per_call=figures,
    slices=counts,
    calls=counts,
    cpu_share=st.floats(0, 16),
    idle_cpu_share=st.floats(0, 16),
    collections=counts,
    threads=counts,
    seed=counts,
)
seconds = st.just(0.0) | figures
phases = st.builds(Phase, path=words, count=seconds, total_s=seconds, self_s=seconds, device=words)
results = st.builds(
    Result,
    nodeid=words,
    component=words,
    unit=words,
    items=figures,
    workers=st.lists(workers, min_size=1, max_size=5).map(tuple),
    phases=st.lists(phases, max_size=3).map(tuple),
    traced_call_s=seconds,
    notes=st.lists(words, max_size=2).map(tuple),
)


def assert_close(found: Any, expected: Any) -> None:
    """Compare two records field by field, floats to five significant digits."""
    if isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=5.1e-5)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, (Result, WorkerRecord, Figures, Phase)):
        for name, value in vars(expected).items():
            assert_close(getattr(found, name), value)
    else:
        assert found == expected


@given(st.dictionaries(words, results, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_any_result_survives_the_file(entries: dict[str, Result]) -> None:
    """Whatever was measured reads back, to five significant digits, and once read it is stored exactly."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory), "default", HERE)
        store.write("s", ORIGIN, {key: builders.stored(result, "s") for key, result in entries.items()})
        baseline = store.read()
        assert baseline is not None
        assert set(baseline.results) == set(entries)
        for key, result in entries.items():
            assert_close(baseline.results[key].result, result)
        before = store.path.read_bytes()
        store.write("s", ORIGIN, dict(baseline.results))
        assert store.path.read_bytes() == before


# --------------------------------------------------------------------------- reading what is not right


def refusal(store: Store) -> str:
    """Return why ``store`` cannot be read: every refusal names the file, tells a way out and leaves the file alone."""
    before = store.path.read_bytes()
    with pytest.raises(BaselineError) as caught:
        store.read()
    with pytest.raises(BaselineError):
        store.write("t", ORIGIN, {"b": stored("b", "t")})
    assert store.path.read_bytes() == before
    text = str(caught.value)
    assert str(store.path) in text
    assert "restore it" in text or "upgrade" in text
    return text


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda raw: b"", "is empty", id="empty"),
        pytest.param(lambda raw: b" \n", "is empty", id="blank"),
        pytest.param(lambda raw: raw[: len(raw) // 2], "truncated", id="truncated"),
        pytest.param(lambda raw: b"{nonsense" + raw, "malformed", id="corrupt"),
        pytest.param(lambda raw: b"<<<<<<< HEAD\n" + raw, "malformed", id="merge conflict"),
        pytest.param(lambda raw: raw.replace(b'"gae"', b'"\xff"'), "is not a baseline", id="not UTF-8"),
        pytest.param(lambda raw: b"[]", "Expected `object`", id="another document"),
        pytest.param(lambda raw: b"null", "Expected `object`", id="null"),
        pytest.param(lambda raw: b"{}", "`schema`", id="no version"),
    ],
)
def test_a_file_that_is_no_baseline(store: Store, spoil: Callable[[bytes], bytes], says: str) -> None:
    """A damaged file is refused with what is wrong with it."""
    store.write("s", ORIGIN, {"a": stored("a")})
    store.path.write_bytes(spoil(store.path.read_bytes()))
    assert says in refusal(store)


def test_a_file_of_a_future_version(store: Store) -> None:
    """A newer schema is distinguished from damage, whatever else the file holds."""
    store.directory.mkdir(parents=True)
    store.path.write_text('{"schema": 99, "results": "of another shape"}', encoding="utf-8")
    text = refusal(store)
    assert "schema version 99" in text
    assert f"up to {SCHEMA}" in text


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_there_never_was(store: Store, version: int) -> None:
    """A schema below the first is no baseline of ours."""
    store.write("s", ORIGIN, {"a": stored("a")})
    edit(store, lambda data: data.update(schema=version))
    assert "schema" in refusal(store)


def set_in(path: list[Any], value: Any) -> Callable[[Any], None]:
    """Return a change that puts ``value`` at ``path``."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


RESULT = ["results", "a", "result"]


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["schema"], "one", "$.schema"),
        (["machine", "cores"], "four", "$.machine.cores"),
        (["results"], [], "$.results"),
        (["results", "a"], None, "$.results"),
        (["results", "a", "session"], "elsewhere", "$.results['a'].session"),
        (["sessions", "s", "dirty"], "no", "$.sessions"),
        ([*RESULT, "items"], None, ".result.items"),
        ([*RESULT, "items"], 0.0, ".result.items"),
        ([*RESULT, "items"], -8.0, ".result.items"),
        ([*RESULT, "workers"], [], "$.results['a'].result.workers"),
        ([*RESULT, "workers", 0, "wall", "call_s"], None, ".call_s"),
        ([*RESULT, "workers", 0, "wall", "call_s"], "fast", ".call_s"),
        ([*RESULT, "workers", 3, "wall", "call_s"], 0.0, "$.results['a'].result.workers[3].wall.call_s"),
        ([*RESULT, "workers", 3, "wall", "call_s"], -1.0, "$.results['a'].result.workers[3].wall.call_s"),
        ([*RESULT, "workers", 4, "wall", "relative"], 0.0, "$.results['a'].result.workers[4].wall.relative"),
        (
            [*RESULT, "workers", 4, "wall", "relative_memory"],
            0.0,
            "$.results['a'].result.workers[4].wall.relative_memory",
        ),
        ([*RESULT, "workers", 4, "items_per_call"], -8.0, "$.results['a'].result.workers[4].items_per_call"),
        ([*RESULT, "traced_call_s"], -1.0, ".traced_call_s"),
        ([*RESULT, "phases", 0, "total_s"], -1.0, ".phases"),
        ([*RESULT, "phases", 0, "total_s"], None, ".phases"),
    ],
)
def test_what_no_measurement_wrote(store: Store, path: list[Any], value: Any, place: str) -> None:
    """A value of the wrong type, or that cannot have been measured, is refused by its place."""
    store.write("s", ORIGIN, {"a": stored("a")})
    edit(store, set_in(path, value))
    assert place in refusal(store)


@pytest.mark.parametrize("name", ["call_s", "relative", "session"])
def test_a_missing_field(store: Store, name: str) -> None:
    """A field that is not there is named."""
    store.write("s", ORIGIN, {"a": stored("a")})
    text = store.path.read_text(encoding="utf-8").replace(f'"{name}"', '"other"')
    store.path.write_text(text, encoding="utf-8")
    assert f"`{name}`" in refusal(store)


def test_figures_of_another_machine_under_this_ones_name(store: Store) -> None:
    """A file copied or renamed to this machine's is not taken for its figures."""
    store.write("s", ORIGIN, {"a": stored("a")})
    edit(store, set_in(["machine", "cpu"], "Made Up 1"))
    with pytest.raises(BaselineError, match=re.escape(str(store.path))):
        store.read()


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    """Both the directory of all baselines and that of one name may turn out to be files."""
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    for store in (Store(tmp_path / "file", "default", HERE), Store(tmp_path, "file", HERE)):
        for action in (store.read, store.check_writable):
            with pytest.raises(BaselineError, match=r"is a file.*--rlperf-baseline-dir"):
                action()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"


def test_a_file_that_is_a_directory(store: Store) -> None:
    """A file that cannot be opened is an error with its name."""
    store.path.mkdir(parents=True)
    with pytest.raises(BaselineError, match=re.escape(str(store.path))):
        store.read()


def test_a_directory_that_cannot_be_written() -> None:
    """A place where nothing can be stored is found out before measuring, and named."""
    store = Store(Path("/proc/rlperf"), "default", HERE)
    assert store.read() is None
    with pytest.raises(BaselineError, match=r"cannot write baselines to /proc/rlperf/default.*--rlperf-baseline-dir"):
        store.check_writable()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    """Without the right to write, storing fails before measuring."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(BaselineError, match=r"Permission denied.*--rlperf-baseline-dir"):
            Store(tmp_path, "default", HERE).check_writable()
    finally:
        tmp_path.chmod(0o700)


# --------------------------------------------------------------------------- machine classes


def test_machine_classes_have_names_of_their_own() -> None:
    """A slug is a plain file name, the same for equal machines and different for any difference."""
    assert slug(HERE) == slug(replace(HERE))
    others = [
        replace(HERE, system="Darwin"),
        replace(HERE, arch="arm64"),
        replace(HERE, cpu="x"),
        replace(HERE, cores=5),
        replace(HERE, python="PyPy 3.11"),
        replace(HERE, kernel=2),
    ]
    assert len({slug(machine) for machine in [HERE, *others]}) == 1 + len(others)
    for machine in [HERE, this_machine(), replace(HERE, arch="../x y/…")]:
        assert re.fullmatch(r"[a-z0-9._-]+", slug(machine))
        assert Path(slug(machine)).name == slug(machine)


def test_machines_in_words() -> None:
    """A machine class is described by what tells it apart."""
    assert describe(HERE) == "Made Up 9000, 4 cores, Linux x86_64, CPython 3.11"
    assert differences(HERE, HERE) == []
    assert differences(HERE, ELSEWHERE) == [("cpu", "Made Up 9000", "Made Up 8000"), ("cores", 4, 2)]
    assert this_machine() == this_machine()


# --------------------------------------------------------------------------- provenance


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a git repository with one commit and nothing changed since."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "module.py").write_text("x = 1\n", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def test_a_clean_commit_can_be_settled(repository: Path) -> None:
    """Figures of committed code remember the commit and its tree; baselines beside it do not make it dirty."""
    baselines = repository / "baselines"
    (baselines / "default").mkdir(parents=True)
    (baselines / "default" / "x.json").write_text("{}", encoding="utf-8")
    (repository / "sub" / "__pycache__").mkdir(parents=True)
    (repository / "sub" / "__pycache__" / "x.pyc").write_text("", encoding="utf-8")
    found = provenance(repository, baselines, ["msgspec", "pytest"])
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert found.tree == git(repository, "rev-parse", "HEAD^{tree}")
    assert not found.dirty
    assert found.settleable
    assert set(found.packages) == {"msgspec", "pytest"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.created)


@pytest.mark.parametrize("name", ["module.py", "new.py", "baselines.py", "sub/baselines/x.py"])
def test_uncommitted_changes_make_it_dirty(repository: Path, name: str) -> None:
    """A changed or a new file means that the commit alone does not give the code back."""
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).write_text("x = 2\n", encoding="utf-8")
    found = provenance(repository, repository / "baselines", [])
    assert found.commit is not None
    assert found.dirty
    assert not found.settleable


def test_a_committed_baseline_that_changes_is_not_dirt(repository: Path) -> None:
    """Storing over a committed baseline leaves the code as committed."""
    baselines = repository / "base lines"
    (baselines / "default").mkdir(parents=True)
    (baselines / "default" / "x.json").write_text("{}", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=two")
    (baselines / "default" / "x.json").write_text("[]", encoding="utf-8")
    assert not provenance(repository, baselines, []).dirty


def test_a_rootdir_below_the_repository(repository: Path) -> None:
    """Changes anywhere in the repository count, not only below pytest's rootdir."""
    root = repository / "sub"
    (root / "baselines" / "default").mkdir(parents=True)
    (root / "baselines" / "default" / "x.json").write_text("{}", encoding="utf-8")
    assert not provenance(root, root / "baselines", []).dirty
    (repository / "module.py").write_text("x = 3\n", encoding="utf-8")
    assert provenance(root, root / "baselines", []).dirty


def test_baselines_kept_in_the_rootdir_hide_no_changes(repository: Path) -> None:
    """With --rlperf-baseline-dir=. the code beside the baselines still counts."""
    (repository / "module.py").write_text("x = 4\n", encoding="utf-8")
    assert provenance(repository, repository, []).dirty


def test_outside_git(tmp_path: Path) -> None:
    """Without a repository, or before its first commit, there is no code to come back to."""
    assert not provenance(tmp_path, tmp_path / "baselines", []).settleable
    git(tmp_path, "init", "--quiet")
    found = provenance(tmp_path, tmp_path / "baselines", [])
    assert (found.commit, found.tree, found.settleable) == (None, None, False)


# --------------------------------------------------------------------------- figures in words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ns"),
        (1e-12, "0.00100 ns"),
        (48.2e-6, "48.2 µs"),
        (999e-9, "999 ns"),
        (999.6e-9, "1.00 µs"),
        (999.6e-6, "1.00 ms"),
        (0.9996, "1.00 s"),
        (9.996e-6, "10.0 µs"),
        (99.96e-6, "100 µs"),
        (1.0, "1.00 s"),
        (90.0, "90.0 s"),
        (-2e-3, "-2.00 ms"),
    ],
)
def test_seconds_in_words(value: float, text: str) -> None:
    """Three digits and the unit that fits."""
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (7.0, "7.00"), (999.6, "1.00k"), (166_000.0, "166k"), (2.5e6, "2.50M")]
)
def test_quantities_in_words(value: float, text: str) -> None:
    """Three digits and a suffix."""
    assert units.quantity(value) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 tests"), (1, "1 test"), (7, "7 tests")])
def test_counts_in_words(count: int, text: str) -> None:
    """One of a thing is one thing."""
    assert units.counted(count, "test") == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.042, "+4.2 %"),
        (0.5, "-50.0 %"),
        (1.0, "+0.0 %"),
        (1.9996, "+100 %"),
        (2.0, "×2.0"),
        (9.96, "×10"),
        (250, "×250"),
    ],
)
def test_changes_in_words(ratio: float, text: str) -> None:
    """A percentage, and from twice on a multiple."""
    assert units.change(ratio) == text


_FACTORS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_any_duration_reads_back(value: float) -> None:
    """A printed number equals the measured one to three digits, and is never 1000 of a unit that has a bigger one."""
    figure, unit = units.seconds(value).split(" ")
    assert math.isclose(float(figure) * _FACTORS[unit], value, rel_tol=5.01e-3)
    assert unit == "s" or 1 <= float(figure) < 1000
    assert len(figure.replace(".", "").lstrip("0")) <= 3 or float(figure) >= 1000


@given(st.floats(min_value=1.0, max_value=1e12))
def test_any_quantity_reads_back(value: float) -> None:
    """Likewise for counts."""
    match = re.fullmatch(r"([0-9.]+)([kMG]?)", units.quantity(value))
    assert match is not None
    figure, suffix = match.groups()
    assert math.isclose(float(figure) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[suffix], value, rel_tol=5.01e-3)
    assert suffix == "G" or float(figure) < 1000
    assert len(figure.replace(".", "")) == 3 or float(figure) >= 1000


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_rounding_keeps_the_digits_asked_for(value: float, digits: int) -> None:
    """Rounding moves a figure by half a unit of its last digit at most, and once is enough."""
    rounded = units.round_significant(value, digits)
    if math.isfinite(rounded):  # the largest floats round up to infinity
        assert math.isclose(rounded, value, rel_tol=0.501 * 10 ** (1 - digits), abs_tol=1e-320)
    assert units.round_significant(rounded, digits) == rounded
