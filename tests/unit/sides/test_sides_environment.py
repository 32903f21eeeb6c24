from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import builders
import pytest
from builders import write
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.measured import FunctionCounts
from pytest_rlperf.model.sides import Project, Side, Sides
from pytest_rlperf.observe.observer import LoadedFiles
from pytest_rlperf.reach.reads import ElsewhereError, Reads, check_loaded, compare_reads
from pytest_rlperf.reach.touch import Change
from pytest_rlperf.sides import environment, programs, versions
from pytest_rlperf.sides.environment import make_environment, site_packages, start_path
from pytest_rlperf.sides.installs import (
    copies_of,
    installs_from,
    loaded_from_checkouts,
    modules_of,
    not_installed,
    top_level,
)
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.sides.trees import Relocation

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip: python -m ensurepip")


def make_project(root: Path, **changes: Any) -> Project:
    """Return a project at ``root``: its tests and conftests are those that lie there."""
    tests, conftests = (tuple(sorted(root.rglob(pattern))) for pattern in ("test_*.py", "conftest.py"))
    return builders.project(root, **{"path": tuple(sys.path), "files": tests, "conftests": conftests, **changes})


def ask(python: str, code: str, **variables: str) -> str:
    argv = [python, "-c", code]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        argv, env={**kept, **variables}, cwd=Path(python).parent, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def file_url(path: Path, *, editable: bool = True) -> str:
    return f'{{"url": "{path.as_uri()}", "dir_info": {{"editable": {str(editable).lower()}}}}}'


