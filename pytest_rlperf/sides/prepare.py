"""The sides of comparisons, from the values of ``--rlperf-against`` and ``--rlperf-bisect`` to the start of workers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep, Project, Side, Sides
from pytest_rlperf.sides.cache import Cache, open_cache
from pytest_rlperf.sides.environment import (
    hide,
    installed_versions,
    make_environment,
    mapped,
    parent_state,
    pip_sides,
    python_in,
    python_sides,
    side_args,
    side_variables,
    site_packages,
    start_path,
)
from pytest_rlperf.sides.git import Commit, Repository, find_repository, repository_around, short
from pytest_rlperf.sides.packages import Package, in_tree, normalized, packages_under_test, why_build
from pytest_rlperf.sides.programs import build_into, last_lines, needs_isolation, run_pip
from pytest_rlperf.sides.sources import Overlay, Source, make_overlay, make_tree


def prepare_sides(spec_text: str, project: Project, on_step: OnStep) -> Sides:
    """Return the sides of the comparison that ``spec_text`` names; SideError with the reason where there can be none.

    Their files are in the cache, which keeps them at least until this process ends.
    """
    kind, parts = parse_spec(spec_text)
    if kind in {"git", "dir"}:
        today = find_repository(project.rootdir)
        if kind == "git":
            source = Source(today, today.resolve(parts[0]))
        else:
            source = _checkout(project.directory / parts[0], today)
        return _Comparison.of(source, today, project, on_step).sides()
    repository = repository_around(project.rootdir)
    top = project.rootdir.resolve() if repository is None else repository.top
    if kind == "pip":
        return pip_sides(parts, project, top, open_cache(top), on_step)
    return python_sides(parts[0], project, top, on_step)


def commit_sides(sha: str, project: Project, on_step: OnStep, title: str = "commit") -> Sides:
    """Return the comparison with a baseline's commit, which must be a full SHA of the local history.

    Reports call it by ``title`` and its SHA.
    """
    repository = find_repository(project.rootdir)
    if not repository.has_commit(sha):
        raise SideError(
            f"{title} {short(sha)} is not in the local history, and a baseline's commit is never fetched: "
            "git fetch may bring it (in CI: fetch-depth: 0)"
        )
    source = Source(repository, Commit(sha, f"{title} {short(sha)}"))
    return _Comparison.of(source, repository, project, on_step).sides()


def uncommitted(project: Project, on_step: OnStep) -> list[str]:
    """Return the files that differ from HEAD, less tests and others that are today's everywhere.

    Of new files these are modules alone: others, such as the output of a run, are hardly loaded.
    """
    repository = find_repository(project.rootdir)
    source = Source(repository, Commit(repository.head, "HEAD"))
    changed = _Comparison.of(source, repository, project, on_step).changed(built=False)
    new = repository.new_files()
    return [name for name in changed if name.endswith(".py") or name not in new]


def _checkout(path: Path, today: Repository) -> Source:
    """Return another checkout as it is."""
    if not path.is_dir():
        raise SideError(f"dir:{path} names no directory to compare with")
    other = find_repository(path)
    if other.top == today.top:
        raise SideError(f"dir:{path} is in today's own checkout; name another one, such as git worktree add makes")
    return Source.working(other)


@dataclass(frozen=True)
class _Comparison:
    """One source beside today's tree."""

    source: Source
    today: Repository
    project: Project
    packages: tuple[Package, ...]
    overlay: Overlay
    cache: Cache
    on_step: OnStep
    dirty: bool  # whether today's tree has uncommitted changes

    @classmethod
    def of(cls, source: Source, today: Repository, project: Project, on_step: OnStep) -> _Comparison:
        """Return the comparison of a source with today's tree, which the run must have been started in."""
        if not in_tree(project.directory, today.top):
            raise SideError(f"pytest was started in {project.directory}: start it in the tree {today.top}")
        packages = packages_under_test(project, today.top)
        overlay = make_overlay(project, today.top, packages)
        dirty = today.is_dirty(project.baseline_dir)
        return cls(source, today, project, packages, overlay, open_cache(today.top), on_step, dirty)

    def sides(self) -> Sides:
        """Prepare both sides."""
        reason = why_build(self.packages, self.today.top)
        changed = self.changed(built=reason is not None)
        base, head = self._base_and_head(reason, same=not changed)
        return Sides(
            base=base,
            head=head,
            packages=tuple(package.name for package in self.packages),
            changed=changed,
            notes=(
                *(["today's tree has uncommitted changes"] if self.dirty else []),
                *([] if reason is None else [f"built on both sides: {reason}"]),
            ),
            commit=None if self.source.is_working else self.source.commit.sha,
        )

    def _base_and_head(self, reason: str | None, *, same: bool) -> tuple[Side, Side]:
        if reason is None:
            return self._mapped_side(), self._own_side(self._head_label())
        if same:  # equal trees are not measured, so they need no build
            return self._own_side(self.source.commit.title), self._own_side(self._head_label())
        self._check_tests_are_outside(reason)
        sources = (self.source, Source.working(self.today))
        originals = [self._original(source) for source in sources]
        below = self._project_dirs(reason)
        isolated = needs_isolation(sys.executable, [original / path for original in originals for path in below])
        labels = (self.source.commit.title, self._head_label())
        base, head = (
            self._built_side(source, original, below, label, isolated=isolated)
            for source, original, label in zip(sources, originals, labels, strict=True)
        )
        return base, head

    def _own_side(self, label: str) -> Side:
        """Return today's tree in this process's environment."""
        return self.project.side(label, sys.executable, self.project.path, (self.today.top,))

    def _mapped_side(self) -> Side:
        """Return the source's tree in an environment like this process's, had it been started there."""

        def build(directory: Path) -> None:
            self.on_step(f"checking out {self.source.commit.title}")
            tree = directory / "tree"
            make_tree(self.source, self.overlay, self.today, tree, ())
            mapping = (self.today.top, tree)
            make_environment(directory / "environment", self.packages, mapping, built=False)

        key = self._key("side", self.source.key, self.overlay.key(self.today), parent_state())
        entry = self.cache.entry(key, build, self.on_step)
        tree = entry / "tree"
        compile_as_today(self.today.top, self.today.files(), tree)
        return self._side(self.source.commit.title, tree, entry / "environment", (tree,))

    def _original(self, source: Source) -> Path:
        """Return a copy of a source's original files, which its build starts from."""

        def build(directory: Path) -> None:
            self.on_step(f"checking out {source.commit.title}")
            source.lay_out(directory / "tree")

        return self.cache.entry(self._key("original", source.key), build, self.on_step) / "tree"

    def _built_side(
        self, source: Source, original: Path, below: list[PurePosixPath], label: str, *, isolated: bool
    ) -> Side:
        """Return a source built into an environment of its own, and a tree of its tests without the built packages."""

        def build(directory: Path) -> None:
            copied = directory / "original"  # builds write into their source
            shutil.copytree(original, copied, symlinks=True)
            mapping = (self.today.top, copied)
            environment = directory / "environment"
            python = make_environment(environment, self.packages, mapping, built=True)
            build_into(python, [copied / path for path in below], self.on_step, isolated=isolated)
            copies = (package.name for package in self.packages if package.how == "installed")
            hide(environment, (name for name in copies if not _is_installed(name, site_packages(environment))))

        key = self._key("built", source.key, parent_state(), below, isolated)
        environment = self.cache.entry(key, build, self.on_step) / "environment"
        home = site_packages(environment)
        loose = [package for package in self.packages if not _is_installed(package.name, home)]
        built = [package.location for package in self.packages if package not in loose]
        without = sorted(PurePosixPath(place.relative_to(self.today.top).as_posix()) for place in built)

        def lay_out(directory: Path) -> None:
            make_tree(source, self.overlay, self.today, directory / "tree", without)

        key = self._key("tests", source.key, self.overlay.key(self.today), without)
        tree = self.cache.entry(key, lay_out, self.on_step) / "tree"
        return self._side(label, tree, environment, (home, tree) if loose else (home,))

    def _side(self, label: str, tree: Path, environment: Path, homes: tuple[Path, ...]) -> Side:
        mapping = (self.today.top, tree)
        directory = mapped(self.project.directory, mapping)
        directory.mkdir(parents=True, exist_ok=True)
        python = python_in(environment)
        variables = side_variables(self.project, mapping, environment)
        return Side(
            label=label,
            python=python,
            path=start_path(python, self.project, mapping, variables),
            directory=directory,
            args=side_args(self.project, mapping),
            files=tuple(self._mapped_file(path, mapping) for path in self.project.files),
            environment=variables,
            homes=homes,
        )

    def _mapped_file(self, path: Path, mapping: tuple[Path, Path]) -> Path:
        """Return a test file's place; a link keeps its name, which is part of the test's id."""
        if path.is_relative_to(self.project.rootdir):
            return mapped(self.project.rootdir, mapping) / path.relative_to(self.project.rootdir)
        return mapped(path, mapping)

    def changed(self, *, built: bool) -> tuple[str, ...]:
        """Return the files by which the sides differ, less the overlay's, but a build has its own."""
        alike = self.overlay.is_test if built else self.overlay.covers
        names = self.source.differing(self.today)
        return tuple(name for name in names if not alike(name) and not self.overlay.is_baseline(name))

    def _project_dirs(self, reason: str) -> list[PurePosixPath]:
        """Return the projects to build, relative to the top: those installed from the tree or in need of a build."""
        everything = packages_under_test(replace(self.project, packages=()), self.today.top)
        places = {
            package.project_dir.resolve()
            for package in (*everything, *self.packages)
            if package.project_dir is not None
            and (package.distribution is not None or why_build([package], self.today.top) is not None)
        }
        if not places:
            raise SideError(f"{reason}; but no project contains it: add a pyproject.toml or setup.py above it")
        return sorted(PurePosixPath(place.relative_to(self.today.top).as_posix()) for place in places)

    def _check_tests_are_outside(self, reason: str) -> None:
        for file in self.project.files:
            for package in self.packages:
                if file.resolve().is_relative_to(package.location.resolve()):
                    raise SideError(
                        f"{reason}; but {file} lies within {package.name}, and cannot be run beside a build of it: "
                        "move measured tests to a directory of their own"
                    )

    def _head_label(self) -> str:
        return "working tree" if self.dirty else f"HEAD {short(self.today.head)}"

    def _key(self, kind: str, *parts: object) -> str:
        return "\0".join([kind, *map(str, parts), repr(self.packages)])


