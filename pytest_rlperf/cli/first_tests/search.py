"""The modules of a project, and what a process that imports them finds."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from pytest_rlperf.cli.first_tests.drafts import Draft
from pytest_rlperf.cli.first_tests.messages import Orders, Report, SourceFile, told, written
from pytest_rlperf.errors import see
from pytest_rlperf.sides.installs import installs_from, is_project
from pytest_rlperf.sides.trees import is_environment

_TESTS = {"bench", "benchmark", "benchmarks", "example", "examples", "scripts", "test", "tests", "tutorials"}
_NOT_SEARCHED = {"doc", "docs", "build", "dist"}
_TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
_NO_CODE = ("setup.py", "noxfile.py")
# Only test modules with something that a test could measure are imported.
_BUILDS = re.compile(r"^(def _?(make|build|create|get|new|setup)|@(pytest\.)?fixture|\w+ = \[)", re.MULTILINE)
_RESTARTS = 10
_SAID_MOST = 200  # characters of a process's last output


@dataclass
class Search:
    """A search of a project: its modules, what was found, what was skipped and why, and the imported packages.

    ``known`` is the library that the project itself is, if the library already has tests.
    """

    sources: dict[str, tuple[SourceFile, Path]] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    copies: list[Path] = field(default_factory=list)  # directories of packages that are installed as copies

    @property
    def tops(self) -> set[str]:
        """Return the project's packages, and its modules outside packages."""
        return {name.partition(".")[0] for name, (source, _) in self.sources.items() if not source.is_test}

    @property
    def entries(self) -> set[Path]:
        """Return the directories that the found objects are imported from."""
        return {self.sources[each.module][1] for each in self.drafts if each.module in self.sources}


def search(root: Path, names: Iterable[str], known: Iterable[str]) -> Search:
    """Search a project for what can be measured; only among objects named ``module:name``, if there are any.

    ``known`` are libraries whose components already have tests. LookupError if no module has a given name.
    """
    result = Search()
    installed = _installed_packages(root.resolve())
    for source, entry in _sources(root.resolve(), installed):
        result.sources.setdefault(source.name, (source, entry))
    result.copies = [place for place in installed if not place.is_relative_to(root.resolve())]
    result.known = result.tops & set(known)
    wanted = [_wanted(name, result.sources) for name in names]
    result.skipped = [
        (os.path.relpath(each.path, root), "no import statement can name this module: rename it")
        for each, _ in result.sources.values()
        if not (each.is_test or is_importable(each.name))
    ]
    orders = Orders(
        root=str(root.resolve()),
        entries=list(dict.fromkeys(str(entry) for _, entry in result.sources.values())),
        sources=[
            each
            for each, _ in result.sources.values()
            if is_importable(each.name) and not (each.is_test and result.known)
        ],
        ended=[],
        wanted=wanted,
        envs_only=bool(result.known),
    )
    for _ in range(_RESTARTS):
        begun = _look(orders, result)
        if not begun or begun in orders.ended:
            break
        orders.ended.append(begun)
    _tell_of_lacking(result, wanted)
    return result


def _tell_of_lacking(result: Search, wanted: Iterable[tuple[str, str]]) -> None:
    """Add why named objects have no draft, if no other reason was reported; LookupError if none has one."""
    found = {name for draft in result.drafts for _, name in draft.uses[-1:]}
    for module, name in [each for each in wanted if each[1] not in found and not result.skipped]:
        reason = "has no step and reset, sample, update or collect: rlperf(lambda: …) measures any call of it"
        if not found:
            raise LookupError(f"{module}:{name} {reason}{see('writing-tests.md#fixtures')}")
        result.skipped.append((f"{module}:{name}", reason))


def _look(orders: Orders, result: Search) -> str:
    """Let a process search; return what it began last if that ended it, "" if it has finished."""
    found = told(
        Report,
        "from pytest_rlperf.cli.first_tests.look import main; main()",
        env=_environment(),
        given=written(orders),
    )
    begun = ""
    is_done = False
    kept = len(result.drafts), len(result.skipped)
    for report in found.facts:
        begun = report.begins or begun
        if report.draft is not None:
            result.drafts.append(report.draft)
        if report.reason:
            result.skipped.append((report.place, report.reason))
        result.imported |= {*report.loaded}
        is_done = is_done or bool(report.loaded)
        if report.unmet:
            raise LookupError(report.unmet)
    if is_done:
        return ""
    del result.drafts[kept[0] :], result.skipped[kept[1] :]
    what = os.path.relpath(begun, orders.root) if begun.startswith(os.sep) else begun
    last = "".join(found.output.strip().splitlines()[-1:])[-_SAID_MOST:]
    result.skipped.append((what, f"looking at it {found.ended}{last and ': '}{last}"))
    return begun or "nothing"


