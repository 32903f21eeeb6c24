from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import git
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import asdict, replace
from wording import Wording

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe, differences, slug, this_machine
from pytest_rlperf.baseline.provenance import (
    HARNESS,
    TreeState,
    changed_versions,
    free_distributions,
    make_provenance,
    read_tree,
)
from pytest_rlperf.baseline.schema import SCHEMA, decode, encode
from pytest_rlperf.baseline.store import LARGEST_BYTES, LINKS_MOST, BaselineError, Store
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.measured import Counting, Figures, Phase, PhaseCounts, Result, Start, WorkerRecord
from pytest_rlperf.model.reasons import VersionChange
from pytest_rlperf.model.stored import (
    Acceptance,
    Baseline,
    Link,
    PairSpread,
    Provenance,
    SessionFigures,
    StoredResult,
    session_figures,
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
    return Store(tmp_path / "baselines", "default", HERE)


def edit(store: Store, change: Callable[[Any], None]) -> None:
    """Change the stored JSON of ``store`` in place."""
    data = json.loads(store.path.read_bytes())
    change(data)
    store.path.write_text(json.dumps(data), encoding="utf-8")


def read(store: Store) -> Baseline:
    """Return what ``store`` holds."""
    baseline = store.read()
    assert baseline is not None
    return baseline


def test_the_file_is_made_for_diffs(store: Store) -> None:
    """Keys are sorted at every level, a test and a session are a line each, a newline ends it."""
    counting = Counting((PhaseCounts("", {"ops": 3}),), 5, 2)
    store.write("s", ORIGIN, {"b": stored("b"), "a": stored("a", counting=counting, workers=(worker(0.001),))})
    text = store.path.read_text(encoding="utf-8")
    pairs: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda found: pairs.append([key for key, _ in found]))
    assert all(keys == sorted(keys) for keys in pairs)
    assert [line.strip().partition(":")[0].strip(",") for line in text.splitlines()] == [
        *("{", '"machine"', '"results"', '"a"', '"b"', "}", '"schema"', '"sessions"', '"s"', "}", "}")
    ]
    assert text.splitlines()[3] == (
        '  "a": {"result":{"component":"gae","counting":{"phases":[{"exact":{"ops":3},"path":""}],"repetitions":2,'
        '"workers":5},"items":8.0,"nodeid":"a","phases":[{"count":1.0,"path":"gae","self_s":0.001,"total_s":0.001}],'
        '"traced_call_s":0.0011,"unit":"transition","workers":[{"calls":100,"collections":1,'
        '"cpu":{"call_s":0.001,"relative":20.5,"relative_memory":0.25},"cpu_share":1.0,"items_per_call":8.0,'
        '"seed":1000,"slices":12,"wall":{"call_s":0.001,"relative":20.5,"relative_memory":0.25}}]},"session":"s"},'
    )
    assert text.endswith("}\n")
    assert "accelerators" not in text


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


