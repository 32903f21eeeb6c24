from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import git, write
from wording import Wording

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project, Side, Sides
from pytest_rlperf.sides import environment, programs
from pytest_rlperf.sides.cache import Cache
from pytest_rlperf.sides.environment import make_environment, site_packages, start_path
from pytest_rlperf.sides.loaded import check_loaded, loaded_files
from pytest_rlperf.sides.packages import Package, not_installed, packages_under_test, why_build

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip: python -m ensurepip")

SO = EXTENSION_SUFFIXES[0]


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


def found(project: Project) -> dict[str, Package]:
    return {package.name: package for package in packages_under_test(project, project.rootdir)}


def test_packages_lie_in_the_root_in_src_and_on_the_path(tree: Path) -> None:
    """Packages, modules and namespaces are under test; tests, settings, documentation and environments are not."""
    code = ("mylib/__init__.py", "learner.py", "src/space/part/__init__.py", "libs/core/cored/__init__.py")
    tests = ("test_learner.py", "conftest.py", "tests/helper.py", "checks/helper.py", "checks/test_speed.py")
    others = ("setup.py", "noxfile.py", "docs/conf.py", ".hidden/module.py", "data/numbers.csv")
    environments = ("environment/pyvenv.cfg", "environment/thing.py")
    hidden = ("code/of_the_library.py", "pluggy/notes.py")
    write(tree, dict.fromkeys((*code, *tests, *others, *environments, *hidden), ""))
    path = (str(tree / "libs/core"), str(tree / "checks"), *sys.path)
    packages = found(make_project(tree, path=path))
    assert sorted(packages) == ["cored", "learner", "mylib", "space"]
    assert packages["space"].location == tree / "src/space"
    assert packages["space"].entry == tree / "src"
    assert packages["learner"].location == tree / "learner.py"


def test_installed_packages_are_found_in_the_tree(tree: Path, parent: Path) -> None:
    """A package that is installed from the tree is known by its import name."""
    write(tree, {f"{name}/lib_{name}/__init__.py": "" for name in ("plain", "finder", "moved", "hook", "copy")})
    install(parent, "lib-plain", {"_plain.pth": f"{tree / 'plain'}\n"}, file_url(tree / "plain"))
    for name, names in (("lib-finder", "lib_finder"), ("lib-moved", "lib_moved\nelsewhere")):
        files = {f"__editable__.{name}.pth": "import __editable___lib_1_finder; __editable___lib_1_finder.install()"}
        files["__editable___lib_1_finder.py"] = "raise SystemExit('imported')\n"
        install(parent, name, files, file_url(tree / name.removeprefix("lib-")), names)
    files = {"_hook.pth": "import _hook; _hook.go()", "_hook.py": "raise SystemExit('imported')\n"}
    install(parent, "lib-hook", files, file_url(tree / "hook"))
    install(parent, "lib-copy", {"lib_copy/__init__.py": ""}, file_url(tree / "copy", editable=False))

    packages = found(make_project(tree))
    assert {name: package.how for name, package in packages.items()} == {
        "elsewhere": "hook",
        "lib_copy": "installed",
        "lib_finder": "path",
        "lib_hook": "hook",
        "lib_moved": "hook",
        "lib_plain": "path",
    }
    for name in ("plain", "finder", "moved", "hook", "copy"):
        assert packages[f"lib_{name}"].location == tree / name / f"lib_{name}"
        assert packages[f"lib_{name}"].distribution == f"lib-{name}"
        assert packages[f"lib_{name}"].project_dir == tree / name


def test_user_names_the_packages_under_test(tree: Path) -> None:
    """The ini setting overrides what is found, and may name what looks like tests."""
    write(tree, {"mylib/__init__.py": "", "other/__init__.py": "", "testing/__init__.py": "", "src/a/b/c.py": ""})
    project = make_project(tree, packages=("mylib", "testing", "a.b"))
    assert {package.name: package.location for package in packages_under_test(project, tree)} == {
        "mylib": tree / "mylib",
        "testing": tree / "testing",
        "a.b": tree / "src/a/b",
    }


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


@pytest.mark.parametrize(
    "file",
    [
        "mylib/core.py",
        "mylib/notes.txt",
        pytest.param(f"mylib/_core{SO}", id="an extension module"),
        "mylib/generated.py",
        "mylib/__pycache__/core.cpython-311.pyc",
    ],
)
def test_files_that_only_a_build_makes(tree: Path, file: str, wording: Wording) -> None:
    """Extension modules and ignored code that git has not must be built; new files that git would take need not."""
    write(tree, {"mylib/__init__.py": "", "setup.py": "", ".gitignore": "generated.py\n*.so\n*.txt\n", file: ""})
    git(tree, "init", "-q")
    git(tree, "add", "mylib/__init__.py", "setup.py")
    assert why_build(packages_under_test(make_project(tree), tree), tree) == wording