def _environment() -> dict[str, str]:
    """Return the variables of a searching process: it writes no bytecode, and opens no window."""
    return {
        "MPLBACKEND": "Agg",
        "SDL_VIDEODRIVER": "dummy",
        "SDL_AUDIODRIVER": "dummy",
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _wanted(name: str, sources: Mapping[str, tuple[SourceFile, Path]]) -> tuple[str, str]:
    """Return the module and the name of a wanted object; LookupError if the project does not have the module."""
    place, _, wanted = name.partition(":")
    own = [source for source, _ in sources.values() if not source.is_test]
    for source in own:
        if wanted and (place == source.name or os.path.realpath(place) == os.path.realpath(source.path)):
            return source.name, wanted
    known = ", ".join([each.name for each in own][:10])
    what = f"no module {place} to look at" if place and wanted else f"{name} is not MODULE:NAME"
    left_out = "tests, examples and files that begin with _ are left out"
    raise LookupError(f"{what}; available: {known or 'no file'} ({left_out})")


# --------------------------------------------------------------------------- modules


def _sources(root: Path, installed: Mapping[Path, str]) -> Iterator[tuple[SourceFile, Path]]:
    """Yield the modules of a project, each with the directory to import it from, the tests' last.

    A package that is installed as a copy, as some builders do, is yielded as a whole.
    """
    for place, name in installed.items():
        if not place.is_relative_to(root):
            yield SourceFile(name, str(place / "__init__.py")), place.parent
    found = [_module(path, root, installed, is_test=is_test) for path, is_test in _files(root)]
    yield from sorted(found, key=lambda each: each[0].is_test)


def _installed_packages(root: Path) -> dict[Path, str]:
    """Return the import names of packages that are installed from a tree, by their directories."""
    from importlib.util import find_spec

    found = {}
    for install in installs_from(root):
        for name in install.names or (install.name.replace("-", "_"),):
            try:
                spec = find_spec(name)
            except (ImportError, ValueError):
                continue
            for place in (spec.submodule_search_locations or ()) if spec else ():
                found[Path(place).resolve()] = name
    return found


def _files(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a project's Python files, without documentation and environments, and whether each is a test."""
    for directory, names, files in os.walk(root):
        place = Path(directory)
        names[:] = sorted(
            name
            for name in names
            if name[0] not in "._" and name not in _NOT_SEARCHED and not is_environment(place / name)
        )
        for name in sorted(files):
            if (
                not name.endswith(".py")
                or not (place / name).is_file()
                or (name[0] == "_" and name != "__init__.py")
                or name in _NO_CODE
            ):
                continue
            is_test = bool(_TESTS & {*place.relative_to(root).parts}) or is_test_file(name)
            if not is_test or _BUILDS.search((place / name).read_text(encoding="utf-8", errors="replace")):
                yield place / name, is_test


def is_test_file(name: str) -> bool:
    """Return whether a file is a test file by its name."""
    return any(fnmatch(name, pattern) for pattern in _TEST_FILES)


def is_importable(name: str) -> bool:
    """Return whether an import statement can name a module."""
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def _module(path: Path, root: Path, installed: Mapping[Path, str], *, is_test: bool) -> tuple[SourceFile, Path]:
    """Return a module with its import name: as installed, or from the directory of its package or project."""
    for place, name in installed.items():
        if path.is_relative_to(place):
            parts = (name, *path.relative_to(place).with_suffix("").parts)
            return SourceFile(
                ".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path), is_test
            ), place.parent
    entry = path.parent
    while (entry / "__init__.py").is_file():
        entry = entry.parent
    if not is_test:
        places = [each for each in (entry, *entry.parents) if each == root or root in each.parents]
        top = next((each for each in places if each.name == "src" or each == root or is_project(each)), entry)
        is_namespaced = entry == path.parent or top.name == "src"  # in no package, or in a package in a namespace
        if is_namespaced and is_importable(".".join(path.parent.relative_to(top).parts)):
            entry = top
    parts = path.relative_to(entry).with_suffix("").parts
    return SourceFile(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path), is_test), entry
