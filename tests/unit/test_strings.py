"""Strings of baselines, of runs' JSON and of options: none becomes an option of a command, none names a place outside.

Every event that Python's audit hooks report is looked at while hostile strings go through what reads such files and
starts programs. All of them contain one word, so that no event with it is missed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import builders
import pytest
from builders import git, write

from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.cli import main
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.judged import Status
from pytest_rlperf.run.baselines import Baselines
from pytest_rlperf.sides.git import Commit, find_repository, read_allowances
from pytest_rlperf.sides.prepare import Preparation

WORD = "h0stile"
HOSTILE = (
    f"--output={WORD}",
    f"-c{WORD}=1",
    f"--upload-pack=touch {WORD}",
    f"\n--output={WORD}",
    f"HEAD\n--output={WORD}",
    f"../../{WORD}",
    f"/{WORD}",
    f"~/{WORD}",
    f"file:///{WORD}",
    f":(exclude){WORD}",
    f"$({WORD})",
    f"{WORD}\0",
    f"@{{-1}}{WORD}",
    f"a{'a' * 300}{WORD}",
)
# After these a word of a command line is never an option.
ENDS = {"--", "--end-of-options"}


class Watch:
    """The events of this process, while it is ``armed``, that have WORD in them where it must not be."""

    def __init__(self) -> None:
        self.armed = False
        self.found: list[str] = []
        self.programs = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.armed or event in {"import", "compile", "exec", "object.__getattr__", "marshal.loads"}:
            return
        if event == "subprocess.Popen":
            self.programs += 1
            _, argv, cwd, _ = cast(tuple[object, list[str], object, object], arguments)
            free = next((place for place, word in enumerate(argv) if word in ENDS), len(argv))
            # A word of several settings cannot be two words; but it must not begin one before the end of options.
            arguments = (tuple(argv[:free]), cwd)
        if WORD in repr(arguments):
            self.found.append(f"{event}{arguments!r}")


WATCH = Watch()
sys.addaudithook(WATCH)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Fail where WORD gets out of the body; the errors that the package has for its users are fine."""
    WATCH.found.clear()
    WATCH.armed = True
    try:
        with contextlib.suppress(SideError, BaselineError):
            yield
    finally:
        WATCH.armed = False
    assert WATCH.found == []


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = write(tmp_path / "tree", {"mylib.py": "1", "test_x.py": ""})
    git(top, "init", "--quiet")
    for _ in range(2):
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "--allow-empty", "--message", "change")
    return top


def preparation(top: Path) -> Preparation:
    return builders.preparation(builders.project(top, "test_x.py"))


def test_ref_of_an_option_is_never_an_option_of_git(tree: Path) -> None:
    """A ref that the user names comes after the end of options, whatever it looks like."""
    repository = find_repository(tree)
    for text in HOSTILE:
        before = WATCH.programs
        with watched():
            repository.resolve(text)
        assert WATCH.programs > before
        with watched():
            preparation(tree).against(f"git:{text}")


def test_commit_of_a_file_reaches_no_command(tree: Path) -> None:
    """Nothing but a full SHA gets to git."""
    repository, head, clone = find_repository(tree), git(tree, "rev-parse", "HEAD"), tree.parent / "clone"
    uses: tuple[Callable[[str], object], ...] = (
        repository.has_commit,
        lambda sha: preparation(tree).commit(sha),
        lambda sha: read_allowances(tree, sha),
        lambda sha: Commit(sha, "title"),
        lambda sha: repository.check_out(sha, clone),
    )
    for text in HOSTILE:
        for sha in (text, head[: 40 - len(text)] + text, f"{head}\n{text}"):
            for use in uses:
                with watched():
                    use(sha)
                assert not clone.exists()


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Yield the places of all strings in JSON, and whether it is the key that is the string there."""
    if isinstance(document, str):
        yield path, False
    elif isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key), True
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, (*path, index))


def changed(document: Any, path: tuple[Any, ...], text: str, *, key: bool) -> Any:
    if not path:
        return text
    first, rest = path[0], path[1:]
    if isinstance(document, list):
        return [
            changed(value, rest, text, key=key) if index == first else value for index, value in enumerate(document)
        ]
    if key and not rest:
        return {text if name == first else name: value for name, value in document.items()}
    return {name: changed(value, rest, text, key=key) if name == first else value for name, value in document.items()}


def use_baseline(top: Path, path: Path) -> None:
    """Do with a baseline what runs and ``rlperf`` do before they measure."""
    chosen = SimpleNamespace(baseline_dir=top / "baselines", baseline="default", save=False, against=None)
    with watched():
        baselines = Baselines(cast(Any, chosen), top)
        keys = list(baselines.own.results) if baselines.own is not None else []
        outcome = builders.outcome(builders.result(), builders.verdict(Status.SAME), builders.result())
        for key in keys:
            baselines.versions_since(key)
            baselines.counts.find(builders.result(key))
            commit = baselines.commit_of(key)
            if commit is not None:
                read_allowances(top, commit)
                preparation(top).commit(commit)
        baselines.origin(outcome)
    with watched():
        main(["show", "-v", str(path)])