def test_path_keeps_the_parents_order(tree: Path, base: Path, parent: Path, tmp_path: Path) -> None:
    """The environment's own packages come first, then the parent's, each followed by what its lines add."""
    other = tmp_path / "other"
    for directory in (tree / "src", base / "src", other, parent / "sub"):
        directory.mkdir(parents=True)
    write(parent, {"b.pth": f"# a comment\n\n{tree / 'src'}\n{tmp_path / 'missing'}\n", "a.pth": f"{other}\nsub\n"})
    directory = tmp_path / "thin"
    project = make_project(tree, path=())
    python = make_environment(directory, (), (tree, base), built=False)
    path = start_path(python, project, (tree, base), {})
    own = [site_packages(directory), parent, other, parent / "sub", base / "src"]
    start = path.index(str(own[0]))
    assert [Path(entry) for entry in path[start : start + 5]] == own
    assert str(tree / "src") not in path


def test_hooks_of_the_tree_are_left_out(tree: Path, base: Path, parent: Path, tmp_path: Path) -> None:
    """An editable hook of a package under test does not run, that of another project does."""
    for name, place in (("ours", tree), ("theirs", tmp_path)):
        files = {f"_{name}.pth": f"import _{name}", f"_{name}.py": f"import sys; sys.{name} = True"}
        install(parent, name, files, file_url(place))
    python = make_environment(tmp_path / "thin", (), (tree, base), built=False)
    assert ask(python, "import sys; print(hasattr(sys, 'ours'), hasattr(sys, 'theirs'))") == "False True"


def test_start_up_entries_are_mapped(tree: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory a run was started in and its PYTHONPATH come first, those in the tree as base has them."""
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    library = [entry for entry in sys.path if entry.endswith(".zip") or entry == os.path.dirname(os.__file__)]  # noqa: PTH120 - as sys.path has it
    project = make_project(tree, path=(str(tree), "src", str(tmp_path / "elsewhere"), *library, str(tree / "late")))
    python = make_environment(tmp_path / "thin", (), (tree, base), built=False)
    path = start_path(python, project, (tree, base), {})
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
    """Files are named without links; other modules, and those that have no file, are left out."""
    real = write(tmp_path / "real", {"watched_module.py": ""})
    elsewhere = write(tmp_path / "elsewhere", {"named_package/__init__.py": "", "unnamed_module.py": ""})
    (tmp_path / "link").symlink_to(real)
    monkeypatch.syspath_prepend(elsewhere)
    monkeypatch.syspath_prepend(tmp_path / "link")
    for name in ("watched_module", "named_package", "unnamed_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    assert loaded_files([str(real)], ["named_package", "named"]) == {
        "watched_module": str(real / "watched_module.py"),
        "named_package": str(elsewhere / "named_package/__init__.py"),
    }


def make_side(label: str, home: Path) -> Side:
    """Return a side whose code must come from ``home``."""
    return Side(label, sys.executable, (), home, (), (), {}, (home,))


@pytest.fixture
def sides(tree: Path, base: Path) -> Sides:
    for home in (tree, base):
        write(home, {"src/mylib/__init__.py": "", "src/mylib/core.py": "", "src/mylib/other.py": "", "helper.py": ""})
    return Sides(make_side("v1.0", base), make_side("today", tree), ("mylib",), ("src/mylib/core.py",), ())


def loaded(home: Path, *names: str) -> dict[str, str]:
    """Return what a worker would say that has loaded modules of mylib."""
    files = {"mylib": str(home / "src/mylib/__init__.py")}
    return files | {f"mylib.{name}": str(home / f"src/mylib/{name}.py") for name in names}


@pytest.mark.parametrize(
    ("changed", "names", "differs"),
    [
        (("src/mylib/core.py",), ["core"], True),
        (("src/mylib/core.py",), ["other"], False),
        (("src/mylib/core.py", "src/mylib/other.py"), ["other"], True),
        ((), ["core"], False),
        (None, ["other"], True),
        (("src/mylib/table.csv",), ["other"], True),
        (("setup.py",), ["other"], True),
        (("mylib/mylib/other.py",), ["other"], True),
    ],
    ids=["loaded", "not loaded", "one loaded", "none", "no files", "data", "not of a package", "nested name"],
)
def test_code_is_equal_where_nothing_that_changed_was_loaded(
    sides: Sides, tree: Path, base: Path, changed: tuple[str, ...] | None, names: list[str], differs: bool
) -> None:
    """Sides are equal to a test only where all that changed is code that neither side has loaded."""
    sides = replace(sides, changed=changed)
    assert check_loaded(sides, loaded(base, *names), loaded(tree, *names)) is differs


def test_whose_code_is_loaded(sides: Sides, tree: Path, base: Path) -> None:
    """A module of one side alone differs; environments are no code of a tree; a side may lie within today's tree."""
    assert check_loaded(sides, loaded(base), loaded(tree, "core"))
    assert check_loaded(sides, loaded(base, "core"), loaded(tree))
    write(tree, {"venv/pyvenv.cfg": "", "venv/lib/numeric.py": ""})
    numeric = {"numeric": str(tree / "venv/lib/numeric.py")}
    assert check_loaded(sides, loaded(base, "core") | numeric, loaded(tree, "core") | numeric)
    nested = write(tree / "sides", {"src/mylib/__init__.py": "", "src/mylib/core.py": ""})
    sides = replace(sides, base=make_side("v1.0", nested))
    assert check_loaded(sides, loaded(nested, "core"), loaded(tree, "core"))
    sides = replace(sides, base=make_side("another Python", tree), changed=None)
    assert check_loaded(sides, {}, {})


def test_a_side_must_load_its_own_code(sides: Sides, tree: Path, base: Path, tmp_path: Path, wording: Wording) -> None:
    """Code of the other side, by whatever link, of neither tree, or none of the package at all is an error."""
    (base / "link").symlink_to(tree / "src/mylib")
    copy = {"mylib": str(tmp_path / "site-packages/mylib/__init__.py")}
    cases: list[tuple[dict[str, str], dict[str, str]]] = [
        ({**loaded(base), "helper": str(tree / "helper.py")}, loaded(tree)),
        (loaded(base), loaded(base)),
        ({**loaded(base), "mylib.core": str(base / "link/core.py")}, loaded(tree)),
        (loaded(base), copy),
        ({}, loaded(tree)),
    ]
    for on_base, today in cases:
        with wording.raises(SideError):
            check_loaded(sides, on_base, today)


def test_files_in_the_cache_are_as_they_were_made(
    sides: Sides, tree: Path, base: Path, tmp_path: Path, wording: Wording
) -> None:
    """A package's file that is no longer what was checked out or built is an error; the user's own may change."""

    def build(directory: Path) -> None:
        shutil.copytree(base, directory / "tree")

    (tmp_path / "cache").mkdir(mode=0o700)
    made = Cache(tmp_path / "cache").entry("key", build, print) / "tree"
    ours = replace(sides, base=make_side("v1.0", made))
    assert check_loaded(ours, loaded(made, "core"), loaded(tree, "core"))
    for place in (base, made):
        write(place, {"src/mylib/core.py": "x = 1"})
    users = replace(sides, base=make_side("v1.0", base))
    assert check_loaded(users, loaded(base, "core"), loaded(tree, "core"))
    with wording.raises(SideError):
        check_loaded(ours, loaded(made, "core"), loaded(tree, "core"))


BACKEND = builders.source("sides_environment/backend.py")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a project that brings its own build backend, which needs nothing."""
    settings = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    files = {"pyproject.toml": settings, "backend.py": BACKEND, "built_thing/__init__.py": "SIDE = 'built'\n"}
    return write(tmp_path / "source", files)


@pytest.fixture
def thin(tree: Path, base: Path, tmp_path: Path) -> str:
    return make_environment(tmp_path / "thin", (), (tree, base), built=True)


@needs_pip
def test_build_lands_in_the_environment(
    source: Path, thin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is installed into the side's environment, whatever pip is set to, and not into the parent's."""
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "astray"))
    monkeypatch.setenv("PIP_USER", "1")
    steps: list[str] = []
    programs.build_into(thin, [source], steps.append, isolated=False)
    assert ask(thin, "from built_thing import SIDE, generated; print(SIDE, generated.MADE)") == "built True"
    assert importlib.util.find_spec("built_thing") is None
    assert not (tmp_path / "astray").exists()
    assert steps == [f"building {source}"]


