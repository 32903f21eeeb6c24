"""A run's outputs for other tools: pytest-benchmark's JSON, JUnit properties, and the run's own JSON."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import builders
import jsonschema  # type: ignore[import-untyped]
import pytest
from example import Example
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.cli import main
from pytest_rlperf.cli.command import Exit, UsageError, parse
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Fitness, Outcome, Selfcheck, SlowdownTrial, Status
from pytest_rlperf.model.measured import CounterChange
from pytest_rlperf.model.reach import ChangedPart, Kind, Touched
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.exports import benchmark_document
from pytest_rlperf.report.run_json import RunFile, selfcheck_document, written
from pytest_rlperf.report.wording import message
from pytest_rlperf.writing import OutputError, check_file, write_file

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema" / "rlperf-run.schema.json"
HOSTILE = "tests/a b.py::Test<b>::test_x[</script>|`@x`::set%0A\x1b[2J\u202e\ud800\n日本]"
MS = 1e-3
HERE = replace(builders.MACHINE, accelerators=("Made Up GPU",))
ORIGIN = Provenance("c" * 40, "7" * 40, dirty=False, created="2026-01-02T03:04:05+00:00", packages={"numpy": "2.1"})


CHANGE = CounterChange("update/critic", "aten::mm", 12, 18)
slower = partial(builders.compared, status=Status.SLOWER, ratio=1.2, call_s=1.2 * MS, code="stored", counters=(CHANGE,))


def outcomes(*keys: str) -> dict[str, Outcome]:
    return {key: slower(key, message=f"why\n{key}") for key in keys}


def test_unwritable_places_are_told_beforehand(tmp_path: Path, wording: Wording) -> None:
    """Each with the option, the path, the reason and the way out; what can be written is left as it was."""
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    below = tmp_path / "file" / "x.json"
    with wording.raises(OutputError):
        check_file("--o", below)
    with pytest.raises(OutputError, match="cannot write --o="):
        write_file("--o", below, "")
    with wording.raises(OutputError):
        check_file("--o", tmp_path)
    check_file("--o", tmp_path / "file")
    check_file("--o", tmp_path / "new" / "run.json")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["file", "new"]


def test_the_document_has_the_head_of_pytest_benchmark() -> None:
    """Its machine and commit, with ours beside them."""
    document = benchmark_document(outcomes("a.py::test_x").values(), HERE, ORIGIN)
    assert list(document) == ["machine_info", "commit_info", "benchmarks", "datetime", "version"]
    assert (document["commit_info"]["id"], document["commit_info"]["dirty"]) == ("c" * 40, False)
    assert document["machine_info"]["rlperf"]["cpu"] == "Made Up 9000"


def test_a_round_is_a_worker() -> None:
    """Statistics are of the workers' figures, in seconds per call; iterations are the calls of a slice."""
    key = "tests/test_sac.py::TestIt::test_update[256-a]"
    found = slower(key)
    workers = tuple(builders.worker(call_s * MS, items_per_call=256.0) for call_s in (1.0, 1.1, 1.2, 1.3, 1.4))
    found = replace(found, result=replace(found.result, workers=workers))
    (row,) = benchmark_document([found], HERE, ORIGIN)["benchmarks"]
    stats = row["stats"]
    assert stats["data"] == [1.0 * MS, 1.1 * MS, 1.2 * MS, 1.3 * MS, 1.4 * MS]
    assert (stats["rounds"], stats["iterations"], stats["min"], stats["max"]) == (5, 10, 1.0 * MS, 1.4 * MS)
    assert (stats["median"], stats["mean"]) == (pytest.approx(1.2 * MS), pytest.approx(1.2 * MS))
    assert stats["stddev"] == pytest.approx(0.158 * MS, rel=0.01)
    assert stats["ops"] == pytest.approx(1 / (1.2 * MS))
    assert (row["name"], row["param"], row["params"]) == ("test_update[256-a]", "256-a", None)
    assert row["group"] == "sac_update"
    told = row["extra_info"]["rlperf"]
    assert (told["verdict"], told["ratio"], told["items_per_s"]) == ("SLOWER", 1.2, pytest.approx(256 / (1.2 * MS)))