def _is_installed(name: str, home: Path) -> bool:
    """Whether a package or module of that name lies in a directory of installed packages."""
    place = home.joinpath(*name.split("."))
    return place.is_dir() or any(place.parent.glob(f"{place.name}.*"))


# --------------------------------------------------------------------------- compiled modules
# A side's tree has them where today's tree has them.
#
# A process that compiles a module has another heap afterwards than one that reads it compiled, and what it runs then
# may differ in speed.


def compile_as_today(top: Path, names: Iterable[str], tree: Path) -> None:
    """Compile those modules of ``tree`` that are compiled in today's tree at ``top``, which is not written to.

    ``names`` are today's files, relative to its top.
    """
    for name in names:
        if name.endswith(".py") and _compiled(top / name).is_file() and not _compiled(tree / name).is_file():
            with contextlib.suppress(OSError, py_compile.PyCompileError):  # base may lack it
                py_compile.compile(str(tree / name), doraise=True)


def _compiled(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))


# --------------------------------------------------------------------------- --rlperf-against


_KINDS = "a git ref, pip:REQUIREMENT[,REQUIREMENT…], dir:PATH or python:PATH"


def parse_spec(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of base that a value names, and its parts; SideError with the possible forms where it names none.

    The kinds are ``git`` with a ref, ``pip`` with requirements, ``dir`` with the path of a directory, and ``python``
    with an interpreter's path, or its name on the PATH.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {"git", "pip", "dir", "python"}:
        kind, rest = "git", text
    named = rest.strip()
    if not named or named.startswith("-"):  # which git or pip would take for an option
        raise SideError(f"{text!r} names nothing to compare with: name {_KINDS}")
    if kind == "pip":
        return kind, tuple(_requirements(named))
    # Unlike this function, Path.expanduser raises where there is no such user.
    return kind, (named if kind == "git" else os.path.expanduser(named),)  # noqa: PTH111


def _requirements(text: str) -> Iterator[str]:
    """Yield the requirements in a list; a comma before an operator of versions or within brackets ends none."""
    for piece in re.split(r",(?!\s*[<>=!~]|[^\[]*\])", text):
        if not _is_requirement(piece):
            raise SideError(
                f"'pip:{text}': {piece.strip()!r} is no requirement; one begins with the name of a distribution, such "
                "as gymnasium==1.0.0; pip:gymnasium==1.0.0,numpy==2.1 has two. dir:PATH compares with the code in "
                "another checkout, python:PATH with an environment that has a file of yours installed"
            )
        yield piece.strip()


def _is_requirement(text: str) -> bool:
    try:
        return not (Requirement(text).url or "").startswith("file:")  # what it holds may be another thing every time
    except InvalidRequirement:
        return False


# --------------------------------------------------------------------------- --rlperf-bisect


_RELEASES = re.compile(r"pip:\s*(?P<name>[A-Za-z0-9][\w.-]*?)\s*==\s*(?P<good>.+?)(?:\.\.(?P<bad>.+))?")


@dataclass(frozen=True)
class Candidate:
    """A commit or a release: ``spec`` is its name for --rlperf-against; ``about`` is a commit in one line."""

    spec: str
    title: str
    about: str = ""

    def range_to(self, last: Candidate) -> str:
        """Return the range from here to another one, as --rlperf-bisect takes it."""
        return f"{self.spec}..{last.spec.rpartition('=')[2]}"


def find_candidates(spec: str, project: Project, on_step: OnStep) -> list[Candidate]:
    """Return the candidates of ``--rlperf-bisect`` in order, behind the good one; SideError where there are none."""
    if spec.startswith("pip:"):
        return _releases(spec, on_step)
    repository = find_repository(project.rootdir)
    good, _, bad = spec.partition("..")
    if not good:
        raise SideError("no good commit is named: give GOOD[..BAD], or pip:NAME==GOOD[..BAD] for releases")
    first, last = repository.exactly(good), repository.exactly(bad or "HEAD")
    logged = repository.first_parents(first.sha, last.sha)
    if not logged:
        raise SideError(f"there is no commit after {good} ({short(first.sha)}) up to {last.title} ({short(last.sha)})")
    changed = uncommitted(project, on_step)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise SideError(
            f"the working tree has uncommitted changes ({', '.join(changed[:3])}{more}), which are in no commit of the "
            "search: commit them, or git stash -u"
        )
    found = [(first.sha, ""), *((sha, f"{day} {author}: {subject}") for sha, author, day, subject in logged)]
    return [Candidate(short(sha), f"commit {short(sha)}", about) for sha, about in found]


def compared(base: Candidate, head: Candidate, project: Project, on_step: OnStep) -> Sides:
    """Return the comparison of two candidates, both with today's tests; SideError where one of them cannot be had."""
    before, packages = _side(base, head, project, on_step)
    after, others = _side(head, base, project, on_step)
    return Sides(before, after, tuple(dict.fromkeys((*packages, *others))), None, ())


def _side(wanted: Candidate, other: Candidate, project: Project, on_step: OnStep) -> tuple[Side, tuple[str, ...]]:
    """Return the side of a candidate, and the packages under test; a release that is installed is today's side."""
    name, _, release = wanted.spec.removeprefix("pip:").partition("==")
    version = installed_versions().get(normalized(name)) if release else None
    is_here = version is not None and Version(version) == Version(release)
    sides = prepare_sides((other if is_here else wanted).spec, project, on_step)
    return sides.head if is_here else sides.base, sides.packages


def _releases(spec: str, on_step: OnStep) -> list[Candidate]:
    found = _RELEASES.fullmatch(spec.strip())
    if found is None:
        raise SideError(f"{spec!r} names no releases: give pip:NAME==GOOD or pip:NAME==GOOD..BAD")
    name = found["name"]
    bad = found["bad"] or installed_versions().get(normalized(name))
    if bad is None:
        raise SideError(f"{name} is not installed, so name the last release too: pip:{name}=={found['good']}..BAD")
    try:
        first, last = Version(found["good"]), Version(bad)
        if first >= last:
            raise SideError(f"{name} {first} is no earlier release than {last}: give pip:{name}==GOOD..BAD")
        on_step(f"listing the releases of {name}")
        between = {version for version in map(Version, _listed(name)) if first < version < last}
    except InvalidVersion as error:
        raise SideError(f"{spec!r}: {error}") from None
    return [Candidate(f"pip:{name}=={version}", f"{name} {version}") for version in (first, *sorted(between), last)]


def _listed(name: str) -> list[str]:
    """Return the final releases of a distribution that pip finds."""
    completed = run_pip(sys.executable, ["index", "versions", name], f"list the releases of {name}")
    found = re.search(r"^Available versions:(.*)$", completed.out, re.MULTILINE)
    if completed.code or found is None:
        raise SideError(f"pip cannot list the releases of {name}:\n{last_lines(completed)}")
    return found[1].split(",")
