"""The parts of a change that a test touches, by what processes of both sides have run and read."""

from __future__ import annotations

import dataclasses
import filecmp
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

import msgspec

from pytest_rlperf.model.measured import CounterChange, FunctionCounts
from pytest_rlperf.model.reach import MAIN, ChangedPart, Footprint, Kind, Touched
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.observe.observer import paths_of, resolved
from pytest_rlperf.observe.recorder import OWN
from pytest_rlperf.reach.bindings import ANY, REQUIRED
from pytest_rlperf.reach.differences import changed_parts
from pytest_rlperf.reach.reads import Reads, changed_places, places_of
from pytest_rlperf.reach.source import Part, source_of, spans_of, takes
from pytest_rlperf.sides.installs import is_installed

_VERSION = re.compile(rb"\s*v?\d+\.\d+\.\d+[-.\w+]*\s*")
_WORD = re.compile(r"\w+")
_VERSION_MOST = 256  # bytes


class Reached(msgspec.Struct, frozen=True):
    """The parts of a change that a test runs or reads; those that it ``executes`` are certain.

    It ``may`` also run other parts, which nothing would have noted. If it had children, what they did is not ``known``.
    Files that are only known to be ``opened`` are among the first; another test's process may have opened them.
    """

    executes: tuple[ChangedPart, ...] = ()
    may: tuple[ChangedPart, ...] = ()
    known: bool = True
    opened: frozenset[ChangedPart] = frozenset()

    @property
    def named(self) -> tuple[ChangedPart, ...]:
        """The parts that it executes, for a report: without modules that are only opened, if there are others.

        Data that is only opened is named, because a library in another language may have read it.
        """
        others = (part for part in self.executes if part not in self.opened or not part.file.endswith(".py"))
        return tuple(others) or self.executes

    @property
    def nothing(self) -> bool:
        """Whether no part of the change can affect the test."""
        return self.known and not self.executes and not self.may

    def __or__(self, other: Reached) -> Reached:
        """Return what either has reached."""
        executes = tuple(dict.fromkeys((*self.executes, *other.executes)))
        may = tuple(part for part in dict.fromkeys((*self.may, *other.may)) if part not in executes)
        read = {part for each in (self, other) for part in each.executes if part not in each.opened}
        return Reached(executes, may, self.known and other.known, (self.opened | other.opened) - read)


