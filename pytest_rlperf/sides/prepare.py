"""The sides of comparisons, from the values of ``--rlperf-against`` and ``rlperf bisect`` to the start of workers."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep, Project, Side, Sides
from pytest_rlperf.sides.cache import content_of, open_cache
from pytest_rlperf.sides.environment import (
    file_at,
    installed_versions,
    make_environment,
    parent_state,
    python_in,
    run_time_caches,
    side_args,
    side_variables,
    site_packages,
    start_path,
)
from pytest_rlperf.sides.git import NoRepositoryError, Repository, find_repository, short
from pytest_rlperf.sides.installs import (
    Install,
    copies_of,
    import_packages,
    installs_from,
    is_installed,
    loaded_from_checkouts,
    modules_of,
    normalized,
    project_above,
)
from pytest_rlperf.sides.private import check_private
from pytest_rlperf.sides.programs import build_into, needs_isolation, toolchain
from pytest_rlperf.sides.specs import Candidate, parse_spec, releases
from pytest_rlperf.sides.trees import (
    Relocation,
    Snapshot,
    TestFiles,
    differing_files,
    files_in,
    lay_out_commit,
    overlay_test_files,
    same,
    settings_file,
    take_snapshot,
)
from pytest_rlperf.sides.versions import pip_sides, python_sides

_COMPILED = (*EXTENSION_SUFFIXES, ".so", ".pyd", ".dylib", ".dll", ".o", ".obj", ".a")
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")  # of compiled code: Linux, macOS, Windows
# Files that people, git and services read, but no build. A build may read flags, tables and included files of any name.
_PROSE = (".md", ".rst")
_OF_BUILDS = {"CMakeLists.txt", "Makefile", "meson.build", "pyproject.toml", "setup.cfg", "setup.py"}  # say what to run
_RUN_UNNAMED = {"hatch_build.py", "setup.py"}  # by builds
_OF_SERVICES = {".circleci", ".github", ".gitattributes", ".gitignore", ".gitlab-ci.yml", ".pre-commit-config.yaml"}
_LIBRARY = re.compile(r"(^|/)lib[^/]*\.so(\.\d+)*$")

_CAUSE = re.compile(r"\w+Error: |: (fatal )?error: ")  # of a failed build, in pip's output


class _Version(msgspec.Struct, frozen=True):
    """The files of one side: its own tree, and its name in reports; ``own`` are the tree's own ignored files.

    ``notes`` say how the tree was copied.
    """

    label: str
    tree: Path
    own: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def _todays_notes(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note on the test files that differ and are today's on both sides, if there are any."""
    return (f"both sides have today's {_first_of(names, 3)}",) if names else ()


def _first_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _lock_notes(copied: Snapshot) -> tuple[str, ...]:
    """Return a note on the lock that a git command has left in a tree, if there is one."""
    lock = copied.lock
    if lock is None:
        return ()
    return (f"git did not remove its lock {lock}; if no git command is running, one was killed: rm {lock}",)