def test_pytest_benchmark_compares_our_files(tmp_path: Path) -> None:
    """`pytest-benchmark compare` shows two runs of ours side by side, with hostile names in them."""
    for name in ("one", "two"):
        document = benchmark_document(outcomes(HOSTILE, "b.py::t[x]").values(), HERE, ORIGIN)
        (tmp_path / f"{name}.json").write_text(written(document), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest_benchmark",
        "compare",
        "one.json",
        "two.json",
        "--columns=median,rounds,ops",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "benchmark 'sac_update': 4 tests" in done.stdout
    names = [line.partition("  ")[0] for line in done.stdout.splitlines() if line.startswith("t[x] ")]
    assert names[:2] == ["t[x] (one)", "t[x] (two)"]
    assert "1.2000" in done.stdout
    assert "\x1b[2J" not in done.stdout
    assert done.stderr == ""


def test_runs_read_back_as_they_were() -> None:
    """All that the model holds goes through the file and back; reasons come back in words."""
    tests = outcomes("a.py::test_é[1]", "b.py::t")
    part = ChangedPart(Kind.FUNCTION, "a.py", "f", 1, 2, was="def f():\n    1", now="def f():\n    2")
    tests["b.py::t"] = replace(tests["b.py::t"], touched=(Touched(part),))
    others: dict[str, Any] = {"provenance": ORIGIN, "failed": ("b.py::t",), "tolerances": {"b.py::t": 0.05}}
    document = builders.run_document(HERE, tests, ["a baseline"], ["a note"], **others)
    read = parse(written(document).encode(), "x")
    assert read == RunFile(
        HERE, ("a baseline",), ("a note",), {key: as_read(test) for key, test in tests.items()}, **others
    )
    assert isinstance(read, RunFile)
    (touched,) = read.tests["b.py::t"].touched
    assert (touched.part.was, touched.part.now) == (part.was, part.now)  # which no comparison of parts looks at


def as_read(test: Outcome) -> Outcome:
    reason = reasons.FullReason(test.verdict.reason.code, message(test))
    return replace(test, verdict=replace(test.verdict, reason=reason))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ("--rlperf-json",)),
        ("[1]", ()),
        ("{", ("JSON",)),
        ("\udcff", ()),
        ("[" * 100_000, ()),
        ('{"schema": 1}', ()),
        ('{"schema": "1", "kind": "run"}', ("$.schema", "'1'")),
        ('{"schema": 2, "kind": "run"}', ("version 2", "1")),
        ('{"schema": 0, "kind": "run"}', ("$.schema", "0", "1")),
        ('{"schema": 1, "kind": "run"}', ("`machine`",)),
        ('{"schema": 9, "results": {}, "machine": {}}', ("version 9",)),
    ],
)
def test_other_files_are_refused_with_the_place(text: str, values: tuple[str, ...], wording: Wording) -> None:
    """An error has the file's name, the place, the fault and the remedy."""
    with pytest.raises(UsageError) as caught:
        parse(text.encode("utf-8", "surrogateescape"), "x")
    said = str(caught.value)
    assert said.startswith("x ")
    assert [value for value in values if value not in said] == []
    assert re.sub("(not JSON): .*?;", r"\1;", said) == wording  # the cause is in Python's words


