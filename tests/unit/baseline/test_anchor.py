"""The anchor of a baseline: kept by saving, set by a command, compared with live."""

from __future__ import annotations

import re
from pathlib import Path

import builders
import pytest
from builders import git
from example import FAILED, USAGE, Example
from wording import Wording

from pytest_rlperf.baseline.schema import SCHEMA
from pytest_rlperf.baseline.store import FIRST, BaselineError, Store, keep_first, read_anchor, write_anchor
from pytest_rlperf.cli import main
from pytest_rlperf.model.notes import ComparedWithAnchor
from pytest_rlperf.model.stored import Anchor, Baseline, Provenance
from pytest_rlperf.report.wording import note_lines
from pytest_rlperf.sides.git import find_repository


def session(number: int, **changes: object) -> Provenance:
    return builders.provenance(**{"commit": f"{number}" * 40, "created": f"2026-01-0{number}T00:00:00", **changes})


def baseline(*sessions: Provenance) -> Baseline:
    return Baseline(SCHEMA, builders.MACHINE, {each.created: each for each in sessions}, {})


def test_first_stored_commit_is_the_anchor_and_stays(tmp_path: Path) -> None:
    """Later sessions do not move it, whatever they store; a command does."""
    keep_first(tmp_path, None, session(2), "A <a@example.org>")
    first = Anchor("2" * 40, "2026-01-02T00:00:00", FIRST, "A <a@example.org>")
    assert read_anchor(tmp_path) == first
    keep_first(tmp_path, baseline(session(2)), session(3), "")
    keep_first(tmp_path, baseline(session(1)), session(3), "")
    assert read_anchor(tmp_path) == first
    assert write_anchor(tmp_path, "4" * 40, "the release", "") == read_anchor(tmp_path)


@pytest.mark.parametrize(
    ("old", "now", "commit"),
    [
        pytest.param((session(2), session(1)), session(3), "1" * 40, id="the oldest that there is"),
        pytest.param((session(1, dirty=True),), session(3), "3" * 40, id="not of uncommitted changes"),
        pytest.param((session(1, commit=None),), session(3, dirty=True), None, id="none without a commit"),
    ],
)
def test_baseline_from_before_gets_its_oldest_commit(
    tmp_path: Path, old: tuple[Provenance, ...], now: Provenance, commit: str | None
) -> None:
    """Of the sessions that it still knows, and whose code git has."""
    keep_first(tmp_path, baseline(*old), now, "")
    found = read_anchor(tmp_path)
    assert (None if found is None else (found.commit, found.created)) == (
        None if commit is None else (commit, session(int(commit[0])).created)
    )


def test_an_anchor_is_a_file_for_diffs(tmp_path: Path, wording: Wording) -> None:
    """It has a line a field."""
    keep_first(tmp_path, None, session(2), "A")
    assert (tmp_path / "anchor").read_text(encoding="utf-8") == wording


@pytest.mark.parametrize(
    "content",
    [
        b'{"commit": 1, "created": "", "reason": ""}',
        b'{"commit": "\xff", "created": "", "reason": ""}',
        b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"commit": "--output=x", "created": "", "reason": ""}',
    ],
    ids=["a number", "not UTF-8", "nested too deep", "an option"],
)
def test_unreadable_anchor_names_the_way_out(tmp_path: Path, content: bytes, wording: Wording) -> None:
    """Anything but an anchor with a full SHA, which git could read as an option, is an error in words."""
    (tmp_path / "anchor").write_bytes(content)
    with wording.raises(BaselineError):
        read_anchor(tmp_path)