class Preparation:
    """Makes the sides of one run; all of its comparisons share one copy of today's tree.

    ``new_directory`` makes directories that end with the run and have names of the same length.
    """

    def __init__(self, project: Project, new_directory: Callable[[], Path], on_step: OnStep) -> None:
        self._project = project
        self._new_directory = new_directory
        self._on_step = on_step

    # ------------------------------------------------------------------ sides

    def against(self, spec_text: str) -> Sides:
        """Return the sides of the comparison that a value names; SideError with the reason if there can be none."""
        kind, parts = parse_spec(spec_text)
        if kind == "git":
            commit = self._repository.resolve(parts[0])
            return self._compared(self._checked_out(commit.sha, commit.title), sha=commit.sha)
        if kind == "dir":
            return self._compared(self._checkout(self._project.directory / parts[0]))
        if kind == "pip":
            return pip_sides(parts, self._today_with, open_cache(self._top), self._on_step)
        return python_sides(parts[0], self._project, self._top, self._on_step)

    def commit(self, sha: str) -> Sides:
        """Return the comparison with a baseline's commit, which must be a full SHA in the local history."""
        if not self._repository.has_commit(sha):
            raise SideError(
                f"commit {short(sha)} is not in the local history, and a baseline's commit is never fetched: "
                "git fetch may bring it (in CI: fetch-depth: 0)"
            )
        return self._compared(self._checked_out(sha, f"commit {short(sha)}"), sha=sha)

    def alone(self) -> Sides:
        """Return today's tree as both sides, to be measured only: a copy, or the tree itself if none can be made."""
        try:
            head, notes = self._mapped(self._head, (self.today.tree,)), self._head.notes
        except SideError:  # it is measured all the same, and the files it has read are checked again at the end
            head, notes = self._project.side("working tree", sys.executable, self._project.path, (self._top,)), ()
        return Sides(head, head, packages=(), changed=(), notes=notes)

    def between(self, base: Candidate, head: Candidate) -> Sides:
        """Return the comparison of two candidates, both with today's tests; SideError if one is not available."""
        if base.is_commit:
            one, other = (self._repository.resolve(each.spec) for each in (base, head))
            # Without the base's SHA: a search also finds a slowdown that a commit accepts.
            return self._compared(self._checked_out(one.sha, one.title), self._checked_out(other.sha, other.title))
        before, packages = self._candidate(base, head)
        after, others = self._candidate(head, base)
        return Sides(before, after, tuple(dict.fromkeys((*packages, *others))), None, ())

    # ------------------------------------------------------------------ trees

    @cached_property
    def today(self) -> Snapshot:
        """Today's tree, copied once; SideError if there is no git, or if the tree keeps changing."""
        tree = self._new_directory()
        check_private(tree)  # code is loaded from it
        return take_snapshot(self._repository, tree, self._project.also, self._on_step)

    @cached_property
    def _repository(self) -> Repository:
        repository = find_repository(self._project.rootdir)
        if not self._project.directory.resolve().is_relative_to(repository.top):
            raise SideError(f"pytest was started in {self._project.directory}: start it in the tree {repository.top}")
        return repository

    @property
    def _top(self) -> Path:
        try:
            return self._repository.top
        except NoRepositoryError:
            return self._project.rootdir.resolve()

    @cached_property
    def _tests(self) -> TestFiles:
        return TestFiles.of(self._project, self.today.top)

    @property
    def _is_dirty(self) -> bool:
        """Whether today's tree has changes besides stored baselines and the metadata of editable installs."""
        return any(not self._tests.is_baseline(name) and ".egg-info/" not in name for name in self.today.changed)

    @property
    def _head(self) -> _Version:
        label = "working tree" if self._is_dirty else f"HEAD {short(self.today.head)}"
        return _Version(label, self.today.tree, notes=_lock_notes(self.today))

    def _checked_out(self, sha: str, title: str) -> _Version:
        """Return a commit's tree, with today's test files and what git ignores."""
        today, tree = self.today, self._new_directory()
        self._on_step(f"checking out {title}")
        lay_out_commit(self._repository, sha, today, tree)
        return _Version(title, tree, notes=_todays_notes(overlay_test_files(today, tree, self._tests)))

    def _checkout(self, path: Path) -> _Version:
        """Return another checkout as it is, with today's test files."""
        if not path.is_dir():
            raise SideError(f"dir:{path} is not a directory to compare with")
        own, other = self._repository, find_repository(path)
        if other.top == own.top:
            raise SideError(f"dir:{path} is in today's own checkout; name another one, such as git worktree add makes")
        tree = self._new_directory()
        theirs = take_snapshot(other, tree, self._project.also, self._on_step)
        notes = _todays_notes(overlay_test_files(self.today, tree, self._tests))
        return _Version(str(other.top), tree, frozenset(theirs.laid), (*notes, *_lock_notes(theirs)))

    # ------------------------------------------------------------------ how a side's processes start

    def _compared(self, base: _Version, head: _Version | None = None, sha: str | None = None) -> Sides:
        """Return the comparison of a version with another, or with today's."""
        uncommitted = ["today's tree has uncommitted changes"] if head is None and self._is_dirty else []
        head = head or self._head
        trees = base.tree, head.tree
        # A new file that git does not know yet is more often an output than a source, so it comes last.
        new = self.today.new
        changed = tuple(sorted(differing_files(*trees, self._tests), key=lambda name: (name in new, name)))
        compiled = frozenset(name for name in self.today.laid if _is_compiled(self.today.tree / name))
        known = [name for name in changed if name not in new]
        sources = tuple(_sources(head.tree, known, compiled)) if compiled else ()
        # Equal trees are not measured, so they need no build.
        build = self._why_build(sorted(compiled), sources) if changed else None
        sides, built = self._both((base, head), trees, build)
        notes = (
            *uncommitted,
            *([built] if built else []),
            *self._left_behind(),
            *dict.fromkeys((*head.notes, *base.notes)),
        )
        found = Sides(sides[0], sides[1], packages=(), changed=changed, notes=notes, commit=sha)
        return replace(
            found,
            top=self.today.top,
            compiled=compiled - base.own,  # a checkout has its own
            sources=sources,
            tests=self._tests.among(self.today.tree),
            modules=self._modules(head.tree, changed, next(iter(sources), ""), sides[1]),
            libraries=frozenset(_libraries(changed, *sides)),
        )

    def _both(
        self, versions: Sequence[_Version], trees: tuple[Path, ...], build: _Build | None
    ) -> tuple[list[Side], str]:
        """Return the sides of both versions, built if they must and can be, and a note on the build, if any."""
        mapped = [self._mapped(version, trees) for version in versions]
        if build is None:
            return mapped, ""
        try:
            built = [self._built(version, trees, build) for version in versions]
        except SideError as error:
            if not build.compiled:
                raise
            lines = str(error).splitlines()
            cause = next((line.strip() for line in reversed(lines) if _CAUSE.search(line)), lines[0])
            return mapped, f"{build.reason}, but building it failed: {cause}"
        if not all(build.is_in(side.homes[0]) for side in built):
            return mapped, f"{build.reason}, but its project does not build it"
        return built, f"built on both sides: {build.reason}"

    @staticmethod
    def _modules(tree: Path, changed: tuple[str, ...], source: str, side: Side) -> dict[str, str]:
        """Return modules with their changed files; if a compiled file's ``source`` changed, every package has it."""
        packages = [name for name in files_in(tree) if PurePosixPath(name).name == "__init__.py"] if source else []
        found = dict.fromkeys(modules_of(tree, packages, side.path), source)
        return {**found, **modules_of(tree, changed, side.path), **dict(loaded_from_checkouts({*changed}))}

    def _left_behind(self) -> list[str]:
        """Return a note on ignored files that are too large to be copied, if there are any."""
        places = self.today.left_out
        if not places:
            return []
        return [
            f"git ignores {_first_of(places, 2)}, too large to be copied by default: neither side has it; "
            f"rlperf_also = {places[0]}* in pytest's settings copies it"
        ]

    def _mapped(self, version: _Version, trees: tuple[Path, ...], first: Path | None = None) -> Side:
        """Return a version in an environment like this process's, as if it had been started there."""
        place = Relocation(self.today.top, version.tree, trees)
        environment = self._new_directory()
        make_environment(environment, place, first=first)
        return self._side(version, place, environment, (version.tree,), first)

    def _side(
        self,
        version: _Version,
        place: Relocation,
        environment: Path,
        homes: tuple[Path, ...],
        first: Path | None = None,
        hidden: Iterable[str] = (),
    ) -> Side:
        """Return how the processes of a version are started, in its environment and at its place."""
        project, python, settings = self._project, python_in(environment), self._project.inipath
        if place.trees:
            settings = settings_file(self.today, settings, project.rootdir, place)
        directory = place.of(project.directory)
        directory.mkdir(parents=True, exist_ok=True)
        variables = side_variables(project, place, environment)
        variables.update(run_time_caches(self._new_directory()))
        return Side(
            label=version.label,
            python=python,
            path=start_path(python, project, place, variables),
            directory=directory,
            args=side_args(project, place, settings),
            files=tuple(file_at(project, place, path) for path in project.files),
            environment=variables,
            homes=homes if first is None else (first, *homes),
            tree=place.tree if place.trees else None,
            packages=(*(() if first is None else import_packages(first)), *hidden),
        )

    # ------------------------------------------------------------------ builds

    def _why_build(self, compiled: Sequence[str], sources: Sequence[str]) -> _Build | None:
        """Return what must be built on both sides, None if the files in the trees suffice.

        The files ``compiled``, which both sides share, may have been compiled from changed ``sources``.
        """
        top = self.today.top
        known = installs_from(top)
        installs = [*known, *copies_of(self._project.rootdir, top, known)]
        for install in installs:
            if install.how == "hook":
                reason = f"the import hook of its build tool loads {install.name} from that tool's build"
                return _Build(reason, _to_build(installs))
            if install.how == "installed":
                return _Build(f"{install.name} is installed as a copy, not editable", _to_build(installs))
        projects = {found for name in compiled if (found := project_above((top / name).parent, top)) is not None}
        if sources and projects:
            reason = f"{compiled[0]}, which git ignores, is compiled, and {sources[0]} differs"
            installs = [Install(found.name, found, "path", (), ()) for found in sorted(projects)]
            return _Build(reason, tuple(installs), tuple(PurePosixPath(name).name for name in compiled))
        return None

    def _built(self, version: _Version, trees: tuple[Path, ...], build: _Build) -> Side:
        """Return a version built into an environment of its own."""
        top = self.today.top
        place = Relocation(top, version.tree, trees)
        below = sorted({install.project_dir.relative_to(top) for install in build.installs})
        self._check_tests_are_outside(build)
        isolated = needs_isolation(
            sys.executable, [tree / path for tree in trees for path in below if (tree / path).is_dir()]
        )

        pths = [pth for install in build.installs for pth in install.pths]

        def fill(directory: Path) -> None:
            original = directory / "original"  # builds write into their sources
            shutil.copytree(version.tree, original, symlinks=True)
            for name in self.today.laid:
                if _is_artefact(name):
                    (original / name).unlink(missing_ok=True)
            python = make_environment(directory / "environment", replace(place, tree=original), without=pths)
            projects = [original / path for path in below]
            build_into(python, projects, version.label, self._on_step, isolated=isolated)

        state = parent_state(), toolchain()
        key = ["built", version.label, content_of(version.tree)[0], *state, *map(str, below), str(isolated)]
        environment = open_cache(top).entry("\0".join(key), fill, self._on_step) / "environment"
        home = site_packages(environment)
        hidden = [name for install in build.installs for name in install.names if not is_installed(name, home)]
        own = self._new_directory()  # all runs share the cached environment, which leads to no run's tree
        make_environment(own, place, first=home, without=pths, hidden=hidden)
        return self._side(version, place, own, (version.tree, environment), home, hidden)

    def _check_tests_are_outside(self, build: _Build) -> None:
        for file in self._project.files:
            for install in build.installs:
                for name in install.names:
                    for source in (install.project_dir, install.project_dir / "src"):
                        if file.resolve().is_relative_to(source / name):
                            raise SideError(
                                f"{build.reason}; but {file} lies within {name}, and cannot be run beside a build of "
                                "it: move measured tests to a directory of their own"
                            )

    # ------------------------------------------------------------------ other versions of dependencies

    def _today_with(self, label: str, first: Path | None) -> Side:
        """Return today's tree with the packages of a directory before all others, if one is given."""
        try:
            version = replace(self._head, label=label)
        except NoRepositoryError:  # both sides run today's tree as it is
            environment = self._new_directory()
            make_environment(environment, first=first)
            top = self._top
            return self._side(_Version(label, top), Relocation(top, top, ()), environment, (top,), first)
        return self._mapped(version, (version.tree,), first)

    # ------------------------------------------------------------------ candidates of a search

    def _candidate(self, wanted: Candidate, other: Candidate) -> tuple[Side, tuple[str, ...]]:
        """Return the side of a release, and the packages that differ; an installed release is today's side."""
        from packaging.version import Version

        name, _, release = wanted.spec.removeprefix("pip:").partition("==")
        version = installed_versions().get(normalized(name))
        is_here = version is not None and Version(version) == Version(release)
        sides = self.against((other if is_here else wanted).spec)
        return sides.head if is_here else sides.base, sides.packages

    def find_candidates(self, spec: str) -> list[Candidate]:
        """Return the candidates for ``rlperf bisect``, the good one first; SideError if there are none."""
        if spec.startswith("pip:"):
            return releases(spec, self._on_step)
        repository = self._repository
        good, _, bad = spec.partition("..")
        if not good:
            raise SideError("no good commit is named: give GOOD[..BAD], or pip:NAME==GOOD[..BAD] for releases")
        first, last = repository.exactly(good), repository.exactly(bad or "HEAD")
        logged = repository.first_parents(first.sha, last.sha)
        if not logged:
            raise SideError(
                f"there is no commit after {good} ({short(first.sha)}) up to {last.title} ({short(last.sha)})"
            )
        changed = self._uncommitted()
        if changed:
            raise SideError(
                f"the working tree has uncommitted changes ({_first_of(changed, 3)}), which are in no commit of "
                "the search: commit them, or git stash -u"
            )
        found = [(first.sha, "", ""), *((sha, subject, f"{day} {author}") for sha, author, day, subject in logged)]
        return [Candidate(short(sha), f"commit {short(sha)}", *about) for sha, *about in found]

    def _uncommitted(self) -> list[str]:
        """Return the files that differ from HEAD, without test files, which are today's everywhere.

        New files count only if they are modules: others, such as a run's output, are hardly loaded.
        """
        new = self.today.new
        return sorted(
            name
            for name in self.today.changed
            if not self._tests.cover(name)
            and not self._tests.is_baseline(name)
            and (name.endswith(".py") or name not in new)
        )