def test_a_write_that_fails_leaves_the_old_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """On a full disk the old baseline stays, and what is left half written is never read as a baseline."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    store.write("s", ORIGIN, {"a": stored("a")})
    before = store.path.read_bytes()
    with monkeypatch.context() as patched:
        for name in ("replace", "unlink"):
            patched.setattr(os, name, fail)
        with wording.raises(BaselineError):
            store.write("new", ORIGIN, {"a": stored("a", "new")})
    assert store.path.read_bytes() == before
    assert len(list(store.directory.iterdir())) == 2
    assert (store.others(), store.names()) == (([], []), ["default"])
    store.write("t", ORIGIN, {"a": stored("a", "t")})
    assert set(read(store).sessions) == {"t"}


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


def test_a_text_that_is_no_unicode_is_not_written(store: Store, wording: Wording) -> None:
    """A path that is not UTF-8 gives a name of a test that no file can hold; the error shows it."""
    with wording.raises(BaselineError):
        store.write("s", ORIGIN, {"a\udcff": stored("a\udcff")})
    assert store.read() is None


def test_a_baseline_without_tests_reads_back() -> None:
    """Tools may write one, and remove its last test."""
    empty = Baseline(SCHEMA, HERE, {}, {})
    assert decode(encode(empty)) == empty


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
    assert [other.machine for other in here.others().baselines] == [ELSEWHERE]
    assert Store(root, "night-1.2", HERE).read() is None
    assert [other.machine for other in Store(root, "night-1.2", HERE).others().baselines] == [ELSEWHERE]


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
phases = st.builds(
    Phase, path=st.text(min_size=1, max_size=20), count=seconds, total_s=seconds, self_s=seconds, device=words
)
counters = st.dictionaries(words, counts, max_size=4)
ranges = st.dictionaries(words, counts.flatmap(lambda least: st.tuples(st.just(least), st.integers(least))), max_size=2)
countings = st.builds(
    Counting,
    phases=st.lists(st.builds(PhaseCounts, words, counters, ranges), max_size=3).map(tuple),
    workers=counts,
    repetitions=counts,
    notes=st.lists(words, max_size=2).map(tuple),
)
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
    counting=st.none() | countings,
)
sessions = st.builds(
    SessionFigures,
    session=words,
    same_code=st.booleans(),
    clock=st.sampled_from(["cpu", "wall"]),
    workers=st.integers(1, 2**53),
    relative=figures,
    relative_memory=figures,
    squares=seconds,
    squares_memory=seconds,
)
links = st.builds(
    Link,
    base=st.text("0123456789abcdef", min_size=40, max_size=40),
    head=st.text("0123456789abcdef", min_size=64, max_size=64),
    log_ratio=st.floats(-100, 100),
    error=st.floats(0, 100),
    packages=st.lists(st.builds(VersionChange, words, words, st.none() | words), max_size=3).map(tuple),
)
entries = st.builds(
    StoredResult,
    result=results,
    session=st.just("s"),
    accepted=st.none() | st.builds(Acceptance, words, words, figures, words),
    pairs=st.none() | st.builds(PairSpread, seconds, figures),
    history=st.lists(sessions, max_size=10).map(tuple),
    links=st.lists(links, max_size=3).map(tuple),
)


def assert_close(found: Any, expected: Any) -> None:
    """Compare two records field by field, floats to five significant digits."""
    if isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=5.1e-5)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, Struct):
        for name in expected.__struct_fields__:
            assert_close(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected


def assert_short(text: str) -> None:
    """Check that a figure of the file has five significant digits at most."""
    assert float(text) == units.round_significant(float(text), 5)


@given(st.dictionaries(words, entries, min_size=1, max_size=3))
@settings(max_examples=10)  # entries have many fields
def test_any_entry_survives_the_file(entries: dict[str, StoredResult]) -> None:
    """Whatever was measured reads back, to five significant digits, and once read it is stored exactly."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory), "default", HERE)
        store.write("s", ORIGIN, entries)
        baseline = read(store)
        assert (baseline.schema, baseline.machine, baseline.sessions) == (SCHEMA, HERE, {"s": ORIGIN})
        assert set(baseline.results) == set(entries)
        for key, entry in entries.items():
            assert_close(baseline.results[key], entry)
        before = store.path.read_bytes()
        store.write("s", ORIGIN, dict(reversed(baseline.results.items())))
        assert store.path.read_bytes() == before
        json.loads(before, parse_float=assert_short)


def session_of(result: Result, session: str, *, same_code: bool = True) -> SessionFigures:
    figures = session_figures(result, session, same_code=same_code)
    rounded: dict[str, Any] = {
        name: units.round_significant(value) for name, value in asdict(figures).items() if isinstance(value, float)
    }
    return replace(figures, **rounded)


def keep(store: Store, session: str, **changes: Any) -> StoredResult:
    """Store a test's figures of one session with the session's own summary, and return the entry that is kept."""
    entry = stored("a", session)
    entry = replace(entry, **{"history": (session_of(entry.result, session),), **changes})
    store.write(session, ORIGIN, {"a": entry})
    baseline = read(store)
    return baseline.results["a"]


def test_a_session_is_summed_up_by_means_and_squares() -> None:
    """Means of logarithms, by the clock that decides, and the squared deviations of the workers from them."""
    workers = tuple(builders.worker(1.0, value, value**2) for value in (1.0, 2.0, 4.0))
    found = session_figures(builders.result(workers=workers), "s", same_code=True)
    assert (found.clock, found.workers, found.same_code) == ("wall", 3, True)
    assert (found.relative, found.relative_memory) == pytest.approx((2.0, 4.0))
    assert (found.squares, found.squares_memory) == pytest.approx((2 * math.log(2) ** 2, 8 * math.log(2) ** 2))


