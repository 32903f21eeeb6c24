"""The sides of a comparison: today's tree and its base, and how workers of either are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

PROTOCOL = 10  # of what a run and its workers send each other; another number wherever the messages change

OnStep: TypeAlias = Callable[[str], None]  # receives a line on each step of preparing sides


@dataclass(frozen=True)
class Side:
    """How workers of one side are started, and the places their code must come from.

    ``environment`` are changes to this process's variables; a value of None removes one. ``homes`` are the directories
    that the packages under test may be loaded from.
    """

    label: str
    python: str
    path: tuple[str, ...]
    directory: Path
    args: tuple[str, ...]
    files: tuple[Path, ...]
    environment: Mapping[str, str | None]
    homes: tuple[Path, ...]


@dataclass(frozen=True)
class Project:
    """Today's tree, as the run sees it.

    ``args`` are the run's as typed, ``path`` is sys.path as its process started. ``files`` hold the measured tests,
    ``conftests`` are the conftest files pytest has loaded. ``test_patterns`` are pytest's ``python_files``.
    ``packages`` are the import packages under test that the user names; while it is empty, they are searched for.
    """

    rootdir: Path
    directory: Path
    inipath: Path | None
    args: tuple[str, ...]
    path: tuple[str, ...]
    files: tuple[Path, ...]
    conftests: tuple[Path, ...]
    test_patterns: tuple[str, ...]
    packages: tuple[str, ...]
    baseline_dir: Path

    def side(self, label: str, python: str, path: tuple[str, ...], homes: tuple[Path, ...]) -> Side:
        """Return today's tree run by an interpreter."""
        return Side(label, python, path, self.directory, self.args, self.files, {}, homes)


@dataclass(frozen=True)
class Sides:
    """Both sides of a comparison.

    ``packages`` are the import packages under test. ``changed`` are the files by which the trees differ, less tests
    and other files that are the same on both sides; None where the sides differ by something else than files.
    ``notes`` are for the reader of the verdict: uncommitted changes, further distributions that a resolver changed.
    ``commit`` is base's full SHA, where base is a commit of the repository.
    """

    base: Side
    head: Side
    packages: tuple[str, ...]
    changed: tuple[str, ...] | None
    notes: tuple[str, ...]
    commit: str | None = None
