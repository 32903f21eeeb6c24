"""The search and the trial of ``rlperf init``, without its processes for the trial."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlperf.cli.first_tests import trial
from pytest_rlperf.cli.first_tests.drafts import Draft, makings
from pytest_rlperf.cli.first_tests.messages import Told, Tried
from pytest_rlperf.cli.first_tests.search import Search

DRAFT = Draft("mine.py:1", "mine:work", "rlperf", "test_work", (("mine", "work"),), (("first",), ("other",), ("last",)))
LOOK = "import os, shutil, sys; from pytest_rlperf.cli.first_tests import look; look._refuse_writing(sys.argv[1]); "


@pytest.mark.parametrize(("of_last", "kept"), [("", "last"), ("ValueError: no", "first")])
def test_a_version_that_passes_slowly_is_kept_if_the_last_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_last: str, kept: str
) -> None:
    """The last version does least, so it is tried next; its failure is no reason to lose a test that passes."""
    runs = iter([("", 6.0), (of_last, 0.1)])

    def told(*_: object, **__: object) -> Told[Tried]:
        error, took_s = next(runs)
        facts = [
            Tried(begins="t.py::test_work"),
            Tried(ends="t.py::test_work", error=error, runs_code=True, took_s=took_s),
        ]
        return Told(facts, "ended", "")

    monkeypatch.setattr(trial, "told", told)
    found = trial.Trial(tmp_path, tmp_path / "t.py", Search(drafts=[DRAFT]), [])
    for _ in range(2):
        assert found.left() == ["test_work"]
        found.run()
    assert (found.passed(), found.left(), found.errors) == (["test_work"], [], {})
    assert f"    {kept}\n" in found.text("")


def test_a_buffer_is_given_its_capacity_whatever_it_is_by_default() -> None:
    """Otherwise the sizes to which tests fill it would be one size. It is left out if that does not work."""

    def make(capacity: int = 20_000, obs_dim: int = 3) -> None: ...

    expressions = [each.expression for each in makings("Buffer", make, {}, is_buffer=True)]
    assert expressions == ["Buffer(capacity=stored)", "Buffer()"]
    assert [each.expression for each in makings("Agent", make, {})] == ["Agent()"]


@pytest.mark.parametrize(
    ("writes", "is_refused"),
    [
        ("open('in/new', 'w')", True),
        ("os.mkdir('in/new')", True),
        ("os.remove('in/file')", True),
        ("os.remove('in/link')", True),
        ("os.symlink('/nowhere', 'in/new')", True),
        ("os.rename('out/file', 'in/new')", True),
        ("os.rename('in/file', 'out/new')", True),
        ("shutil.rmtree('in/below')", True),
        ("shutil.rmtree('out')", False),
        ("os.chdir('in'); shutil.rmtree('../out')", False),
        ("os.symlink('in/file', 'out/new')", False),
        ("open('in/link', 'a').close()", False),
        ("open('in/file').close()", False),
    ],
)
def test_a_module_that_is_imported_writes_nothing_in_the_project(tmp_path: Path, writes: str, is_refused: bool) -> None:
    """Whatever writes, by whichever of its paths; elsewhere it may."""
    for name in ("in/below", "out/below"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("in/file", "in/below/file", "out/file", "out/below/file"):
        (tmp_path / name).touch()
    (tmp_path / "in/link").symlink_to(tmp_path / "out/file")
    before = sorted((tmp_path / "in").rglob("*"))
    command = [sys.executable, "-c", LOOK + writes, str(tmp_path / "in")]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False)
    assert ("PermissionError: rlperf init lets no module write" in done.stderr) == is_refused, done.stderr
    assert done.returncode == int(is_refused), done.stderr
    assert sorted((tmp_path / "in").rglob("*")) == before