def test_anchor_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A directory that cannot be made is an error with the file's name, and nothing is written."""
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    with pytest.raises(BaselineError, match=r"cannot write .*file/default/anchor: "):
        write_anchor(tmp_path / "file" / "default", "4" * 40, "the release", "")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["baselines", "baselines/default", "baselines/default/anchor"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_no_link_is_followed(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    place: str,
    *,
    there: bool,
) -> None:
    """Neither the command nor saving writes through a link that a commit brings, wherever that leads."""
    outside, link = tmp_path_factory.mktemp("outside"), repository / place
    target = outside / "target"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    if there and place.endswith("anchor"):
        target.write_text("precious", encoding="utf-8")
    elif there:
        target.mkdir()
    before = sorted(outside.rglob("*"))
    assert main(["anchor", "HEAD", "--reason", "the release"]) == USAGE
    assert f"{place} is a link" in capsys.readouterr().err
    if not place.endswith("anchor"):
        with pytest.raises(BaselineError, match="is a link"):
            keep_first(repository / "baselines/default", None, session(2), "A")
    else:
        keep_first(repository / "baselines/default", None, session(2), "A")
    assert link.is_symlink()
    assert sorted(outside.rglob("*")) == before
    assert not target.is_file() or target.read_text(encoding="utf-8") == "precious"


def test_command_sets_and_shows_the_anchor(
    repository: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """With its reason; the file makes the tree no dirtier, and is no baseline of a machine."""
    head = find_repository(repository)
    assert main(["anchor", "HEAD", "--reason", "the release"]) == 0
    assert main(["anchor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1]
    assert head.head[:12] in lines[0]
    assert re.sub(r"\d{4}-\d\d-\d\d", "DAY", lines[0].replace(head.head[:12], "COMMIT")) == wording
    assert not head.is_dirty(repository / "baselines")
    store = Store(repository / "baselines", "default", builders.MACHINE)
    assert (store.others().faults, store.names()) == ([], [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["HEAD"],
        ["HEAD", "--reason", " "],
        ["nowhere", "--reason", "why"],
        ["HEAD", "--reason", "why", "--baseline", "../x"],
    ],
)
def test_command_that_cannot_be_followed_is_one_line(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], wording: Wording
) -> None:
    """It names the cause, and below it at most a place in the docs, ends with 4 and writes nothing."""
    assert main(["anchor", *arguments]) == 4
    line, *place = capsys.readouterr().err.splitlines()
    assert [line, *place] == wording
    assert all(each.startswith("see https://") for each in place)
    assert not (repository / "baselines").exists()


def test_note_names_both_commits(wording: Wording) -> None:
    """The anchor's, with its day and its reason, and that of the latest figures."""
    anchor = Anchor("1" * 40, "2026-01-02T03:04:05+00:00", "the release")
    assert note_lines([ComparedWithAnchor("default", anchor, "2" * 40)], verbose=False) == wording


def test_comparison_without_an_anchor_is_a_usage_error(tmp_path: Path, wording: Wording) -> None:
    """One sentence names the command that sets one."""
    example = Example(tmp_path, {"test_x.py": "def test_x(rlperf):\n    rlperf(lambda: None)\n"})
    example.commit()
    error = example.pytest("--rlperf-against=anchor", code=USAGE).err
    assert "rlperf anchor REF --reason TEXT" in error
    assert error == wording


@pytest.mark.slow
def test_live_pairs_with_the_anchor(tmp_path: Path) -> None:
    """The verdict is of pairs with it, whatever has been committed since; the report names it and its reason."""
    example = Example(tmp_path, {"test_x.py": "import mylib\n\ndef test_x(rlperf):\n    rlperf(mylib.work)\n"})
    commits = []
    for rounds in (20_000, 25_000, 30_000):
        example.write({"mylib.py": f"def work():\n    return sum(range({rounds}))\n"})
        commits.append(example.commit())
    write_anchor(example.root / "baselines" / "default", commits[0], "the release", "")
    run = example.pytest("--rlperf-against=anchor", code=FAILED, COLUMNS="80")
    assert run.statuses == {"test_x": "SLOWER"}
    assert run.tests["test_x"]["creep"]["ratio"] > 1.2
    assert re.search(rf"^compared .*{commits[0][:12]}", run.out, re.MULTILINE)
    assert len(run.notes(f"'default' is {commits[0][:12]} of 20")) == 1
