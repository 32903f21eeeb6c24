"""The readers of files that others may have written, and strategies for such files.

Each reader takes any bytes, and returns, or raises an error of ours.

A target can go on as the package does: what was read is shown, judged or written again. Anything but a result or the
error that is documented is a find.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_rlperf.baseline import schema
from pytest_rlperf.baseline.history import Sessions
from pytest_rlperf.cli.command import UsageError, parse, results_of
from pytest_rlperf.cli.show import _formatted, _rendered
from pytest_rlperf.errors import SideError, TimerFileError
from pytest_rlperf.judge.history import courses
from pytest_rlperf.judge.verdict import Evidence, judge
from pytest_rlperf.model.judged import Allowance, Policy
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.stored import Baseline, Link, session_figures
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.report.github import COMMENT_BYTES
from pytest_rlperf.report.history import HistoryReport, render_history
from pytest_rlperf.report.run_json import RunFile
from pytest_rlperf.report.tables import render_tree
from pytest_rlperf.sides import git
from pytest_rlperf.sides.specs import parse_spec
from pytest_rlperf.timers import files

if TYPE_CHECKING:
    from pytest_rlperf.cli.command import Recorded

SAMPLES = Path(__file__).parents[1] / "samples"


@dataclass(frozen=True)
class Target:
    """A reader of bytes, which returns None where it refuses them, the use of what it returns, and files it reads."""

    parse: Callable[[bytes], Any]
    seeds: Sequence[bytes]
    use: Callable[[Any], object] | None = None

    def read(self, data: bytes) -> None:
        found = self.parse(data)
        if found is not None and self.use is not None:
            self.use(found)


def parse_baseline(data: bytes) -> tuple[Baseline, bytes] | None:
    try:
        return schema.decode(data), data
    except schema.FormatError:
        return None


def use_baseline(found: tuple[Baseline, bytes]) -> None:
    """Judge today's figures by a baseline, store it, and show it and its courses."""
    baseline, data = found
    written = schema.decode(schema.encode(baseline))  # to five digits
    assert written.results.keys() == baseline.results.keys()
    assert schema.decode(schema.encode(written)) == written
    for stored in baseline.results.values():
        judge(Evidence(_today(), stored), _POLICY)
    show_courses(baseline)
    recorded = parse_run(data)
    if recorded is not None:
        show(recorded)


def show_courses(baseline: Baseline) -> None:
    """Show the course of every test of a baseline, as its only version."""
    sessions = Sessions()
    sessions.add_baseline(baseline)
    tests = {test: list(found.values()) for test, found in sessions.tests.items()}
    report = HistoryReport(tuple(courses(tests, sessions.links, [])), {baseline.machine: "machine"}, "file")
    text = render_history(report)
    assert all(line.isprintable() for line in text.split("\n")), text


def parse_run(data: bytes) -> Recorded | None:
    """Read what ``rlperf show`` is given."""
    try:
        return parse(data, "file")
    except UsageError as error:
        assert str(error).isprintable()  # noqa: PT017 - no test
        return None


def show(recorded: Recorded) -> None:
    """Show a run or a baseline, a run also as the comment on a pull request."""
    keys = list(results_of(recorded))
    text = _rendered(recorded, keys, verbose=True)
    assert all(line.isprintable() for line in text.split("\n")), text
    if isinstance(recorded, RunFile):
        assert len(_formatted(recorded, keys, "github", "file").encode()) <= COMMENT_BYTES


def _today() -> Result:
    (stored, *_) = _SAMPLE.results.values()
    return stored.result


def parse_trailers(data: bytes) -> list[Allowance]:
    """Read the trailers of a commit whose message is anybody's."""
    sha, text = "a" * 40, data.decode("utf-8", "replace").replace("\0", " ")
    values = "\n".join(line.partition(":")[2] for line in text.split("\n") if line.startswith("Rlperf-Accept:"))
    log, git._log = git._log, lambda root, base: f"{sha}\0{values}\0{text}\0"
    try:
        allowances, notes = git.read_allowances(Path(), sha)
    finally:
        git._log = log
    assert all(allowance.most >= 0 for allowance in allowances)
    assert all(notes)
    return allowances


def parse_side(data: bytes) -> object:
    """Read the value of ``--rlperf-against``."""
    try:
        return parse_spec(data.decode("utf-8", "surrogateescape"))
    except SideError as error:
        assert str(error)  # noqa: PT017 - no test
        return None


def parse_trace(data: bytes) -> list[TimerTree] | None:
    try:
        return files.parse(data, "file")
    except TimerFileError as error:
        assert str(error).isprintable()  # noqa: PT017 - no test
        return None


def use_trace(trees: list[TimerTree]) -> None:
    """Show trees, write them, and read our own format again."""
    for tree in trees[:5]:
        text = render_tree(tree, width=80)
        assert all(line.isprintable() for line in text.split("\n")), text
    for form in files.WRITERS:
        text = files.write(trees[:5], form)
        if form == "json":
            files.parse(text.encode(), "written")


