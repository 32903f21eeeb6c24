"""Every way a package can lie in a tree and be installed from it: each side must see its own code and today's tests."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from builders import git, source
from packaging.requirements import Requirement

import pytest_rlperf
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.sides.environment import make_environment, site_packages
from pytest_rlperf.sides.programs import run_pip
from pytest_rlperf.sides.reads import Reads, compare_reads

CONFTEST = """
import pytest

@pytest.fixture
def conftest_side():
    return "{side}"
"""
TEST = """
import importlib
import mylib
from helper import HELPER

def test_speed(conftest_side):
    print("SEEN", mylib.SIDE, conftest_side, HELPER)
    for name in {beside!r}:
        print("SEEN", importlib.import_module(name).SIDE)
    for name in {new!r}:
        try:
            print("FOUND", importlib.import_module(name).__name__)
        except ModuleNotFoundError as error:
            print("MISSING", error.name)
"""
SETUP_PY = """
from setuptools import Extension, setup

setup(name="mylib", version="1.0", packages=["mylib"], ext_modules=[Extension("mylib._core", ["mylib/core.c"])])
"""
CORE_C = """
#include <Python.h>

static PyObject *side(PyObject *self, PyObject *unused) {{ return PyUnicode_FromString("{side}"); }}
static PyMethodDef methods[] = {{{{"side", side, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "_core", "", -1, methods}};
PyMODINIT_FUNC PyInit__core(void) {{ return PyModule_Create(&definition); }}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.15)
project(mylib LANGUAGES NONE)
"""
MESON = """
project('mylib', version: '1.0')
py = import('python').find_installation(pure: false)
py.install_sources('src/mylib/__init__.py', subdir: 'mylib')
"""

# Prepares the sides as a run would, in the environment that the project is installed into.
PREPARE = source("sides_layouts/prepare.py")

# Starts as a process that observes does, with pytest's own plugins alone, and reports what it has read.
RUN = """
import json, sys
start = json.loads(sys.argv[1])
sys.path[:] = start["path"]
from pytest_rlperf.sides.observer import Observer
observer = Observer(start["homes"])
import pytest
quiet = ["-q", "-s", "-p", "no:cacheprovider"]
code = pytest.main([*quiet, *start["args"], *start["files"]])
print("READ", json.dumps(observer.files()))
raise SystemExit(int(code))
"""


@dataclass(frozen=True)
class Layout:
    """How a package lies in a tree: its files with ``{side}`` in them, and how it is installed.

    ``place`` is pytest's rootdir below git's top, and ``projects`` are the directories below it that are installed.
    ``beside`` are packages under test beside ``mylib``, ``new`` are modules that only head has. ``needs`` are the
    distributions that must be installed to build it, ``tools`` the programs. ``path`` is a directory of the tree that
    a file of the environment puts on sys.path, ``variable`` one that PYTHONPATH has, and ``link`` a package that the
    environment has a link to. Where it is a ``worktree``, that is git's.
    """

    files: Mapping[str, str]
    how: tuple[str, ...]
    needs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    place: str = "."
    projects: tuple[str, ...] = (".",)
    beside: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    path: str | None = None
    variable: str | None = None
    link: str | None = None
    worktree: bool = False


def settings(backend: str, requires: str, more: str = "", name: str = "mylib") -> str:
    return (
        f'[build-system]\nrequires = ["{requires}"]\nbuild-backend = "{backend}"\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\ndescription = "it"\n{more}'
    )


EDITABLE = ("-e",)
STRICT = ("--config-settings=editable_mode=strict", "-e")
COPIED = ("--force-reinstall",)
SOURCE = 'SIDE = "{side}"\n'
TESTS = {"tests/conftest.py": CONFTEST, "tests/helper.py": 'HELPER = "{side}"\n'}
HATCHLING = settings("hatchling.build", "hatchling")
HATCH = ("hatchling>=1.26", "editables>=0.5")
SETUPTOOLS = "setuptools>=70.1"  # earlier ones need wheel beside them
WHEEL = '[tool.hatch.build.targets.wheel]\ninclude = ["mylib", "extra"]\n'
PACKAGES = '[tool.setuptools]\npackages = ["mylib", "extra"]\n'
NAMESPACE = '[tool.setuptools]\npackages = ["mylib", "space.part"]\n'
RENAMED = '[tool.setuptools]\npackages = ["mylib"]\npackage-dir = {mylib = "code"}\n'

LAYOUTS = {
    "flat beside a root conftest": Layout(
        {"mylib/__init__.py": SOURCE, "conftest.py": CONFTEST, "tests/helper.py": 'HELPER = "{side}"\n'}, ()
    ),
    "src, hatchling": Layout({"src/mylib/__init__.py": SOURCE, "pyproject.toml": HATCHLING, **TESTS}, EDITABLE, HATCH),
    "setuptools' finder": Layout(
        {
            "mylib/__init__.py": SOURCE,
            "pyproject.toml": settings("setuptools.build_meta", "setuptools", PACKAGES),
            **TESTS,
        },
        EDITABLE,
        (SETUPTOOLS,),
        new=("mylib.fast", "extra"),
    ),
    "flat, hatchling": Layout({"mylib/__init__.py": SOURCE, "pyproject.toml": HATCHLING, **TESTS}, EDITABLE, HATCH),
    "namespace, setuptools' finder": Layout(
        {
            "mylib/__init__.py": SOURCE,
            "space/part/__init__.py": SOURCE,
            "pyproject.toml": settings("setuptools.build_meta", "setuptools", NAMESPACE),
            **TESTS,
        },
        EDITABLE,
        (SETUPTOOLS,),
        beside=("space.part",),
    ),
    "renamed, setuptools' finder": Layout(
        {
            "code/__init__.py": SOURCE,
            "pyproject.toml": settings("setuptools.build_meta", "setuptools", RENAMED),
            **TESTS,
        },
        EDITABLE,
        (SETUPTOOLS,),
    ),
    "strict, setuptools": Layout(
        {"src/mylib/__init__.py": SOURCE, "pyproject.toml": settings("setuptools.build_meta", "setuptools"), **TESTS},
        STRICT,
        (SETUPTOOLS,),
    ),
    "src on the path, conda develop": Layout({"src/mylib/__init__.py": SOURCE, **TESTS}, (), path="src"),
    "hook, scikit-build-core": Layout(
        {
            "src/mylib/__init__.py": SOURCE,
            "CMakeLists.txt": CMAKE,
            "pyproject.toml": settings("scikit_build_core.build", "scikit-build-core"),
            **TESTS,
        },
        EDITABLE,
        ("scikit-build-core>=0.10",),
        ("cmake",),
    ),
    "hook, meson-python": Layout(
        {
            "src/mylib/__init__.py": SOURCE,
            "meson.build": MESON,
            "pyproject.toml": settings("mesonpy", "meson-python"),
            **TESTS,
        },
        EDITABLE,
        ("meson-python>=0.16",),
        ("ninja",),
    ),
    "C extension": Layout(
        {
            "mylib/__init__.py": "from mylib._core import side\nSIDE = side()\n",
            "mylib/core.c": CORE_C,
            "setup.py": SETUP_PY,
            "conftest.py": CONFTEST,
            "tests/helper.py": 'HELPER = "{side}"\n',
        },
        EDITABLE,
        (SETUPTOOLS,),
        ("cc",),
    ),
    "copied, pip install .": Layout(
        {"mylib/__init__.py": SOURCE, "pyproject.toml": HATCHLING + WHEEL, **TESTS},
        COPIED,
        ("hatchling>=1.26",),
        new=("mylib.fast", "extra"),
    ),
    "src on the path, PYTHONPATH": Layout({"src/mylib/__init__.py": SOURCE, **TESTS}, (), variable="src"),
    "package by link": Layout({"lib/mylib/__init__.py": SOURCE, **TESTS}, (), link="lib/mylib"),
    "worktree": Layout({"src/mylib/__init__.py": SOURCE, **TESTS}, (), path="src", worktree=True),
    "wheel in site-packages": Layout(
        {"mylib/__init__.py": SOURCE, "pyproject.toml": HATCHLING + WHEEL, **TESTS},
        ("wheel",),
        ("hatchling>=1.26",),
        new=("mylib.fast", "extra"),
    ),
    "monorepo of flit, poetry and setuptools": Layout(
        {f"libs/one/{name}": text for name, text in TESTS.items()}
        | {
            "libs/one/src/mylib/__init__.py": SOURCE,
            "libs/one/pyproject.toml": settings("flit_core.buildapi", "flit_core"),
            "libs/two/src/second/__init__.py": SOURCE,
            "libs/two/pyproject.toml": settings("poetry.core.masonry.api", "poetry-core", name="second"),
            "libs/three/src/third/__init__.py": SOURCE,
            "libs/three/pyproject.toml": settings("setuptools.build_meta", "setuptools", name="third"),
        },
        EDITABLE,
        ("flit-core>=3.9", "poetry-core>=2", SETUPTOOLS),
        place="libs/one",
        projects=(".", "../two", "../three"),
        beside=("second", "third"),
    ),
}


def write(top: Path, layout: Layout, side: str) -> None:
    """Write the layout's files as one side has them."""
    files = dict(layout.files)
    files[f"{layout.place}/tests/test_speed.py"] = TEST.replace("{new!r}", repr(layout.new)).replace(
        "{beside!r}", repr(layout.beside)
    )
    for name in layout.new if side == "head" else ():
        files[f"{name.replace('.', '/')}.py" if "." in name else f"{name}/__init__.py"] = ""
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{side}", side).replace("{{", "{").replace("}}", "}"), encoding="utf-8")


def make_repository(top: Path, layout: Layout) -> Path:
    """Return the rootdir in a repository of two commits, base and head."""
    place = top.with_name("main") if layout.worktree else top
    place.mkdir()
    (place / ".gitignore").write_text("*.so\n*.egg-info/\n.venv/\nbuild/\n__pycache__/\n", encoding="utf-8")
    git(place, "init", "-q")
    for side in ("base", "head"):
        write(place, layout, side)
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", side)
    if layout.worktree:
        git(place, "worktree", "add", "-q", str(top))
    return top / layout.place


def make_python(top: Path, rootdir: Path, layout: Layout) -> str:
    """Return an interpreter within the tree that sees what the running one sees, with the project installed."""
    python = make_environment(top / ".venv")
    # This package, before any that is installed.
    package = Path(pytest_rlperf.__file__).parents[1]
    (site_packages(top / ".venv") / "a_package.pth").write_text(f"{package}\n", encoding="utf-8")
    if layout.path is not None:
        (site_packages(top / ".venv") / "conda.pth").write_text(f"{top / layout.path}\n", encoding="utf-8")
    if layout.link is not None:
        (site_packages(top / ".venv") / "mylib").symlink_to(top / layout.link)
    if layout.how == ("wheel",):
        wheels = top.with_name("wheels")
        install(python, "wheel", "--no-build-isolation", "-w", str(wheels), str(rootdir))
        install(python, "install", "--force-reinstall", *map(str, wheels.iterdir()))
    elif layout.how:
        places = [word for project in layout.projects for word in (*layout.how, str((rootdir / project).resolve()))]
        install(python, "install", "--no-build-isolation", *places)
    return python


def install(python: str, command: str, *words: str) -> None:
    completed = run_pip(python, [command, "--no-deps", *words], "install it")
    assert not completed.code, completed.out + completed.err


def answer(python: str, code: str, arguments: Sequence[str], directory: Path, **changes: str | None) -> str:
    """Return what an interpreter prints, its environment being this one with changes."""
    variables: dict[str, str | None] = {**os.environ, **changes}
    completed = subprocess.run(
        [python, "-c", code, *arguments],
        cwd=directory,
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not completed.returncode, completed.stdout + completed.stderr
    return completed.stdout


def is_satisfied(need: str) -> bool:
    wanted = Requirement(need)
    try:
        return version(wanted.name) in wanted.specifier
    except PackageNotFoundError:
        return False


def run_side(side: Side, sides: Sides) -> tuple[list[str], list[str]]:
    """Run the tests of a side in its interpreter; return what they printed and the files that they read."""
    start = {name: value for name, value in dataclasses.asdict(side).items() if name in {"path", "args", "files"}}
    start |= {"homes": [*sides.base.homes, *sides.head.homes, sides.top]}
    variables = {**side.environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    printed = answer(side.python, RUN, [json.dumps(start, default=str)], side.directory, **variables)
    lines = printed.splitlines()
    seen = [line for line in lines if line.startswith(("SEEN", "FOUND", "MISSING"))]
    return seen, json.loads(next(line for line in lines if line.startswith("READ")).removeprefix("READ"))


def compare(
    python: str, rootdir: Path, spec: str, scratch: Path, **changes: str | None
) -> tuple[list[list[str]], Reads]:
    """Prepare a comparison as a run would, and run both sides; return what each printed, and what they have read."""
    scratch.mkdir(exist_ok=True)
    written = answer(python, PREPARE, [str(rootdir), spec, str(scratch)], rootdir, **changes).splitlines()[-1]
    sides: Sides = pickle.loads(bytes.fromhex(written))  # noqa: S301 - the sample's
    base, base_files = run_side(sides.base, sides)
    head, head_files = run_side(sides.head, sides)
    return [base, head], compare_reads(sides, base_files, head_files)


# Those whose build tools make an environment or a compiled module of their own take as long as all others together.
BUILT = (
    "flat, hatchling",
    *("hook, scikit-build-core", "hook, meson-python", "C extension", "monorepo of flit, poetry and setuptools"),
    *("renamed, setuptools' finder", "strict, setuptools", "namespace, setuptools' finder", "copied, pip install ."),
    "wheel in site-packages",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in BUILT else ()) for name in LAYOUTS]
)
def test_each_side_sees_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base has the old code, head the new, both today's tests; a change is seen, and where there is none, none is."""
    layout = LAYOUTS[name]
    # An active environment, and one of meson-python's requirements, which it needs for no package without extensions.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "patchelf").touch(mode=0o755)
    places = [str(Path(sys.executable).parent), os.environ["PATH"], str(tools)]
    monkeypatch.setenv("PATH", os.pathsep.join(places))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if missing := [need for need in layout.needs if not is_satisfied(need)]:
        pytest.skip(f"pip install {' '.join(map(repr, missing))}")
    if missing := [tool for tool in layout.tools if shutil.which(tool) is None]:
        pytest.skip(f"takes {', '.join(missing)}")

    top = tmp_path / "tree"
    rootdir = make_repository(top, layout)
    python = make_python(top, rootdir, layout)
    path = None if layout.variable is None else str(top / layout.variable)
    (base, head), read = compare(python, rootdir, "HEAD~1", tmp_path / "scratch", PYTHONPATH=path)
    assert base == [
        "SEEN base head head",
        *("SEEN base" for _ in layout.beside),
        *(f"MISSING {new}" for new in layout.new),
    ]
    assert head == [
        "SEEN head head head",
        *("SEEN head" for _ in layout.beside),
        *(f"FOUND {new}" for new in layout.new),
    ]
    assert read.differing
    assert not read.compiled
    status = subprocess.run(["git", "status", "--porcelain"], cwd=top, capture_output=True, text=True, timeout=60)
    assert not status.stdout

    (top / "NOTES.md").write_text("It is as fast as before.", encoding="utf-8")
    (base, head), read = compare(python, rootdir, "HEAD", tmp_path / "scratch", PYTHONPATH=path)
    assert base == head
    # Two builds of an extension are never sure to be the same bytes.
    assert {name for name in read.differing if not name.endswith(tuple(EXTENSION_SUFFIXES))} == set()
    assert read.files
