"""What both sides' processes have read and loaded, compared in the run."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.observe.observer import belongs_to, resolved
from pytest_rlperf.sides.installs import is_installed, project_above
from pytest_rlperf.sides.trees import SETTINGS, files_in, same

_OF_TOOLS = {".git", "__pycache__", ".pytest_cache", ".hypothesis", ".benchmarks"}


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return the digests of files' contents, empty for unreadable files."""
    found = {}
    for file in files:
        try:
            found[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            found[file] = ""
    return found


class NothingLoadedError(SideError):
    """A test has loaded nothing from the packages that differ; that says nothing about other tests."""


class Reads(msgspec.Struct, frozen=True):
    """The files in the sides' own places that a test's processes have read, and those of them that differ.

    ``compiled`` files are today's on both sides, whatever their sources. ``missing`` files are in the user's tree, but
    on neither side.
    """

    files: frozenset[str] = frozenset()
    differing: frozenset[str] = frozenset()
    compiled: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __or__(self, other: Reads) -> Reads:
        """Return what either has read."""
        return Reads(*(getattr(self, name) | getattr(other, name) for name in self.__struct_fields__))


class StrayError(SideError):
    """A test's process has loaded or read something outside its side's own places.

    It ``concerns_all`` tests if collecting them has done so, else only the test that has.
    """

    def __init__(self, text: str, *, concerns_all: bool) -> None:
        super().__init__(text)
        self.concerns_all = concerns_all


class ElsewhereError(StrayError):
    """A module was loaded from outside the tree, where its file has changed."""


class MisreadError(StrayError):
    """A file was loaded or read from the other side, or from the user's own tree; a new interpreter may avoid it."""


def check_loaded(
    sides: Sides, base: Mapping[str, str], head: Mapping[str, str], collected: Container[str] = ()
) -> None:
    """Check the files of the modules that both sides have loaded, by name.

    MisreadError if one is not the side's own, ElsewhereError if it belongs to neither side. ``collected`` are the
    modules that collecting the tests has loaded. NothingLoadedError if the base has loaded none of the packages by
    which the sides differ.
    """
    for side, loaded in ((sides.base, base), (sides.head, head)):
        check_own(sides, side, loaded, collected)
        for name, path in loaded.items():
            _check_in_tree(sides, side, name, path, collected)
    if sides.packages and not any(_home_of(sides.base, path) == 0 for path in base.values()):
        raise NothingLoadedError(
            f"the test loads no module of {', '.join(sides.packages)} on {sides.base.label}: choose a test that "
            "imports what differs between the sides"
        )


def check_own(sides: Sides, side: Side, loaded: Mapping[str, str], collected: Container[str] = ()) -> None:
    """Check that a side's process has loaded modules, whose files are given by name, from the side's own places."""
    for name, path in loaded.items():
        _check_place(sides, side, path, f"{name} is {path}", concerns_all=name in collected)
        if name == path and _home_of(side, path) is None:  # a library
            raise MisreadError(
                f"{side.label} has loaded the library {path}, not its own of that name: LD_LIBRARY_PATH may lead "
                "there, or a path that a build has left in another library",
                concerns_all=name in collected,
            )
        if not belongs_to(name, side.packages) or _home_of(side, path) == 0 or _is_test(sides, side, path):
            continue
        home, package = side.homes[0], name.partition(".")[0]
        if is_installed(name, home) or not is_installed(package, home):
            raise MisreadError(
                f"{side.label} has loaded {name} from {path}, not from what was built for it in {home}; something puts "
                "that directory on the path, or loads the module when Python starts",
                concerns_all=name in collected,
            )


def _is_test(sides: Sides, side: Side, path: str) -> bool:
    return side.tree is not None and path.removeprefix(f"{side.tree}{os.sep}") in sides.tests


def _check_in_tree(sides: Sides, side: Side, name: str, path: str, collected: Container[str]) -> None:
    """Raise ElsewhereError if a module whose file in a side's tree has changed was loaded from another place."""
    file = sides.modules.get(name)
    if file is None or sides.top is None or side.tree is None or belongs_to(name, side.packages):
        return
    if _home_of(side, path) is None and (side.tree / file).is_file():
        project = project_above((sides.top / file).parent, sides.top) or sides.top
        raise ElsewhereError(
            f"{name} is imported from {path}, not from this tree, whose {file} has changed: "
            f"pip install -e {os.path.relpath(project, sides.top)}",
            concerns_all=name in collected,
        )


def compare_reads(sides: Sides, base: Collection[str], head: Collection[str]) -> Reads:
    """Return which of their own files both sides' processes have read; MisreadError if one has read others.

    A file with one name belongs to both sides: whichever side has read it, its contents are compared.
    """
    found: dict[str, set[str]] = {name: set() for name in Reads.__struct_fields__}
    for side, named in ((sides.base, base), (sides.head, head)):
        # A link and the file that it leads to are both read.
        places_read = {os.path.realpath(path): path for path in sorted(named)} | {path: path for path in named}
        for path, found_as in places_read.items():
            home = _home_of(side, path)
            if home is None:
                _check_place(sides, side, path, found_as)
                continue
            name = path[len(str(side.homes[home])) + 1 :] or os.curdir
            places = _places(sides, home, name)
            if any(map(os.path.lexists, places)):
                found["files"].add(name)
                if not _is_same(*places):
                    found["differing"].add(name)
                elif name in sides.compiled and side.homes[home] == side.tree:
                    found["compiled"].add(name)
            elif sides.top is not None and (sides.top / name).is_file() and _OF_TOOLS.isdisjoint(Path(name).parts):
                found["missing"].add(name)
    return Reads(**{kind: frozenset(names) for kind, names in found.items()})


def changed_places(sides: Sides) -> list[tuple[str, str]]:
    """Return the places on the base and on the head of all differing files in their homes."""
    found = [
        _places(sides, home, name)
        for home, own in enumerate(zip(sides.base.homes, sides.head.homes, strict=True))
        for name in (sides.changed or () if sides.head.tree == own[1] else {*files_in(own[0]), *files_in(own[1])})
    ]
    return sorted(places for places in found if not _is_same(*places))


def places_of(sides: Sides, name: str) -> list[tuple[str, str]]:
    """Return a file's places on the base and on the head, in each home where either has it and they differ."""
    both = (_places(sides, home, name) for home in range(len(sides.head.homes)))
    return [places for places in both if any(map(os.path.lexists, places)) and not _is_same(*places)]


def _places(sides: Sides, home: int, name: str) -> tuple[str, str]:
    return f"{sides.base.homes[home]}{os.sep}{name}", f"{sides.head.homes[home]}{os.sep}{name}"


def _check_place(sides: Sides, side: Side, path: str, found: str, *, concerns_all: bool = False) -> None:
    """Raise MisreadError if a path that a side has read lies in the other side's places, or in the user's own tree."""
    if _home_of(side, path) is not None:
        return
    real = resolved(path)
    if _home_of(side, real) is not None:
        return
    other = sides.head if side is sides.base else sides.base
    theirs = _home_of(other, real)
    if theirs is not None:
        found = found.replace(path, real[len(str(other.homes[theirs])) + 1 :])
        raise MisreadError(
            f"{side.label} has read a file of {other.label}: {found}; "
            "something puts that directory on the path or hooks imports after Python has started",
            concerns_all=concerns_all,
        )
    if sides.top is None or not real.startswith(f"{sides.top}{os.sep}"):
        return
    name = real[len(str(sides.top)) + 1 :]
    if any(side.tree is not None and os.path.lexists(side.tree / name) for side in (sides.base, sides.head)):
        raise MisreadError(
            f"{side.label} has read a file of your own tree in the place of its copy: {found}; something has the path "
            "of your tree in it, such as a file of settings or a cache: name the file by its place beside the code",
            concerns_all=concerns_all,
        )


def _home_of(side: Side, path: str) -> int | None:
    """Return the index of the side's home that a path lies in, None if it is in none."""
    within = (f"{path}{os.sep}".startswith(f"{home}{os.sep}") for home in side.homes)
    return next((index for index, is_there in enumerate(within) if is_there), None)


@functools.cache
def _is_same(one: str, other: str) -> bool:
    """Whether two files are equal, cached for the run: only its processes change the copies."""
    if os.path.islink(one) and os.path.islink(other):  # noqa: PTH114
        leads = os.readlink(one), os.readlink(other)  # noqa: PTH115
        if leads[0] != leads[1] and not any(map(os.path.isabs, leads)):  # others lead into each side's own copy
            return False
    if os.path.isdir(one) and os.path.isdir(other):  # noqa: PTH112
        return _listed(one) == _listed(other)
    return same(Path(one), Path(other))


def _listed(directory: str) -> set[str]:
    """Return the names in a directory, without those that runs and tools put there."""
    return {name for name in os.listdir(directory) if name not in _OF_TOOLS and not name.startswith(SETTINGS)}  # noqa: PTH208