def test_the_last_ten_sessions_are_kept(store: Store) -> None:
    """The oldest go first, and storing one session twice counts once."""
    for number in range(12):
        kept = keep(store, f"session {number}")
    assert [session.session for session in kept.history] == [f"session {number}" for number in range(2, 12)]
    assert keep(store, "session 11", history=kept.history) == kept


def test_another_workload_has_no_past(store: Store) -> None:
    """Sessions, pairs and links of other work go with its figures."""
    keep(store, "s", pairs=PairSpread(1e-4, 3.0), links=(Link("a" * 40, "b" * 40, 0.01, 0.002),))
    other = stored("a", "t", component="another")
    store.write("t", ORIGIN, {"a": replace(other, history=(session_of(other.result, "t"),))})
    entry = read(store).results["a"]
    assert ([session.session for session in entry.history], entry.pairs, entry.links) == (["t"], None, ())


def test_figures_of_the_other_kind_of_processes_have_no_past_but_links(store: Store) -> None:
    """Sessions and pairs of forked processes spread otherwise than those of new interpreters."""
    first = Link("a" * 40, "b" * 40, 0.01, 0.002)
    keep(store, "s", pairs=PairSpread(1e-4, 3.0), links=(first,))
    other = stored("a", "t", start=Start.FORKED)
    store.write("t", ORIGIN, {"a": replace(other, history=(session_of(other.result, "t"),))})
    entry = read(store).results["a"]
    assert ([session.session for session in entry.history], entry.pairs, entry.links) == (["t"], None, (first,))
    assert entry.result.start is Start.FORKED


def test_the_last_links_are_kept(store: Store) -> None:
    """The oldest go first, and packages are left out where none changed."""
    shas = [f"{number:040x}" for number in range(LINKS_MOST + 3)]
    for number, (base, head) in enumerate(pairwise(shas)):
        packages = (VersionChange("numpy", "1.26.4", "2.0.1"),) if number == LINKS_MOST else ()
        kept = keep(store, f"session {number}", links=(Link(base, head, 0.0123456, 0.002, packages),))
    assert [link.base for link in kept.links] == shas[2:-1]
    changed = [["numpy", "1.26.4", "2.0.1"]]
    links = json.loads(store.path.read_bytes())["results"]["a"]["links"]
    assert links[-2:] == [
        {"base": shas[-3], "error": 0.002, "head": shas[-2], "log_ratio": 0.012346, "packages": changed},
        {"base": shas[-2], "error": 0.002, "head": shas[-1], "log_ratio": 0.012346},
    ]


def test_pairs_of_many_sessions_are_pooled_and_fade(store: Store) -> None:
    """Sums of squares and degrees of freedom add up to 30 of the latter; then the older ones count less."""
    assert keep(store, "1", pairs=PairSpread(1e-4, 20.0)).pairs == PairSpread(1e-4, 20.0)
    assert keep(store, "2").pairs == PairSpread(1e-4, 20.0)  # a session without live pairs
    assert keep(store, "3", pairs=PairSpread(5e-5, 10.0)).pairs == PairSpread(1.5e-4, 30.0)
    assert keep(store, "4", pairs=PairSpread(0.0, 10.0)).pairs == PairSpread(1e-4, 30.0)
    assert keep(store, "5", pairs=PairSpread(2e-4, 40.0)).pairs == PairSpread(2e-4, 40.0)


def save_rounds(root: Path, name: str, begin: Barrier) -> None:
    store = Store(root, "default", HERE)
    begin.wait(60)
    for number in range(12):
        key = f"{name} {number}"
        store.write(key, ORIGIN, {key: stored(key, key)})


def test_two_savers_at_once_lose_nothing(store: Store) -> None:
    """Two processes that store figure after figure in one file leave all of them there."""
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(2)
    savers = [
        context.Process(target=save_rounds, args=(store.directory.parent, name, begin), daemon=True)
        for name in ("one", "other")
    ]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join(120)
        assert saver.exitcode == 0
    baseline = read(store)
    assert set(baseline.results) == {f"{name} {number}" for name in ("one", "other") for number in range(12)}