class Change:
    """The parts by which two sides differ, as far as they lie in their trees' sources, or in installed packages.

    If the sides differ in packages, ``installed`` are the directories of those that both would share.
    """

    def __init__(self, sides: Sides, installed: Sequence[Path] = ()) -> None:
        self._sides = sides
        self._installed = tuple(installed)
        self._found: dict[ChangedPart, tuple[Part | None, Part | None]] = {}
        self._in_packages: dict[str, list[tuple[ChangedPart, Part | None, Part | None]]] = {}

    @cached_property
    def functions(self) -> tuple[ChangedPart, ...]:
        """All functions that differ, are new or were removed."""
        return tuple(part for part, _, _ in self._sources if part.kind is Kind.FUNCTION)

    @cached_property
    def called_as(self) -> list[str]:
        """The names by which code calls a differing function, or one in the same files that may call it in turn."""
        found: set[str] = set()
        names = {_called_as(part.name) for part in self.functions}
        sources = [source_of(path) for name in {part.file for part in self.functions} for path in self._in_trees(name)]
        functions = [part for source in sources if source is not None for part in source.functions]
        words = [(_called_as(part.name), {*_WORD.findall(part.text)}) for part in functions]
        while names:
            found |= names
            names = {name for name, used in words if not names.isdisjoint(used)} - found
        return sorted(found)

    @cached_property
    def bodies(self) -> tuple[ChangedPart, ...]:
        """All bodies that differ or are new."""
        return tuple(part for part, _, now in self._sources if part.kind is Kind.BODY and now is not None)

    @cached_property
    def is_empty(self) -> bool:
        """Whether both sides have the same files, which differ in comments, docstrings and layout alone."""
        names = self._sides.changed or ()
        paths = [path for name in names for path in self._in_trees(name)]
        if not (all(path.endswith(".py") for path in paths) and all(map(os.path.isfile, paths))):
            return False
        sources = [source_of(path, annotated=True) for path in paths]
        texts = [None if source is None else source.whole for source in sources]
        return bool(names) and None not in texts and texts[::2] == texts[1::2]

    @cached_property
    def moves_files(self) -> bool:
        """Whether a side lacks a file, or has a link in its place: code may act by that without reading the file."""
        places = (Path(place) for name in self._sides.changed or () for place in self._in_trees(name))
        return any(place.is_symlink() or not place.is_file() for place in places)

    @cached_property
    def _sources(self) -> list[tuple[ChangedPart, Part | None, Part | None]]:
        """All parts that differ in the sources of both trees."""
        if None in (self._sides.base.tree, self._sides.head.tree):
            return []
        names = [name for name in self._sides.changed or () if name.endswith(".py")]
        return [found for name in names for found in _parts(name, *self._in_trees(name))]

    def _in_trees(self, name: str) -> tuple[str, str]:
        return f"{self._sides.base.tree}{os.sep}{name}", f"{self._sides.head.tree}{os.sep}{name}"

    @cached_property
    def places(self) -> list[tuple[str, str]]:
        """The places on the base and on the head of all differing files, after reading sources and version numbers.

        Nothing is read again: it would look as if a test had opened it.
        """
        found = changed_places(self._sides)
        for places in found:
            _ = [*map(source_of, places)] if places[1].endswith(".py") else _is_version(*places)
        return found

    def reached(self, reads: Reads, base: Footprint, head: Footprint) -> Reached:
        """Return the parts of the change that both sides' processes, which have read ``reads``, have reached."""
        data = {self._name(path) for path in (*base.data, *head.data)}
        opened = {self._name(path) for path in (*base.opened, *head.opened)} - data
        found = Reached(known=not (base.children or head.children))
        for name in sorted(reads.differing):
            file = self._in_tree(name)
            for places in places_of(self._sides, name):
                is_source, is_data = name.endswith(".py"), name in data or name in opened
                has_run = any(place in each.functions for place, each in zip(places, (base, head), strict=True))
                if is_source and (has_run or not is_data):  # runpy reads what it runs, as others read data
                    found |= self._reached_in(file, places, base, head)
                if (is_data or not is_source) and not _is_version(*places):
                    part = ChangedPart(Kind.FILE, file)
                    found |= Reached((part,), opened=frozenset([part] if name in opened else []))
        return found

    def _reached_in(self, file: str, places: tuple[str, str], base: Footprint, head: Footprint) -> Reached:
        """Return what both sides' processes have reached in a differing source."""
        executes, may = list[ChangedPart](), list[ChangedPart]()
        sides = tuple(zip((base, head), places, strict=True))
        lines, kept, annotated = (
            [getattr(each, what).get(path, ()) for each, path in sides] for what in ("functions", "kept", "annotated")
        )
        unseen = not (base.whole and head.whole) or base.compiled or head.compiled
        is_special = any(path in each.special for each, path in sides)
        known = set[ChangedPart]()
        loaded = {*base.files, *head.files}
        is_taken = partial(_is_taken, file, places, loaded)
        for part, was, now in _parts(file, *places, annotated=is_special, is_taken=is_taken):
            both = self._found[part] = was, now
            known.add(part)
            is_kept = any(each is not None and each.kept for each in both) or _has(both, kept)
            if part.name != MAIN and (part.kind is not Kind.FUNCTION or _has(both, lines)):
                executes.append(part)
            elif unseen or is_kept or part.name == MAIN or (None in both and _is_asked_for(part.name, loaded)):
                may.append(part)
        for part, was, now in _parts(file, *places, annotated=True) if any(annotated) else ():
            if part not in known and _has((was, now), annotated):
                (executes if _has((was, now), lines) else may).append(part)
        return Reached(tuple(executes), tuple(may))

    def in_packages(self, base: Sequence[FunctionCounts], head: Sequence[FunctionCounts]) -> tuple[ChangedPart, ...]:
        """Return the functions that a counted call enters and that differ in the packages in which the sides differ.

        They have no line of the tree that differs.
        """
        found = list[ChangedPart]()
        for name in dict.fromkeys(self._name(each.file) for each in (*head, *base) if self._installed):
            if name not in self._in_packages:
                self._in_packages[name] = self._differing(name)
            entered = [[each.line for each in side if self._name(each.file) == name] for side in (base, head)]
            for part, was, now in self._in_packages[name]:
                if _has((was, now), entered):
                    found.append(part)
                    self._found[part] = was, now
        return tuple(found)

    def _differing(self, name: str) -> list[tuple[ChangedPart, Part | None, Part | None]]:
        """Return the parts by which a file of a differing package differs; a file that a side lacks is empty there."""
        package = next((each for each in self._sides.packages if _lies_in_package(name, each)), None)
        if package is None:
            return []
        sides = self._sides.base, self._sides.head
        homes = [(home for home in (*side.homes, *self._installed) if is_installed(package, home)) for side in sides]
        before, after = (next(each, Path()) / name for each in homes)
        if before.is_file() and after.is_file() and filecmp.cmp(before, after, shallow=False):
            return []
        return [
            (dataclasses.replace(part, differs=0), was, now) for part, was, now in _parts(name, str(before), str(after))
        ]

    def touched(
        self, parts: Iterable[ChangedPart], base: Sequence[FunctionCounts], head: Sequence[FunctionCounts]
    ) -> tuple[Touched, ...]:
        """Return parts with their counts in a call on the base and on the head; those that do the most more first.

        If nothing was counted, nothing is known about entries.
        """
        parts = tuple(parts)
        named = {part.file for part in parts if part.kind is not Kind.FILE}  # which say more than that it was read
        shown = [part for part in parts if part.kind is not Kind.FILE or part.file not in named]
        found = [self._counted(part, base, head) if base and head else Touched(part) for part in shown]
        return tuple(sorted(found, key=lambda each: (each.part.kind is not Kind.FUNCTION, -each.more, -each.busiest)))

    def _counted(self, part: ChangedPart, base: Sequence[FunctionCounts], head: Sequence[FunctionCounts]) -> Touched:
        entries: list[int] = []
        calls: list[Counter[str]] = []
        for side, each in zip(self._found.get(part, (None, None)), (base, head), strict=True):
            own = [counts for counts in each if side is not None and self._lies_in(counts, part, side)]
            entries.append(sum(counts.entries for counts in own if side is not None and counts.line == side.first))
            calls.append(sum((Counter(counts.calls) for counts in own), Counter()))
        was, now = calls
        # Comprehensions and lambdas have no telling names.
        found = [CounterChange("", name, was[name], now[name]) for name in {*was, *now} if "<" not in name]
        changes = sorted((each for each in found if each.was != each.now), key=_by_extent)
        return Touched(part, (entries[0], entries[1]), tuple(changes))

    def _lies_in(self, counts: FunctionCounts, part: ChangedPart, side: Part) -> bool:
        is_function = side.kind is Kind.FUNCTION and side.first <= counts.line <= side.last
        return is_function and part.file in {self._in_tree(self._name(place)) for place in paths_of(counts.file)}

    def is_uneven(self, base: Sequence[Footprint], head: Sequence[Footprint]) -> bool:
        """Whether only one side has run, read or loaded something in the same number of calls.

        Modules of both sides count, too, if they were loaded in another order: one may act by what another has done.
        """
        both = frozenset.intersection(*(frozenset(each.loaded) for each in (*base, *head)))
        was, now = ({tuple(name for name in each.loaded if name in both) for each in side} for side in (base, head))
        return was != now or self._met(base) != self._met(head)

    def is_always_uneven(self, base: Sequence[Footprint], head: Sequence[Footprint]) -> bool:
        """Whether all of one side's processes have met what none of the other side's has.

        After different numbers of calls, chance decides what a single process meets.
        """
        return self._meets_more(base, head) or self._meets_more(head, base)

    def _meets_more(self, ours: Iterable[Footprint], theirs: Iterable[Footprint]) -> bool:
        return not set.intersection(*(self._met([each]) for each in ours)) <= self._met(theirs)

    def _met(self, footprints: Iterable[Footprint]) -> set[tuple[str, str]]:
        """Return what one side's processes have met: files, functions in them, and modules from elsewhere, by name."""
        met: set[tuple[str, str]] = set()
        for each in footprints:
            met.update(("", module) for module in each.modules)
            met.update((name, "") for name in map(self._name, each.files) if self._is_there(name))
            met.update(self._executed(each.functions))
        return met

    def _executed(self, functions: Mapping[str, Iterable[int]]) -> Iterator[tuple[str, str]]:
        """Yield the functions that have run, by their files and names, which both sides share."""
        for path, lines in functions.items():
            name = self._name(path)
            if path.endswith(".py") and not name.startswith(OWN):  # one side alone reports its test
                spans = [span for span in spans_of(path) if any(span.first <= line <= span.last for line in lines)]
                yield from ((name, span.name) for span in spans)

    def _name(self, path: str) -> str:
        """Return a file's name, in whichever of either side's places it lies."""
        path = resolved(path) if path.startswith(os.sep) else path
        homes = (*self._installed, *self._sides.base.homes, *self._sides.head.homes)
        return next((path[len(str(home)) + 1 :] for home in homes if path.startswith(f"{home}{os.sep}")), path)

    def _is_there(self, name: str) -> bool:
        return any((home / name).is_file() for side in (self._sides.base, self._sides.head) for home in side.homes)

    def _in_tree(self, name: str) -> str:
        """Return the place in the tree of a file that may have been built: the changed file with that ending."""
        changed = self._sides.changed or ()
        return name if name in changed else next((each for each in changed if each.endswith(f"/{name}")), name)