def test_a_build_needs_pip(thin: str, wording: Wording, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pip the error shows the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with wording.raises(SideError):
        programs.build_into(thin, [source], lambda _: None, isolated=False)


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


def pip_sides(tree: Path, cache: Path, *requirements: str) -> tuple[Sides, list[str]]:
    steps: list[str] = []
    cache.mkdir(exist_ok=True)
    return environment.pip_sides(requirements, make_project(tree), tree, Cache(cache), steps.append), steps


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
    assert sides.head.python == sys.executable
    assert (parent / "envlib-1.0.dist-info").exists()
    assert len(steps) == 1
    again, steps = pip_sides(tree, tmp_path / "cache", "envlib==0.9")
    assert (again, steps) == (sides, [])

    own = sides.base.homes[0]
    base = {"envlib": str(own / "envlib/__init__.py")}
    head = {"envlib": str(parent / "envlib/__init__.py")}
    assert check_loaded(sides, base, head)
    with wording.raises(SideError):
        check_loaded(sides, head, head)
    with wording.raises(SideError):
        check_loaded(sides, {}, {})


@needs_pip
def test_requirement_must_make_a_difference(tree: Path, wheels: Path, tmp_path: Path, wording: Wording) -> None:
    """An installed version is an error in words."""
    for requirement in ("envlib==1.0", "envlib"):
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
    return environment.python_sides(str(python), make_project(tree), tree, lambda _: None)


def test_another_interpreter_runs_todays_tree(tree: Path, thin: str) -> None:
    """Both sides run today's tree, and are called by their interpreters."""
    write(tree, {"mylib/__init__.py": ""})
    sides = python_sides(tree, thin)
    assert sides.base.python == thin
    assert sides.base.label.endswith(f"({thin})")
    assert sides.head.label.endswith(f"({sys.executable})")
    assert sides.base.homes == sides.head.homes == (tree,)
    assert sides.packages == ("mylib",)
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