@pytest.mark.parametrize("place", ["baselines", "baselines/default", "file"])
def test_saving_follows_no_link(store: Store, tmp_path: Path, place: str, wording: Wording) -> None:
    """A link in the place of a baseline or of its directories, which a commit can bring, is an error that names it."""
    outside, link = tmp_path / "outside", store.path if place == "file" else tmp_path / place
    link.parent.mkdir(parents=True, exist_ok=True)
    Store(outside, "default", HERE).write("s", ORIGIN, {"a": stored("a")})
    inside = Store(outside, "default", HERE).path
    old = inside.read_bytes()
    link.symlink_to({"baselines": outside, "baselines/default": outside / "default", "file": inside}[place])
    assert set(read(store).results) == {"a"}
    with wording.raises(BaselineError):
        store.check_writable()
    with pytest.raises(BaselineError, match="is a link"):
        store.write("t", ORIGIN, {"b": stored("b", "t")})
    assert link.is_symlink()
    assert [path for path in outside.rglob("*") if path.is_file()] == [inside]
    assert inside.read_bytes() == old


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_a_device_and_a_directory_are_no_baselines(store: Store, wording: Wording) -> None:
    """Nobody waits for what may never be written, or reads without end."""
    store.path.mkdir(parents=True)
    with wording.raises(BaselineError):
        store.read()
    store.path.rmdir()
    os.mkfifo(store.path)
    with wording.raises(BaselineError):
        store.read()
    store.path.unlink()
    store.path.symlink_to("/dev/zero")
    with wording.raises(BaselineError):
        store.read()


def test_the_largest_file_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one with a byte more is not; of a huge one no more is read than the largest baseline has."""
    store.write("s", ORIGIN, {"a": stored("a")})
    size = store.path.stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr("pytest_rlperf.baseline.store.LARGEST_BYTES", size)
        assert store.read() is not None
        patched.setattr("pytest_rlperf.baseline.store.LARGEST_BYTES", size - 1)
        with pytest.raises(BaselineError, match="larger than 0 MiB"):
            store.read()
    with store.path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BaselineError, match="larger than 64 MiB"):
        store.read()
    assert LARGEST_BYTES == 64 << 20


def test_a_bad_file_of_another_machine_stops_nobody(store: Store) -> None:
    """What lies beside this machine's baseline is left out with its fault, whatever is wrong with it."""
    elsewhere = Store(store.directory.parent, "default", ELSEWHERE)
    elsewhere.write("s", ORIGIN, {"a": stored("a")})
    (store.directory / "broken.json").write_text("{", encoding="utf-8")
    (store.directory / "newer.json").write_text('{"schema": 99}', encoding="utf-8")
    (store.directory / "stray.json").write_text('{"figures": []}', encoding="utf-8")
    (store.directory / "pipe.json").symlink_to("/dev/zero")
    assert store.read() is None
    found = store.others()
    assert [other.machine for other in found.baselines] == [ELSEWHERE]
    assert len(found.faults) == 4
    for fault, name in zip(found.faults, ("broken", "newer", "pipe", "stray"), strict=True):
        assert str(store.directory / f"{name}.json") in fault
    store.write("s", ORIGIN, {"a": stored("a")})
    assert store.read() is not None


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
    "spoil",
    [
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw[: len(raw) // 2], id="truncated"),
        pytest.param(lambda raw: b"{nonsense" + raw, id="corrupt"),
        pytest.param(lambda raw: raw.replace(b' "sessions"', b'<<<<<<< HEAD\n "sessions"'), id="merge conflict"),
        pytest.param(lambda raw: b'{"results": ' + b"[" * 100_000, id="nested too deep"),
        pytest.param(
            lambda raw: raw.replace(b'"unit"', b'"other": ' + b"[" * 100_000 + b"]" * 100_000 + b', "unit"'),
            id="a part nested too deep",
        ),
        pytest.param(lambda raw: raw.replace(b'"gae"', b'"\xff"'), id="not UTF-8"),
        pytest.param(lambda raw: b"[]", id="another document"),
        pytest.param(lambda raw: b"{}", id="no version"),
    ],
)
def test_a_file_that_is_no_baseline(store: Store, spoil: Callable[[bytes], bytes], wording: Wording) -> None:
    """A damaged file is refused with what is wrong with it."""
    store.write("s", ORIGIN, {"a": stored("a")})
    store.path.write_bytes(spoil(store.path.read_bytes()))
    assert refusal(store) == wording