def _lies_in_package(name: str, package: str) -> bool:
    place = package.replace(".", os.sep)
    return name == f"{place}.py" or name.startswith(f"{place}{os.sep}")


def _called_as(name: str) -> str:
    """Return the name by which a function is called: its class's, if Python calls it by that, or its mangled one."""
    *outer, own = name.split(".")
    if not outer or not own.startswith("__"):
        return own
    return outer[-1] if own.endswith("__") else f"_{outer[-1].lstrip('_')}{own}"


def _by_extent(change: CounterChange) -> tuple[int, int, bool, str]:
    """Return a key that sorts the largest changes first, and among equal ones increases, then public names."""
    more = change.now - change.was
    return -abs(more), -more, change.name.rpartition(".")[2].startswith("_"), change.name


def _has(both: Iterable[Part | None], lines: Iterable[Iterable[int]]) -> bool:
    """Whether either side's part is a function that has one of that side's lines."""
    return any(
        part is not None and part.kind is Kind.FUNCTION and any(part.first <= line <= part.last for line in found)
        for part, found in zip(both, lines, strict=True)
    )


def _is_taken(file: str, places: Collection[str], loaded: Collection[str], name: str) -> bool:
    """Whether one of the loaded files takes a name from a module, or is the package's module of that name.

    The module itself, which lies at ``places``, may ask for its own names as for those of any object.
    """
    place, modules = Path(file), [Path(file).stem]
    others = [path for path in loaded if path not in places]
    if place.name == "__init__.py":
        modules = [place.parent.name, ""]
        ends = tuple(f"{os.sep}{place.parent / name}{end}" for end in (".py", f"{os.sep}__init__.py"))
        if any(path.endswith(ends) for path in others):
            return True
    return any(takes(path, (ANY,) if path in places else (ANY, *modules), name) for path in _sources(loaded))


