"""Whose code runs: today's tree, what it is compared with, and how workers of either are started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROTOCOL = 5  # of what a run and its workers send each other; another number wherever the messages change


@dataclass(frozen=True)
class Side:
    """How workers of one side are started, and where their code must come from.

    ``environment`` is laid over this process's; a value of None removes a variable. ``homes`` are the directories
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
    """Today's tree, as the run sees it that wants it compared.

    ``args`` are the run's as typed, ``path`` is sys.path as its process started. ``files`` hold the measured tests,
    ``conftests`` are the conftest files pytest has loaded. ``test_patterns`` are pytest's ``python_files``.
    ``packages`` are the import packages the user says are under test, empty where they are to be found.
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
        """Return today's tree as run by an interpreter."""
        return Side(label, python, path, self.directory, self.args, self.files, {}, homes)


@dataclass(frozen=True)
class Sides:
    """Both sides of a comparison.

    ``packages`` are the import packages under test. ``changed`` are the files by which the trees differ, tests and
    what else is the same on both sides left out; None where the sides differ by something else than files.
    ``notes`` say what a reader of the verdict should know: a dirty tree, what a resolver changed beside what was asked.
    ``commit`` is base's full SHA, where base is a commit of the repository.
    """

    base: Side
    head: Side
    packages: tuple[str, ...]
    changed: tuple[str, ...] | None
    notes: tuple[str, ...]
    commit: str | None = None