def test_impossible_figures_are_refused_with_their_place(wording: Wording) -> None:
    """A time of nothing would be divided by later, and so would one plus a tolerance."""
    document = builders.run_document(HERE, outcomes("a::b"), [], [], tolerances={"a::b": -1.0})
    with wording.raises(UsageError):
        parse(written(document).encode(), "x")
    document["tolerances"] = {}
    document["tests"]["a::b"]["result"]["workers"][3]["wall"]["call_s"] = -1.0
    text = written(document)
    with wording.raises(UsageError):
        parse(text.encode(), "x")


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def faults(document: dict[str, Any]) -> list[str]:
    """Return where a document is not as the schema says, fields that are not described included."""
    found = schema()
    for definition in found["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    assert [kind["$ref"] for kind in found["oneOf"]] == ["#/$defs/Run", "#/$defs/SelfcheckRun"]
    found["$ref"] = "#/$defs/SelfcheckRun" if document["kind"] == "selfcheck" else "#/$defs/Run"
    del found["oneOf"]  # what is wrong is told better of one kind than of none
    errors = jsonschema.Draft202012Validator(found).iter_errors(document)
    return [f"{error.json_path}: {error.message[-200:]}" for error in errors]


def test_the_latest_run_is_shown_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From any directory of the project: all of it, one test, the page; a file that is none is told from a test."""
    source = """
    def test_sum(rlperf):
        rlperf(lambda: sum(range(1000)))

    def test_max(rlperf):
        rlperf(lambda: max(1, 2))
    """
    example = Example(tmp_path, {"test_it.py": source, "deep/er/x": ""})
    monkeypatch.chdir(example.root)

    def show(*arguments: str, code: int = 0) -> str:
        assert main(["show", *arguments]) == code
        out, err = capsys.readouterr()
        return err if code else out

    assert "pytest --rlperf" in show(code=Exit.USAGE)
    run = example.pytest(*builders.ONE_CALL, plugins=("rlperf", "cacheprovider"), code=0)
    assert faults(run.document) == []
    told = re.findall(r"^  NEW +[\d.]+ .s +(\w+)", run.out, re.MULTILINE)
    assert sorted(told) == ["test_max", "test_sum"], "each when it is there"
    shown = example.rlperf("show", code=0).out
    assert all(name in shown for name in ("test_sum", "test_max", "latest.json"))
    assert "test_max" not in show("test_it.py::test_sum")
    assert show("test_sum", "--html", "page.html") == "wrote page.html\n"
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<dt>tolerance<dd>±3.0 %" in page
    assert "test_max" not in page
    (row,) = json.loads(show("test_sum", "--format=pytest-benchmark"))["benchmarks"]
    assert row["fullname"] == "test_it.py::test_sum"
    assert "test_it.py::test_max" in show("test_mux", code=Exit.USAGE)
    monkeypatch.chdir(example.root / "deep" / "er")
    assert "test_max" in show()


def test_documents_with_all_there_is_are_as_the_schema_says(wording: Wording) -> None:
    """A verdict, a baseline, phases and counters, and a self-check."""
    run = builders.run_document(HERE, outcomes(HOSTILE), ["x"], [], provenance=ORIGIN)
    assert faults(json.loads(written(run))) == []
    sample = Path(__file__).parents[1] / "samples" / "run_of_every_status.json"
    assert faults(json.loads(sample.read_bytes())) == []
    one = slower()
    check = Selfcheck(one.result, (SlowdownTrial(0.05, one.verdict, (), 3.0),))
    document = json.loads(written(selfcheck_document(HERE, {"a": check}, Fitness(0.03, False, 1))))
    assert faults(document) == []
    assert faults({**document, "schema": 2, "more": 1}) == wording


def test_the_schema_is_as_it_is_generated() -> None:
    """Field for field and type for type of the code's model; each has a description."""
    found = schema()
    generate = runpy.run_path(str(SCHEMA_FILE.with_name("generate.py")))["generate"]
    assert found == generate(found), "run: python docs/schema/generate.py"
    for name, definition in found["$defs"].items():
        assert definition["description"], name
        for field, part in definition.get("properties", {}).items():
            assert part["description"], f"{name}.{field}"


@pytest.mark.parametrize(
    "links", [[""], pytest.param(["d/rlperf/latest.json", "v/rlperf/seconds"], marks=pytest.mark.slow)]
)
def test_nothing_is_kept_through_a_link_in_the_tree(tmp_path: Path, links: list[str]) -> None:
    """Links that somebody has committed, at pytest's cache or in it, lead no file of a run out of the tree."""
    example = Example(tmp_path, {"test_it.py": "def test_it(rlperf): rlperf(lambda: sum(range(100)))\n"})
    outside = builders.write(tmp_path / "outside", {"file": "precious"})
    for link in links:
        place = example.root / ".pytest_cache" / link
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(outside / "file" if link else outside)
    example.pytest(*builders.ONE_CALL, plugins=("rlperf", "cacheprovider"), code=0)
    assert not [path for path in outside.rglob("*") if "rlperf" in path.parts]
    assert (outside / "file").read_text(encoding="utf-8") == "precious"