def _is_asked_for(name: str, loaded: Collection[str]) -> bool:
    """Whether one of the loaded files goes on otherwise if a function, which a side lacks, is not there.

    Or whether a class is another, abstract or of a protocol, without this method.
    """
    owner, _, own = name.rpartition(".")
    return any(takes(path, (REQUIRED if owner else ANY,), own) for path in _sources(loaded))


def _sources(loaded: Iterable[str]) -> Iterator[str]:
    return (path for path in loaded if path.endswith(".py"))


def _parts(
    file: str,
    base: str,
    head: str,
    *,
    annotated: bool = False,
    is_taken: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[ChangedPart, Part | None, Part | None]]:
    """Yield the parts of a file that differ, or the whole file if either side's cannot be taken apart."""
    was, now = (source_of(path, annotated=annotated) for path in (base, head))
    if was is None or now is None:
        whole = Part(Kind.BODY, "", 0, 0, 0, "", frozenset(), kept=False, text="")
        yield ChangedPart(Kind.FILE, file), whole, whole
    else:
        yield from changed_parts(was, now, file, is_taken)


@cache
def _is_version(base: str, head: str) -> bool:
    """Whether two data files have only a version number in them."""
    try:
        both = Path(base), Path(head)
        is_short = all(path.stat().st_size <= _VERSION_MOST for path in both)
        return is_short and all(_VERSION.fullmatch(path.read_bytes()) for path in both)
    except OSError:
        return False
