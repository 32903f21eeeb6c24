"""The search and the trial of ``rlperf init``, without its processes for the trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from forks import run_forked

from pytest_rlperf.cli.first_tests import trial
from pytest_rlperf.cli.first_tests.drafts import Draft, makings
from pytest_rlperf.cli.first_tests.messages import Told, Tried
from pytest_rlperf.cli.first_tests.search import Search

DRAFT = Draft("mine.py:1", "mine:work", "rlperf", "test_work", (("mine", "work"),), (("first",), ("other",), ("last",)))

IMPORTS = "import os, shutil; from pytest_rlperf.cli.first_tests import look"
# Runs a text of code where nothing may be written below ``in``.
LOOK = "os.chdir(str(number)); look._refuse_writing(os.path.abspath('in')); exec(case)"
WRITES = {
    "open('in/new', 'w')": True,
    "os.mkdir('in/new')": True,
    "os.remove('in/file')": True,
    "os.remove('in/link')": True,
    "os.symlink('/nowhere', 'in/new')": True,
    "os.rename('out/file', 'in/new')": True,
    "os.rename('in/file', 'out/new')": True,
    "shutil.rmtree('in/below')": True,
    "shutil.rmtree('out')": False,
    "os.chdir('in'); shutil.rmtree('../out')": False,
    "os.symlink('in/file', 'out/new')": False,
    "open('in/link', 'a').close()": False,
    "open('in/file').close()": False,
}


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


def files_of(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, bool]]:
    """Run all that writes; return of each how it ended, what it said, and whether the files are those of before."""
    top = tmp_path_factory.mktemp("written")
    places = [top / str(number) for number in range(len(WRITES))]
    for place in places:
        for name in ("in/below", "out/below"):
            (place / name).mkdir(parents=True)
        for name in ("in/file", "in/below/file", "out/file", "out/below/file"):
            (place / name).touch()
        (place / "in/link").symlink_to(place / "out/file")
    before = [files_of(place / "in") for place in places]
    ended = run_forked(IMPORTS, LOOK, [*WRITES], top)
    stayed = [files_of(place / "in") == names for place, names in zip(places, before, strict=True)]
    return {writes: (*how, is_as_before) for writes, how, is_as_before in zip(WRITES, ended, stayed, strict=True)}


@pytest.mark.parametrize(("writes", "is_refused"), WRITES.items())
def test_a_module_that_is_imported_writes_nothing_in_the_project(
    written: dict[str, tuple[int, str, bool]], writes: str, is_refused: bool
) -> None:
    """Whatever writes, by whichever of its paths; elsewhere it may."""
    code, said, is_as_before = written[writes]
    assert ("PermissionError: rlperf init lets no module write" in said) == is_refused, said
    assert code == int(is_refused), said
    assert is_as_before