def test_a_file_of_a_future_version(store: Store) -> None:
    """A newer schema is distinguished from damage, whatever else the file holds."""
    store.directory.mkdir(parents=True)
    store.path.write_text('{"schema": 99, "results": "of another shape"}', encoding="utf-8")
    text = refusal(store)
    assert "schema version 99" in text
    assert f"up to {SCHEMA}: upgrade pytest-rlperf" in text


def set_in(path: list[Any], value: Any) -> Callable[[Any], None]:
    """Return a change that puts ``value`` at ``path``."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


RESULT = ["results", "a", "result"]
LINK = {"base": "a" * 40, "head": "b" * 40, "log_ratio": 0.01, "error": 0.002}
SESSION = asdict(SessionFigures("r", 20.5, 0.25, 1e-4, 1e-4, same_code=False))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema"], "one"),
        (["results"], []),
        (["results", "a"], None),
        (["sessions", "s", "dirty"], "no"),
        (["sessions", "s", "commit"], "--output=x"),
        (["sessions", "s", "tree"], "A" * 40),
        (["results", "a", "history"], [SESSION | {"clock": "sun"}]),
        (["results", "a", "history"], [SESSION | {"relative": 0.0}]),
        (["results", "a", "pairs"], {"squares": -1.0, "freedom": 2.0}),
        (["results", "a", "links"], [LINK | {"base": "HEAD"}]),
        (["results", "a", "links"], [LINK, LINK | {"head": "--all"}]),
        (["results", "a", "links"], [LINK | {"log_ratio": 101.0}]),
        (["results", "a", "links"], [LINK | {"error": -1.0}]),
        ([*RESULT, "items"], 0.0),
        ([*RESULT, "workers"], []),
        ([*RESULT, "workers", 0, "wall", "call_s"], "fast"),
        ([*RESULT, "workers", 3, "wall", "call_s"], 0.0),
        ([*RESULT, "workers", 4, "wall", "relative"], 0.0),
        ([*RESULT, "workers", 4, "items_per_call"], -8.0),
        ([*RESULT, "traced_call_s"], -1.0),
        ([*RESULT, "phases", 0, "total_s"], -1.0),
        ([*RESULT, "phases", 0, "path"], ""),
        ([*RESULT, "counting"], {"phases": [{"path": "", "inexact": {"ops": [2, 1]}}], "workers": 2, "repetitions": 2}),
        (["schema"], 1),
        (["results", "a", "session"], "another"),
    ],
)
def test_what_no_measurement_wrote(store: Store, path: list[Any], value: Any, wording: Wording) -> None:
    """A value of the wrong type, or that cannot have been measured, is refused by its place."""
    store.write("s", ORIGIN, {"a": stored("a")})
    edit(store, set_in(path, value))
    assert refusal(store) == wording


@pytest.mark.parametrize("name", ["call_s", "relative", "session", "wall"])
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


def test_where_nothing_can_be_stored_is_found_out_and_named(tmp_path: Path, wording: Wording) -> None:
    """Directories that turn out to be files, and places that take no files, before anything is measured."""
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    for store in (Store(tmp_path / "file", "default", HERE), Store(tmp_path, "file", HERE)):
        for action in (store.read, store.check_writable):
            with wording.raises(BaselineError):
                action()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"
    store = Store(Path("/proc/rlperf"), "default", HERE)
    assert store.read() is None
    with wording.raises(BaselineError):
        store.check_writable()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    """Without the right to write, storing fails before measuring."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(BaselineError, match=r"Permission denied.*-o rlperf_baseline="):
            Store(tmp_path, "default", HERE).check_writable()
    finally:
        tmp_path.chmod(0o700)


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
    for machine in [HERE, this_machine(), replace(HERE, arch="../x y/…"), replace(HERE, arch="a" * 300)]:
        assert len(slug(machine)) < 128  # of the 255 bytes that a file's name may have
        assert re.fullmatch(r"[a-z0-9._-]+", slug(machine))
        assert Path(slug(machine)).name == slug(machine)
    assert len(slug(replace(HERE, arch="a" * 300))) == 109