class _Build(msgspec.Struct, frozen=True):
    """Why code must be built on both sides, the projects to build, and the compiled files they must make."""

    reason: str
    installs: tuple[Install, ...]
    compiled: tuple[str, ...] = ()

    def is_in(self, home: Path) -> bool:
        """Whether the projects have built the compiled files; a Makefile beside them may build those instead."""
        return not self.compiled or any(path.name in self.compiled for path in home.rglob("*"))


def _sources(tree: Path, changed: Iterable[str], compiled: Collection[str]) -> Iterator[str]:
    """Yield the changed files of a tree that may go into a build of ``compiled`` files.

    A module is observed when it runs, so it counts only if it is compiled as it stands, or if a build runs it.
    """
    modules = {name.partition(".")[0] for name in compiled}
    builds = (tree / name for name in files_in(tree) if PurePosixPath(name).name in _OF_BUILDS)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in builds if path.is_file()]
    for name in changed:
        path = PurePosixPath(name)
        is_run = path.name in _RUN_UNNAMED or any(_is_named(path, text) for text in texts)
        is_source = is_run or str(path.with_suffix("")) in modules
        if (is_source or path.suffix != ".py") and path.suffix not in _PROSE and _OF_SERVICES.isdisjoint(path.parts):
            yield name


def _is_named(path: PurePosixPath, text: str) -> bool:
    """Whether a text may name a module, by its file or like an import; ``core.c`` does not name ``core``."""
    if path.stem == "__init__":
        return f"{path.parent.name}/__init__.py" in text
    return path.name in text or re.search(rf"(?<![\w/-]){re.escape(path.stem)}(?![\w/-]|\.\w)", text) is not None


def _is_compiled(path: Path) -> bool:
    """Whether a file has compiled code, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_MAGIC)
    except OSError:  # a link that leads nowhere
        return False


def _libraries(changed: Iterable[str], base: Side, head: Side) -> Iterator[str]:
    """Yield the file names of shared libraries by which the trees, or the sides' builds, differ."""
    yield from (PurePosixPath(name).name for name in changed if _LIBRARY.search(name))
    if head.packages:
        built = base.homes[-1], head.homes[-1]
        found = {path.relative_to(home) for home in built for path in home.rglob("lib*.so*")}
        yield from (name.name for name in found if not same(built[0] / name, built[1] / name))


def _to_build(installs: list[Install]) -> tuple[Install, ...]:
    return tuple(install for install in installs if install.how != "path")


def _is_artefact(name: str) -> bool:
    """Whether an ignored file is from an earlier build: a new build would take a stale one for its own."""
    parts = PurePosixPath(name).parts
    return name.endswith(_COMPILED) or "build" in parts[:-1] or any(part.endswith(".egg-info") for part in parts)
