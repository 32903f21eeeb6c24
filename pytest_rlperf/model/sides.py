"""The sides of a comparison: today's tree and its base, and how the workers of each are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

PROTOCOL = 17  # of the messages between a run and its workers; raise it if the messages change
SCRATCH = "pytest-rlperf-"  # how the name of a run's temporary directory begins

OnStep: TypeAlias = Callable[[str], None]  # receives a line on each step of preparing sides


class Side(msgspec.Struct, frozen=True):
    """How workers of one side are started, and the places that their code must come from.

    ``environment`` are changes to this process's variables; a value of None removes one. ``homes`` are the side's own
    directories: those of packages installed only for it, and its tree. ``tree`` is its copy of the tree, None if it
    runs the user's own. ``packages`` are the import packages that it has installed for itself, and others that it must
    not have though the running environment has them.
    """

    label: str
    python: str
    path: tuple[str, ...]
    directory: Path
    args: tuple[str, ...]
    files: tuple[Path, ...]
    environment: Mapping[str, str | None]
    homes: tuple[Path, ...]
    tree: Path | None = None
    packages: tuple[str, ...] = ()


class Project(msgspec.Struct, frozen=True):
    """Today's tree as the run sees it.

    ``args`` are the run's arguments as typed. ``path`` and ``variables`` are sys.path and the environment at its start.
    ``files`` hold the measured tests. ``conftests`` are the conftest files that pytest has loaded. ``test_patterns``
    are pytest's ``python_files``. ``also`` are patterns of files that git ignores and the tests need.
    """

    rootdir: Path
    directory: Path
    inipath: Path | None
    args: tuple[str, ...]
    path: tuple[str, ...]
    files: tuple[Path, ...]
    conftests: tuple[Path, ...]
    test_patterns: tuple[str, ...]
    also: tuple[str, ...]
    baseline_dir: Path
    variables: Mapping[str, str]

    def side(self, label: str, python: str, path: tuple[str, ...], homes: tuple[Path, ...]) -> Side:
        """Return today's tree as a side that an interpreter runs."""
        return Side(label, python, path, self.directory, self.args, self.files, {}, homes)


class Sides(msgspec.Struct, frozen=True):
    """Both sides of a comparison.

    ``packages`` are the import packages in which the sides differ. ``changed`` are the files in which the trees differ,
    without stored baselines; None if the sides differ in something other than files. ``modules`` are the names by which
    changed files of the tree are imported, each with its file. ``libraries`` are the file names of shared libraries
    that each side has for itself. ``notes`` are for the reader of the verdict: uncommitted changes, and further
    distributions that a resolver changed. ``commit`` is the base's full SHA, if the base is a commit of the repository.
    ``top`` is the user's own tree if neither side runs in it. ``compiled`` are files that git ignores and that have
    compiled code, today's on both sides; ``sources`` are changed files that may go into them. ``tests`` are files that
    are today's on both sides.
    """

    base: Side
    head: Side
    packages: tuple[str, ...]
    changed: tuple[str, ...] | None
    notes: tuple[str, ...]
    commit: str | None = None
    top: Path | None = None
    compiled: frozenset[str] = frozenset()
    sources: tuple[str, ...] = ()
    tests: frozenset[str] = frozenset()
    modules: Mapping[str, str] = msgspec.field(default_factory=dict)
    libraries: frozenset[str] = frozenset()

    @property
    def own(self) -> tuple[str, ...]:
        """The import packages that each side has for itself, so that no process imports them for both."""
        return tuple(dict.fromkeys((*self.packages, *self.base.packages, *self.head.packages)))