def test_a_machine_class_has_words_and_a_name_that_stays() -> None:
    """Under another name its baseline would not be found: it is the same in every version, and told by what differs."""
    assert slug(HERE) == "linux-x86_64-4c-cpython3.11-e02ea7ee"
    assert slug(replace(HERE, accelerators=("Made Up GPU",))) == "linux-x86_64-4c-cpython3.11-87208147"
    assert describe(HERE) == "Made Up 9000, 4 cores, Linux x86_64, CPython 3.11"
    assert differences(HERE, HERE) == []
    assert differences(HERE, ELSEWHERE) == [("cpu", "Made Up 9000", "Made Up 8000"), ("cores", 4, 2)]
    assert this_machine() == this_machine()


def test_a_machine_that_shows_little_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the processor's name is Python's, if it has one; without affinities all cores count."""
    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for processor, cores, found in (("arm", 8, ("arm", 8)), ("", None, ("unknown processor", 1))):
        monkeypatch.setattr("platform.processor", lambda processor=processor: processor)
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        machine = this_machine(lambda: ())
        assert (machine.cpu, machine.cores) == found


def unreadable(*_: object, **__: object) -> str:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("processor\t: 0\nmodel name\t: Made Up 9000\n", "Made Up 9000"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "0x41 0xd0c"),
        ("processor\t: 0\n", "unknown processor"),
    ],
)
def test_the_processors_name_is_the_systems(text: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's name, or on ARM the numbers of its maker and its design."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    monkeypatch.setattr("platform.processor", lambda: "")
    assert this_machine(lambda: ()).cpu == cpu


def test_versions_that_changed_are_named() -> None:
    """A distribution that is gone has no version now; one that is as it was is not listed."""
    now = version("pytest")
    then = {"pytest": now, "msgspec": "0.0.1", "rlperf-was-here": "1"}
    assert changed_versions(then) == [
        ("msgspec", "0.0.1", version("msgspec")),
        ("rlperf-was-here", "1", None),
    ]
    assert changed_versions({"a-package-of-nobody": "1", "pytest": "0"}) == [
        ("a-package-of-nobody", "1", None),
        ("pytest", "0", now),
    ]


def test_versions_of_the_tree_itself_do_not_matter(tmp_path: Path) -> None:
    """Those of the projects around the tests, by their names as indexes have them; a broken one names nothing."""
    builders.write(tmp_path, {"pyproject.toml": "[", "lib/pyproject.toml": '[project]\nname = "My_Lib"\n'})
    assert free_distributions(tmp_path / "lib/tests", tmp_path) == HARNESS | {"my-lib"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a git repository with one commit, which has a baseline, and nothing changed since."""
    git(tmp_path, "init", "--quiet")
    builders.write(tmp_path, {"module.py": "x = 1\n", "base lines/default/linux-0123abcd.json": "{}"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def test_a_clean_commit_can_be_settled(repository: Path) -> None:
    """Figures of committed code remember the commit and its tree; baselines beside it do not make it dirty."""
    baselines = repository / "baselines"
    (baselines / "default").mkdir(parents=True)
    (baselines / "default" / "linux-0123abcd.json").write_text("{}", encoding="utf-8")
    (repository / "sub" / "__pycache__").mkdir(parents=True)
    (repository / "sub" / "__pycache__" / "x.pyc").write_text("", encoding="utf-8")
    found = provenance(repository, baselines, ["msgspec", "pytest"])
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert found.tree == git(repository, "rev-parse", "HEAD^{tree}")
    assert not found.dirty
    assert found.settleable
    assert set(found.packages) == {"msgspec", "pytest"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.created)


@pytest.mark.parametrize(
    ("name", "root", "baselines", "dirty"),
    [
        ("module.py", ".", "baselines", True),
        ("new.py", ".", "baselines", True),
        ("baselines.py", ".", "baselines", True),
        ("sub/baselines/x.py", ".", "baselines", True),
        ("base lines/default/linux-0123abcd.json", ".", "base lines", False),
        ("base lines/default/config.json", ".", "base lines", True),
        ("sub/baselines/default/linux-0123abcd.json", "sub", "sub/baselines", False),
        ("module.py", "sub", "sub/baselines", True),
        ("module.py", ".", ".", True),
    ],
)
def test_which_changes_make_it_dirty(repository: Path, name: str, root: str, baselines: str, dirty: bool) -> None:
    """Changed and new files anywhere in the repository do, whatever the rootdir is; stored figures do not."""
    builders.write(repository, {name: "[]"})
    (repository / root).mkdir(exist_ok=True)
    found = provenance(repository / root, repository / baselines, [])
    assert found.commit is not None
    assert (found.dirty, found.settleable) == (dirty, not dirty)


def test_code_that_changes_meanwhile_is_dirty() -> None:
    """So is code that was dirty before."""
    clean, dirty = TreeState("a" * 40, "b" * 40, dirty=False), TreeState("a" * 40, "b" * 40, dirty=True)
    other = replace(clean, tree="c" * 40)
    found = [make_provenance(*trees, []).dirty for trees in ((clean, clean), (dirty, dirty), (clean, other))]
    assert found == [False, True, True]


def test_outside_git_or_where_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no code to come back to without a repository or a commit; where git fails, any file may have changed."""
    found = provenance(tmp_path, tmp_path / "baselines", [])
    assert (found.commit, found.tree, found.dirty, found.settleable) == (None, None, False, False)
    git(tmp_path, "init", "--quiet")
    found = provenance(tmp_path, tmp_path / "baselines", [])
    assert (found.commit, found.tree, found.settleable) == (None, None, False)

    def fail(*_: object) -> bool:
        raise SideError("git failed")

    monkeypatch.setattr("pytest_rlperf.sides.git.Repository.is_dirty", fail)
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=one")
    assert read_tree(tmp_path, tmp_path / "baselines").dirty


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (units.seconds, 0.0, "0 ns"),
        (units.seconds, 1e-12, "0.00100 ns"),
        (units.seconds, 48.2e-6, "48.2 µs"),
        (units.seconds, 999e-9, "999 ns"),
        (units.seconds, 999.6e-9, "1.00 µs"),
        (units.seconds, 999.6e-6, "1.00 ms"),
        (units.seconds, 0.9996, "1.00 s"),
        (units.seconds, 99.96e-6, "100 µs"),
        (units.seconds, 90.0, "90.0 s"),
        (units.seconds, -2e-3, "-2.00 ms"),
        (units.quantity, 0.0, "0"),
        (units.quantity, 7.0, "7.00"),
        (units.quantity, 999.6, "1.00k"),
        (units.quantity, 166_000.0, "166k"),
        (units.quantity, 2.5e6, "2.50M"),
        (units.change, 1.042, "+4.2 %"),
        (units.change, 0.000489, "×0.00049"),
        (units.change, 0.5, "×0.50"),
        (units.change, 0.501, "-49.9 %"),
        (units.change, 1.0, "+0.0 %"),
        (units.change, 1.9996, "+100 %"),
        (units.change, 2.0, "×2.0"),
        (units.change, 9.96, "×10"),
        (units.change, 2043, "×2,043"),
        (units.change, math.inf, "×inf"),
    ],
)
def test_figures_in_words(function: Callable[[float], str], value: float, text: str) -> None:
    """Three digits with the unit or suffix that fits; a change as a percentage, and from a factor of two on as one."""
    assert function(value) == text


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text", "first"),
    [
        (1.004, 0.964, 1.044, "[-3.6, +4.4]", "-3.6 %"),
        (1.9, 1.7, 2.1, "[+70, +110]", "+70.0 %"),
        (2.0, 1.9, 2.1, "[1.9, 2.1]", "×1.9"),
        (0.00049, 0.00048, 0.0005, "[.00048, .00050]", "×0.00048"),
        (0.4, 0.0, math.inf, "[0, inf]", "×0"),
    ],
)
def test_an_interval_has_the_form_of_its_estimate(ratio: float, low: float, high: float, text: str, first: str) -> None:
    """Both bounds are percentages, or both multiples, also where one lies on the other side of a factor of two."""
    assert units.interval(ratio, low, high) == text
    assert units.change(low, ratio) == first


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_rounding_keeps_the_digits_asked_for(value: float, digits: int) -> None:
    """Rounding moves a figure by half a unit of its last digit at most, and once is enough."""
    rounded = units.round_significant(value, digits)
    if math.isfinite(rounded):  # the largest floats round up to infinity
        assert math.isclose(rounded, value, rel_tol=0.501 * 10 ** (1 - digits), abs_tol=1e-320)
    assert units.round_significant(rounded, digits) == rounded