def install(
    site_directory: Path, name: str, files: Mapping[str, str], direct_url: str | None = None, names: str = ""
) -> None:
    """Put a distribution into a directory of installed packages, as pip leaves it."""
    metadata = f"{name}-1.0.dist-info"
    notes = {f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    if names:
        notes[f"{metadata}/top_level.txt"] = names
    if direct_url is not None:
        notes[f"{metadata}/direct_url.json"] = direct_url
    notes[f"{metadata}/RECORD"] = "".join(f"{file},,\n" for file in [*files, *notes])
    write(site_directory, {**files, **notes})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    return directory


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    return directory


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of installed packages that the running interpreter looks through before its own."""
    directory = tmp_path / "parent"
    directory.mkdir()
    sites = environment.parent_sites()
    monkeypatch.setattr(environment, "parent_sites", lambda: [directory, *sites])
    monkeypatch.syspath_prepend(directory)
    return directory


@pytest.fixture
def place(tree: Path, base: Path) -> Relocation:
    return Relocation(tree, base, (base,))


def test_installations_are_read_from_their_own_files(tree: Path, parent: Path) -> None:
    """How a distribution of the tree is imported is read from its metadata, and nothing of it is imported."""
    write(tree, {f"{name}/lib_{name}/__init__.py": "" for name in ("plain", "finder", "hook", "copy")})
    install(parent, "lib-plain", {"_plain.pth": f"{tree / 'plain'}\n"}, file_url(tree / "plain"))
    files = {"__editable__.lib.pth": "import __editable___lib_1_finder; __editable___lib_1_finder.install()"}
    files["__editable___lib_1_finder.py"] = "raise SystemExit('imported')\n"
    install(parent, "lib-finder", files, file_url(tree / "finder"))
    files = {"_hook.pth": "import _hook; _hook.go()", "_hook.py": "raise SystemExit('imported')\n"}
    install(parent, "lib-hook", files, file_url(tree / "hook"))
    install(parent, "lib-copy", {"lib_copy/__init__.py": ""}, file_url(tree / "copy", editable=False))
    found = {install.name: (install.how, install.names, install.project_dir) for install in installs_from(tree)}
    assert found == {
        "lib-copy": ("installed", ("lib_copy",), tree / "copy"),
        "lib-finder": ("path", (), tree / "finder"),
        "lib-hook": ("hook", (), tree / "hook"),
        "lib-plain": ("path", (), tree / "plain"),
    }


def test_a_copy_from_elsewhere_is_known_by_its_name(tree: Path, parent: Path) -> None:
    """A wheel of the project counts as a copy of it, wherever it came from."""
    write(
        tree, {"pyproject.toml": "[project]\nname = 'My.Lib'\n", "libs/one/pyproject.toml": "[project]\nname = 'one'"}
    )
    install(parent, "my_lib", {"mylib/__init__.py": ""})
    install(parent, "one", {"one.py": ""}, file_url(tree, editable=True))
    found = copies_of(tree / "libs/one", tree, installs_from(tree))
    assert [(copy.name, copy.how, copy.names, copy.project_dir) for copy in found] == [
        ("my_lib", "installed", ("mylib",), tree),
    ]


def test_package_that_is_not_installed_is_read_from_pythons_message() -> None:
    """Packages that cannot be imported here are named once; a missing part of one that can be is another matter."""
    text = """
E   ModuleNotFoundError: No module named 'nowhere.part'
E   ModuleNotFoundError: No module named 'nowhere'
E   ModuleNotFoundError: No module named 'pytest.nothing'
    ModuleNotFoundError: No module named 'quoted'
ModuleNotFoundError: No module named 'elsewhere'
"""
    assert not_installed(text) == ("nowhere", "elsewhere")
    assert not_installed("") == ()


def test_path_keeps_the_parents_order(tree: Path, base: Path, place: Relocation, parent: Path, tmp_path: Path) -> None:
    """The environment's own packages come first, then the parent's, each followed by what its lines add."""
    other = tmp_path / "other"
    for directory in (tree / "src", base / "src", other, parent / "sub"):
        directory.mkdir(parents=True)
    write(parent, {"b.pth": f"# a comment\n\n{tree / 'src'}\n{tmp_path / 'missing'}\n", "a.pth": f"{other}\nsub\n"})
    directory = tmp_path / "thin"
    project = make_project(tree, path=())
    python = make_environment(directory, place)
    path = start_path(python, project, place, {})
    own = [site_packages(directory), parent, other, parent / "sub", base / "src"]
    start = path.index(str(own[0]))
    assert [Path(entry) for entry in path[start : start + 5]] == own
    assert str(tree / "src") not in path


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    def find_spec(self, name, path=None, target=None):
        place = {place!r} + "/" + name + ".py"
        return spec_from_file_location(name, place) if name in ("ours", "new") else None

sys.meta_path.append(Finder())
"""


def test_modules_of_the_tree_come_from_the_side(
    tree: Path, base: Path, place: Relocation, parent: Path, tmp_path: Path
) -> None:
    """Whatever finds a module in the user's tree, a hook, a link or a path, the side's own is loaded, or none."""
    write(tree, {"ours.py": "SIDE = 'head'", "new.py": "", "linked/__init__.py": "", "linked/part.py": "SIDE = 'head'"})
    write(base, {"ours.py": "SIDE = 'base'", "linked/__init__.py": "", "linked/part.py": "SIDE = 'base'"})
    write(parent, {"hook.pth": "import a_hook", "a_hook.py": FINDER.format(place=str(tree))})
    (parent / "linked").symlink_to(tree / "linked")
    both = Relocation(tree, base, (base, tree))
    python = make_environment(tmp_path / "thin", both)
    assert ask(python, "import ours, linked.part; print(ours.SIDE, linked.part.SIDE)") == "base base"
    code = "try:\n    import new\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    assert ask(python, code) == "new"
    assert (
        ask(python, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import ours; print(ours.SIDE)'])")
        == "base"
    )


def test_what_was_built_comes_before_the_tree(tree: Path, base: Path, parent: Path, tmp_path: Path) -> None:
    """A side's built packages win over sources on the path, and copies that it lacks are not found."""
    built = write(tmp_path / "built", {"mylib/__init__.py": "SIDE = 'built'", "space/part.py": "SIDE = 'built'"})
    write(base, {"mylib/__init__.py": "SIDE = 'source'", "space/part.py": "SIDE = 'source'"})
    write(parent, {"gone.py": "", "space/other.py": "SIDE = 'other'"})
    python = make_environment(
        tmp_path / "thin", Relocation(tree, base, (base,)), first=built, hidden=["gone"], without=[parent / "x.pth"]
    )
    assert ask(python, "import mylib; print(mylib.SIDE)", PYTHONPATH=str(base)) == "built"
    code = "import space.other, space.part; print(space.other.SIDE, space.part.SIDE)"
    assert ask(python, code, PYTHONPATH=str(base)) == "other built"
    assert (
        ask(
            python,
            "import importlib.util as u\ntry:\n    u.find_spec('gone')\nexcept ImportError:\n    print('hidden')",
        )
        == "hidden"
    )


def test_start_up_entries_are_mapped(
    tree: Path, base: Path, place: Relocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory a run was started in and its PYTHONPATH come first, those in the tree as base has them."""
    (base / "src").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    library = [entry for entry in sys.path if entry.endswith(".zip") or entry == os.path.dirname(os.__file__)]  # noqa: PTH120 - as sys.path has it
    project = make_project(tree, path=(str(tree), "src", str(tmp_path / "elsewhere"), *library, str(tree / "late")))
    python = make_environment(tmp_path / "thin", place)
    path = start_path(python, project, place, {})
    assert path[:3] == (str(base), str(base / "src"), str(tmp_path / "elsewhere"))
    assert not [entry for entry in path if Path(entry).is_relative_to(tree)]


def test_state_of_the_parent_shows_changes(parent: Path) -> None:
    """An installation or another .pth line makes environments out of date; nothing else does."""
    states = [environment.parent_state(), environment.parent_state()]
    install(parent, "another", {"another.py": ""})
    states.append(environment.parent_state())
    write(parent, {"more.pth": "/elsewhere"})
    states.append(environment.parent_state())
    assert states[0] == states[1]
    assert len(set(states)) == 3


def test_loaded_files_are_watched_ones_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are named without links; other modules are left out, and those without a file or that are known alike.

    Those of a side's own packages are never taken for alike: a process may have them from another place.
    """
    real = write(tmp_path / "real", {"watched_module.py": ""})
    elsewhere = write(tmp_path / "elsewhere", {"named_package/__init__.py": "", "unnamed_module.py": ""})
    (tmp_path / "link").symlink_to(real)
    monkeypatch.syspath_prepend(elsewhere)
    monkeypatch.syspath_prepend(tmp_path / "link")
    for name in ("watched_module", "named_package", "unnamed_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    watched = {"watched_module": str(real / "watched_module.py")}
    named = {"named_package": str(elsewhere / "named_package/__init__.py")}
    loaded = LoadedFiles([str(real)], ["named_package", "named"])
    assert loaded.now() == {**watched, **named}
    alike = frozenset(sys.modules)
    later = LoadedFiles([str(real)], ["named_package", "named"], alike)
    assert later.now() == named
    monkeypatch.delitem(sys.modules, "watched_module")
    assert loaded.now() == named
    importlib.import_module("watched_module")
    assert loaded.now() == {**watched, **named}
    monkeypatch.delitem(sys.modules, "watched_module")
    write(real, {"new_module.py": ""})
    importlib.invalidate_caches()
    monkeypatch.setitem(sys.modules, "new_module", importlib.import_module("new_module"))
    assert loaded.now() == {**named, "new_module": str(real / "new_module.py")}


def make_side(label: str, home: Path) -> Side:
    """Return a side whose code must come from ``home``."""
    return Side(label, sys.executable, (), home, (), (), {}, (home,), home)


@pytest.fixture
def sides(tree: Path, base: Path, tmp_path: Path) -> Sides:
    """Return sides that differ in core.py, which the user's own tree has as today's side."""
    head = tmp_path / "head"
    files = {"mylib/__init__.py": "", "mylib/core.py": "1", "mylib/other.py": "", "settings.cfg": "1"}
    write(base, files)
    for today in (head, tree):
        write(today, {**files, "mylib/core.py": "2", "mylib/new.py": ""})
    return Sides(make_side("v1.0", base), make_side("today", head), (), ("mylib/core.py",), (), top=tree)


def read(home: Path, *names: str) -> list[str]:
    return [str(home / name) for name in names]


@pytest.mark.parametrize(
    ("on_base", "today", "differing"),
    [
        (["mylib/__init__.py", "mylib/core.py"], ["mylib/__init__.py"], {"mylib/core.py"}),
        (["mylib/other.py"], ["mylib/other.py", "settings.cfg"], set()),
        ([], ["mylib/new.py"], {"mylib/new.py"}),
        (["mylib/missing.py"], ["nothing"], set()),
        (["mylib"], [], {"mylib"}),
    ],
    ids=["on one side", "equal files", "of one side alone", "no files", "a directory that was listed"],
)
def test_sides_differ_by_what_either_has_read(
    sides: Sides, base: Path, on_base: list[str], today: list[str], differing: set[str]
) -> None:
    """A file that any process of either side has read is compared by its content, wherever it was read."""
    found = compare_reads(sides, read(base, *on_base), read(sides.head.homes[0], *today))
    assert found.differing == differing


def test_data_that_the_sides_have_changed_counts(sides: Sides, base: Path) -> None:
    """A file of any kind is compared: settings, data, or a module that was executed and never imported."""
    write(base, {"settings.cfg": "2", "configs/ant.py": "1"})
    write(sides.head.homes[0], {"configs/ant.py": "2"})
    names = ("settings.cfg", "configs/ant.py")
    assert compare_reads(sides, read(base, *names), []) == Reads(frozenset(names), frozenset(names))


def test_a_compiled_file_that_both_sides_have_alike_is_named(sides: Sides, base: Path) -> None:
    """That is one of today's in both trees; what was built for a side is its own, though it may be equal."""
    names = ("mylib/_core.cpython-311.so", "lib/libx.so.1")
    for home in (base, sides.head.homes[0]):
        write(home, dict.fromkeys(names, ""))
    sides = replace(sides, compiled=frozenset(names[:1]))
    assert compare_reads(sides, read(base, *names), []).compiled == {names[0]}
    built = replace(sides, base=replace(sides.base, tree=None))
    assert compare_reads(built, read(base, *names), []).compiled == set()


def test_a_file_that_neither_copy_has_is_missing(sides: Sides, tree: Path) -> None:
    """A file that a process looked for, that the user has and no copy, is named."""
    write(tree, {"data/x.npz": ""})
    head = sides.head.homes[0]
    assert compare_reads(sides, [], read(head, "data/x.npz", "data/y.npz")).missing == {"data/x.npz"}


def test_a_side_must_read_its_own_files(sides: Sides, tree: Path, base: Path, tmp_path: Path, wording: Wording) -> None:
    """A file of the other side or of the user's own tree, by whatever link, is an error that names it."""
    head = sides.head.homes[0]
    (tmp_path / "link").symlink_to(tree / "mylib")
    cases: list[tuple[list[str], list[str]]] = [
        (read(head, "settings.cfg"), []),
        ([], read(base, "mylib/core.py")),
        ([], read(tree, "mylib/core.py")),
        (read(tmp_path, "link/core.py"), []),
    ]
    for on_base, today in cases:
        with wording.raises(SideError):
            compare_reads(sides, on_base, today)
    with wording.raises(SideError):
        check_loaded(sides, {"mylib.core": str(head / "mylib/core.py")}, {})
    write(tree, {".venv/pyvenv.cfg": "", ".venv/lib/numeric.py": ""})
    elsewhere = [str(tree / ".venv/lib/numeric.py"), str(tmp_path / "site-packages/x.py")]
    assert compare_reads(sides, elsewhere, elsewhere) == Reads()


def test_a_side_must_load_its_own(sides: Sides, tree: Path, tmp_path: Path, wording: Wording) -> None:
    """A module that was built for a side, or that it must not have, a library, or a changed file, from elsewhere."""
    built = write(tmp_path / "built", {"lib/mylib/__init__.py": "", "lib/mylib/core.py": "", "libtoy.so.1": ""})
    homes = (built / "lib", sides.head.homes[0], built)
    head = replace(sides.head, packages=("mylib", "gone"), homes=homes)
    both = replace(sides, head=head, libraries=frozenset({"libtoy.so.1"}), tests=frozenset({"mylib/test_it.py"}))
    own = {
        "mylib.core": str(built / "lib/mylib/core.py"),
        "mylib.test_it": str(sides.head.homes[0] / "mylib/test_it.py"),
        "mylib.plugin": str(tmp_path / "site/mylib/plugin.py"),  # of another distribution
        str(built / "libtoy.so.1"): str(built / "libtoy.so.1"),
    }
    check_loaded(both, {}, own)
    library = "/usr/lib/libtoy.so.1"
    for loaded in (
        {"mylib.core": "/site/mylib/core.py"},
        {"mylib.core": str(sides.head.homes[0] / "mylib/core.py")},
        {"gone": "/site/gone.py"},
        {library: library},
    ):
        with wording.raises(SideError):
            check_loaded(both, {}, loaded)
    changed = replace(sides, modules={"mylib.core": "mylib/core.py"})
    elsewhere = {"mylib.core": "/other/mylib/core.py"}
    for collected in ({}, elsewhere):
        with wording.raises(ElsewhereError) as caught:
            check_loaded(changed, elsewhere, {}, collected)
        assert vars(caught.value) == {"concerns_all": bool(collected)}
    check_loaded(replace(sides, modules={"mylib.new": "mylib/new.py"}), {"mylib.new": "/site/mylib/new.py"}, {})


def test_modules_of_a_tree_are_known_by_their_places(tmp_path: Path) -> None:
    """In the tree, a project, a place on the path, or a package below a project; none of the standard library."""
    tree = write(
        tmp_path, {"libs/one/setup.py": "", "python/mylib/__init__.py": "", "libs/one/lib/one/__init__.py": ""}
    )
    names = ["src/a/core.py", "python/mylib/core.py", "libs/one/lib/one/__init__.py", "more/b.py", "random.py", "x.txt"]
    assert modules_of(tree, names, [str(tree / "more")]) == {
        "src.a.core": "src/a/core.py",
        "a.core": "src/a/core.py",
        "python.mylib.core": "python/mylib/core.py",
        "mylib.core": "python/mylib/core.py",
        "libs.one.lib.one": "libs/one/lib/one/__init__.py",
        "lib.one": "libs/one/lib/one/__init__.py",
        "one": "libs/one/lib/one/__init__.py",
        "more.b": "more/b.py",
        "b": "more/b.py",
    }


def test_a_renamed_package_of_another_checkout_is_known_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever name a build gives a directory, a loaded file has the place in its checkout that this tree has, too."""
    other = write(tmp_path, {".git": "", "code/core.py": "", "code/other.py": ""})
    for name in ("core", "other"):
        module = ModuleType(f"renamed.{name}")
        module.__file__ = str(other / f"code/{name}.py")
        monkeypatch.setitem(sys.modules, f"renamed.{name}", module)
    assert dict(loaded_from_checkouts({"code/core.py"})) == {"renamed.core": "code/core.py"}


BACKEND = builders.source("sides_environment/backend.py")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a project that brings its own build backend, which needs nothing."""
    settings = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    files = {"pyproject.toml": settings, "backend.py": BACKEND, "built_thing/__init__.py": "SIDE = 'built'\n"}
    return write(tmp_path / "source", files)


@pytest.fixture
def thin(tree: Path, base: Path, tmp_path: Path) -> str:
    return make_environment(tmp_path / "thin", Relocation(tree, base, (base,)))


@needs_pip
def test_build_lands_in_the_environment(
    source: Path, thin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is installed into the side's environment, whatever pip is set to, and not into the parent's."""
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "astray"))
    monkeypatch.setenv("PIP_USER", "1")
    steps: list[str] = []
    programs.build_into(thin, [source], "v1.2", steps.append, isolated=False)
    assert ask(thin, "from built_thing import SIDE, generated; print(SIDE, generated.MADE)") == "built True"
    assert importlib.util.find_spec("built_thing") is None
    assert not (tmp_path / "astray").exists()
    assert steps[0] == "building v1.2"


def test_a_long_build_says_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a build sees that it goes on: here it ends once that is said."""
    monkeypatch.setattr(programs, "_SAID_EVERY_S", 0.05)
    said = tmp_path / "said"
    wait = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\nprint('built')"

    def say(seconds: float) -> None:
        said.write_text(str(seconds))

    done = programs.run([sys.executable, "-c", wait, said], cwd=tmp_path, limit_s=60, on_wait=say)
    assert (done.code, done.out) == (0, "built\n")
    assert float(said.read_text()) > 0


def test_a_build_depends_on_the_compiler_and_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of a compiler, or other flags, make another build of the same sources."""
    compiler = write(tmp_path, {"cc": "#!/bin/sh\necho 12.1\n"}) / "cc"
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -pthread")
    found = [programs.toolchain()]
    assert programs.toolchain() == found[0]
    write(tmp_path, {"cc": "#!/bin/sh\necho 12.2\n"})
    found.append(programs.toolchain())
    for name in ("CFLAGS", "LDFLAGS", "RUSTFLAGS", "CMAKE_ARGS", "MAKEFLAGS"):
        monkeypatch.setenv(name, "-O0")
        found.append(programs.toolchain())
    assert len(set(found)) == len(found)
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    assert programs.toolchain() not in found


def test_a_build_needs_pip(thin: str, wording: Wording, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pip the error shows the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with wording.raises(SideError):
        programs.build_into(thin, [source], "v1.2", lambda _: None, isolated=False)


def make_wheel(directory: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel of one module that knows its version."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": metadata,
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{name}-{version}.dist-info/RECORD"] = "".join(f"{file},,\n" for file in files)
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def wheels(tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only place pip looks for wheels; envlib 1.0 and numlib 1.0 are installed."""
    for name in ("envlib", "numlib"):
        install(parent, name, {f"{name}/__init__.py": "VERSION = '1.0'\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "wheels"


def pip_sides(tree: Path, scratch: Path, *requirements: str) -> tuple[Sides, list[str]]:
    """Return the sides of a tree without git, and the steps of preparing them."""
    steps: list[str] = []
    scratch.mkdir(exist_ok=True)
    preparation = Preparation(make_project(tree), lambda: Path(tempfile.mkdtemp(dir=scratch)), steps.append)
    return preparation.against("pip:" + ",".join(requirements)), steps


@needs_pip
def test_other_version_is_installed_beside_todays(
    tree: Path, wheels: Path, parent: Path, tmp_path: Path, wording: Wording
) -> None:
    """Base has the required version, head today's; the resolver's further changes are listed; the cache keeps all."""
    make_wheel(wheels, "envlib", "0.9", "numlib==0.5")
    make_wheel(wheels, "numlib", "0.5", "tinylib")
    make_wheel(wheels, "tinylib", "2.0")
    sides, steps = pip_sides(tree, tmp_path / "cache", "envlib==0.9")
    assert (sides.base.label, sides.head.label) == ("envlib 0.9", "envlib 1.0")
    assert sides.notes == wording
    assert sides.changed is None
    assert sorted(sides.packages) == ["envlib", "numlib", "tinylib"]
    code = "import envlib, numlib; print(envlib.VERSION, numlib.VERSION)"
    assert ask(sides.base.python, code) == "0.9 0.5"
    assert ask(sides.head.python, code) == "1.0 1.0"
    assert (parent / "envlib-1.0.dist-info").exists()
    assert steps[0] == "installing envlib==0.9 only for this comparison"
    again, steps = pip_sides(tree, tmp_path / "cache", "envlib==0.9")
    assert (again.base.homes, again.notes, steps) == (sides.base.homes, sides.notes, [])

    own = sides.base.homes[0]
    base = {"envlib": str(own / "envlib/__init__.py")}
    head = {"envlib": str(parent / "envlib/__init__.py")}
    check_loaded(sides, base, head)
    with wording.raises(SideError):
        check_loaded(sides, base, base)
    with wording.raises(SideError):
        check_loaded(sides, {}, {})


@needs_pip
@pytest.mark.parametrize("requirement", ["envlib==1.0", pytest.param("envlib", marks=pytest.mark.slow)])
def test_requirement_must_make_a_difference(
    tree: Path, wheels: Path, tmp_path: Path, wording: Wording, requirement: str
) -> None:
    """An installed version is an error in words."""
    with wording.raises(SideError):
        pip_sides(tree, tmp_path / "cache", requirement)


@needs_pip
def test_uninstallable_requirement_is_an_error(tree: Path, wheels: Path, tmp_path: Path, wording: Wording) -> None:
    """Pip's own message is in the error, and no environment is kept."""
    wheels.mkdir()
    with wording.raises(SideError):
        pip_sides(tree, tmp_path / "cache", "envlib==3.0")
    assert not list((tmp_path / "cache").rglob("pyvenv.cfg"))


def python_sides(tree: Path, python: str | Path) -> Sides:
    return versions.python_sides(str(python), make_project(tree), tree, lambda _: None)


def test_another_interpreter_runs_todays_tree(tree: Path, thin: str) -> None:
    """Both sides run today's tree, and are called by their interpreters."""
    write(tree, {"mylib/__init__.py": ""})
    sides = python_sides(tree, thin)
    assert sides.base.python == thin
    assert sides.base.label.endswith(f"({thin})")
    assert sides.head.label.endswith(f"({sys.executable})")
    assert sides.base.homes == sides.head.homes == (tree,)
    assert str(Path(pytest.__file__).parents[1]) in sides.base.path


def test_other_interpreter_needs_the_plugin_and_is_another(tree: Path, tmp_path: Path, wording: Wording) -> None:
    """One without pytest is an error that names what it lacks; the running one has nothing to compare with."""
    venv.create(tmp_path / "bare", symlinks=True)
    with wording.raises(SideError):
        python_sides(tree, tmp_path / "bare/bin/python")
    with wording.raises(SideError):
        python_sides(tree, sys.executable)


@pytest.mark.parametrize(
    "text",
    ["missing/python", "program", "venv/bin"],
)
def test_no_interpreter_is_an_error(tree: Path, text: str, wording: Wording) -> None:
    """A missing file, a directory and a program that is no Python are errors in words."""
    program = write(tree, {"program": "#!/bin/sh\nexit 3\n", "venv/bin/python": ""}) / "program"
    program.chmod(0o755)
    with wording.raises(SideError):
        python_sides(tree, text)


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        ({"RECORD": "pkg/a.py,,\nx.cpython-311-linux.so,,\nsix.py,,\n../../../bin/run,,\n"}, {"pkg", "x", "six"}),
        ({"RECORD": "pkg/a.py,,\n", "top_level.txt": "declared\nother\n"}, {"declared", "other"}),
        ({"SOURCES.txt": "pkg/a.py\n"}, {"pkg"}),
    ],
    ids=["listed", "declared", "without a list"],
)
def test_modules_of_a_distribution_are_read_from_its_texts(
    tmp_path: Path, files: Mapping[str, str], modules: set[str]
) -> None:
    """Packages, extensions and single files, as the distribution says itself or as its files lie."""
    write(tmp_path, {"pkg/a.py": "", **{f"its.dist-info/{name}": text for name, text in files.items()}})
    assert top_level(importlib.metadata.PathDistribution(tmp_path / "its.dist-info")) == modules


def test_functions_that_differ_in_a_release_are_those_that_a_call_enters(tmp_path: Path) -> None:
    """Also in a module of its own, and in a file that only one of them has; packages that do not differ have none."""
    old = {
        "lib/__init__.py": "def a():\n    return 1\n\n\ndef b():\n    return 1\n",
        "lib/gone.py": "def g():\n    return 1\n",
        "one.py": "def f():\n    return 1\n",
        "other/__init__.py": "def o():\n    return 1\n",
    }
    new = {
        **{name: text.replace("return 1", "return 2") for name, text in old.items() if "gone" not in name},
        "lib/new.py": "def n():\n    return 1\n",
    }
    for place, files in (("base", old), ("site", new)):
        write(tmp_path / place, files)
    base, head = (
        Side(place, sys.executable, (), tmp_path, (), (), {}, (tmp_path / place,)) for place in ("base", "tree")
    )
    change = Change(Sides(base, head, ("lib", "one"), None, ()), [tmp_path / "site"])
    counts = [
        [FunctionCounts(str(tmp_path / place / name), line, 1) for name, line in entered]
        for place, entered in (
            ("base", (("lib/__init__.py", 1), ("lib/gone.py", 1), ("one.py", 1), ("other/__init__.py", 1))),
            ("site", (("lib/__init__.py", 1), ("lib/new.py", 1), ("one.py", 1), ("other/__init__.py", 1))),
        )
    ]
    found = change.touched(change.in_packages(*counts), *counts)
    assert {(each.part.file, each.part.name, each.entries) for each in found} == {
        ("lib/__init__.py", "a", (1, 1)),
        ("lib/new.py", "n", (0, 1)),
        ("lib/gone.py", "g", (1, 0)),
        ("one.py", "f", (1, 1)),
    }
    assert not any(each.part.differs for each in found)