def _sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def _shorter(data: bytes, most: int = 2) -> bytes:
    """Return a JSON document with lists of so many values, which is read as fast as many more inputs need."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(part) for key, part in value.items()}
        return [cut(part) for part in value[:most]] if isinstance(value, list) else value

    return json.dumps(cut(json.loads(data))).encode()


def _with_history(baseline: Baseline) -> Baseline:
    """Return a baseline whose tests have sessions enough for a change, and a chain of live comparisons."""
    shas = [4 * f"{number:010x}" for number in range(1, 5)]
    links = (
        Link(shas[0], shas[1], 0.0, 0.0),
        Link(shas[1], shas[2], 0.05, 0.004, (("numpy", "2.0.0", "2.1.0"), ("gone", "1.0", None))),
        Link(shas[2], shas[3], -0.02, 0.003),
    )
    results = {}
    for test, stored in baseline.results.items():
        last = session_figures(stored.result, stored.session, same_code=False)
        levels = [0.8, 0.81, 0.79, 0.8, 1.0, 1.01, 0.99, 1.0]
        history = [
            replace(
                last,
                session=f"2025-01-{day:02}T00:00:00+00:00 {shas[0][:12]}",
                relative=level * last.relative,
                relative_memory=level * last.relative_memory,
            )
            for day, level in enumerate(levels, 1)
        ]
        results[test] = replace(stored, history=(*history, last), links=links)
    return replace(baseline, results=results)


_SAMPLE: Baseline = schema.decode(_sample("baseline.json"))
_POLICY = Policy()
_RUN = _sample("run.json")
_TREES = files.read(SAMPLES / "mlagents_timers.json")
_TRAILERS = (
    b"Make it slower\n\nRlperf-Accept: test_gae* <= +9% as planned\nRlperf-Accept: test_x[1-*] counts more work\n",
    b"Rlperf-Accept: * <= 1.5 % x\nrlperf-accept: y",
)
_SPECS = (
    b"main", b"git:v1.0~3", b"pip:gymnasium==1.0.0,numpy>=2,<3", b"pip:mylib[a,b] @ file:///x; python_version<'3'",
    b"dir:../other", b"python:/usr/bin/python3",
)  # fmt: skip

TARGETS = {
    "baseline": Target(
        parse_baseline,
        (schema.encode(_SAMPLE), schema.encode(_with_history(_SAMPLE))),
        use_baseline,
    ),
    "run": Target(parse_run, (_shorter(_RUN), _shorter(_RUN, 1)), show),
    "trailers": Target(parse_trailers, _TRAILERS),
    "spec": Target(parse_side, _SPECS),
    "trace json": Target(parse_trace, (files.write(_TREES, "json").encode(),), use_trace),
    "trace mlagents": Target(parse_trace, (_sample("mlagents_timers.json"),), use_trace),
}


_TEXTS = (
    "", "\0", "\n", "::error::x", "%0A", "\x1b[2J", "\ud800", "\u202e", "<img src=x>", "| a |", "../../x", "--output=x",
    "x" * 5000, "日本", "1e999", "2024-13-45T99:99:99",
)  # fmt: skip
_NUMBERS = (-1, 2**53 + 1, 2**63, 10**30, -0.0, 5e-324, 1e-300, 1e18, 1e308, float("nan"), float("inf"))
_TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\ud800", b"null", b"NaN", b"-Infinity", b"9" * 4400, b"\0",
    b"\r\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"<<<<<<< HEAD\n", b"[" * 3000, b'{"a":' * 3000, b" " * 3000,
    b"<=", b"%", b"counts", b"pip:", b"dir:", b"~x", b"python:", b"@", b";", b"==",
)  # fmt: skip
_values = st.recursive(
    st.none() | st.booleans() | st.sampled_from((*_TEXTS, *_NUMBERS)) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_TEXTS), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def changed_json(draw: st.DrawFn, data: bytes) -> bytes:
    """Return a JSON document some of whose values are replaced, moved, repeated, scaled, renamed or left out."""
    document = [json.loads(data)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _place(draw, document)
        value = holder[key]
        scaled = [value * factor for factor in (-1, 10, 1e12, math.inf)] if isinstance(value, int | float) else [value]
        other_holder, other_key = _place(draw, document)
        another = json.loads(json.dumps(other_holder[other_key]))
        match draw(st.sampled_from(("replace", "scale", "move", "repeat", "rename", "remove"))):
            case "repeat" if isinstance(holder, list):
                holder[key:key] = [another] * draw(st.sampled_from((1, 30)))
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from(_TEXTS))] = holder.pop(key)
            case "remove" if holder is not document:
                del holder[key]
            case "move":
                holder[key] = another
            case "scale":
                holder[key] = draw(st.sampled_from(scaled))
            case _:
                holder[key] = draw(_values)
    return json.dumps(document[0]).encode("ascii")


def _place(draw: st.DrawFn, holder: Any) -> tuple[Any, Any]:
    """Return a value's holder and key: those at the end of a path that may stop early."""
    while True:
        key = draw(st.sampled_from(list(holder)) if isinstance(holder, dict) else st.integers(0, len(holder) - 1))
        value = holder[key]
        if not (isinstance(value, dict | list) and value) or draw(st.integers(0, 19)) == 19:
            return holder, key
        holder = value


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.sampled_from((0, 1, 8, 64, 1000)))
        put_in = draw(st.sampled_from((b"", 3 * data[start:end], *_TOKENS)) | st.binary(max_size=64))
        data = data[:start] + put_in + data[end:]
    return data


def changed(target: Target) -> st.SearchStrategy[bytes]:
    return st.one_of(
        *(changed_json(data) for data in target.seeds if data.startswith((b"{", b"["))),
        *map(changed_bytes, target.seeds),
    )
