"""Every way a package can lie in a tree and be installed from it: each side must see its own code and today's tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import git
from packaging.requirements import Requirement

import pytest_rlperf
from pytest_rlperf.sides.environment import make_environment, site_packages
from pytest_rlperf.sides.programs import run_pip

CONFTEST = """
import pytest

@pytest.fixture
def conftest_side():
    return "{side}"
"""
# Writes down what its process has; a version is known by a file that is asked for, and never read.
TEST = """
import importlib, os, pathlib
import mylib
from helper import HELPER

TREE = pathlib.Path(__file__).resolve().parents[{depth}]

def _found(name):
    try:
        return importlib.import_module(name).__name__
    except ModuleNotFoundError:
        return "none"

def test_speed(rlperf, conftest_side):
    side = "base" if os.path.exists(TREE / "is_base") else "head"
    own = [mylib.SIDE, *(importlib.import_module(name).SIDE for name in {beside!r})]
    with open(os.environ["SEEN"], "a") as seen:
        print(side, conftest_side, HELPER, *own, *map(_found, {new!r}), file=seen)
    rlperf(lambda: mylib.SIDE * 1000)
"""
SETUP_PY = """
from setuptools import Extension, setup

setup(name="mylib", version="1.0", packages=["mylib"], ext_modules=[Extension("mylib._core", ["mylib/core.c"])])
"""
BELOW_SRC = "package_dir={'': 'src'}, "
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
CARGO = """
[package]
name = "mylib"
version = "1.0.0"
edition = "2021"

[lib]
crate-type = ["cdylib"]
"""
RUST = """
#[no_mangle]
pub extern "C" fn is_head() -> i32 { ("{side}" == "head") as i32 }
"""
MATURIN = """
[tool.maturin]
bindings = "cffi"
python-source = "python"
module-name = "mylib._native"
"""
MESON = """
project('mylib', version: '1.0')
py = import('python').find_installation(pure: false)
py.install_sources('src/mylib/__init__.py', subdir: 'mylib')
"""


@dataclass(frozen=True)
class Layout:
    """How a package lies in a tree: its files with ``{side}`` in them, and how it is installed.

    ``place`` is pytest's rootdir below git's top, and ``projects`` are the directories below it that are installed.
    ``beside`` are packages under test beside ``mylib``, ``new`` are modules that only head has. ``needs`` are the
    distributions that must be installed to build it, ``tools`` the programs. ``path`` is a directory of the tree that
    a file of the environment puts on sys.path, ``variable`` one that PYTHONPATH has, and ``link`` a package that the
    environment has a link to. ``others`` are modules of another project that the environment has. Where it is a
    ``worktree``, that is git's.
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
    others: tuple[str, ...] = ()
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
MODULE = '[tool.setuptools]\npy-modules = ["mylib"]\n'
INSERTION = "import pathlib, sys\n\nsys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'src'))\n"
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
    "copied, C extension": Layout(
        {
            "src/mylib/__init__.py": "from mylib._core import side\nSIDE = side()\n",
            "src/mylib/core.c": CORE_C,
            "setup.py": SETUP_PY.replace("mylib/core.c", "src/mylib/core.c").replace("setup(", f"setup({BELOW_SRC}", 1),
            **TESTS,
        },
        COPIED,
        (SETUPTOOLS,),
        ("cc",),
    ),
    "copied, one module": Layout(
        {
            "mylib.py": SOURCE,
            "pyproject.toml": settings("setuptools.build_meta", "setuptools", MODULE, name="other-name"),
            **TESTS,
        },
        COPIED,
        (SETUPTOOLS,),
    ),
    "copied, namespace beside another's": Layout(
        {
            "mylib/__init__.py": SOURCE,
            "space/part/__init__.py": SOURCE,
            "pyproject.toml": settings("setuptools.build_meta", "setuptools", NAMESPACE),
            **TESTS,
        },
        COPIED,
        (SETUPTOOLS,),
        beside=("space.part",),
        others=("space/other/__init__.py",),
    ),
    "copied, maturin": Layout(
        {
            "python/mylib/__init__.py": "from mylib._native import lib\nSIDE = ('base', 'head')[lib.is_head()]\n",
            "src/lib.rs": RUST,
            "Cargo.toml": CARGO,
            "pyproject.toml": settings("maturin", "maturin", MATURIN),
            **TESTS,
        },
        COPIED,
        ("maturin>=1.7", "cffi"),
        ("cargo",),
    ),
    "src on the path by a conftest": Layout(
        {"src/mylib/__init__.py": SOURCE, **TESTS, "tests/conftest.py": INSERTION + CONFTEST}, ()
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
    values = {"new": layout.new, "beside": layout.beside, "depth": len(Path(layout.place).parts) + 1}
    test = TEST
    for name, value in values.items():
        test = test.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", repr(value))
    files[f"{layout.place}/tests/test_speed.py"] = test
    changing = {f"{name.replace('.', '/')}.py" if "." in name else f"{name}/__init__.py": "" for name in layout.new}
    changing, missing = (changing, {"is_base": ""}) if side == "head" else ({"is_base": ""}, changing)
    for name, text in {**files, **changing}.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{side}", side).replace("{{", "{").replace("}}", "}"), encoding="utf-8")
    for name in missing:
        (top / name).unlink(missing_ok=True)


def commit(top: Path, layout: Layout, side: str) -> None:
    """Commit the layout's files as one side has them."""
    write(top, layout, side)
    git(top, "add", "--all")
    git(top, "commit", "-q", "-m", side)


def make_repository(top: Path, layout: Layout) -> Path:
    """Return the rootdir in a repository of two commits, base and head."""
    place = top.with_name("main") if layout.worktree else top
    place.mkdir()
    (place / ".gitignore").write_text(
        "*.so\n*.egg-info/\n.venv/\nbuild/\ntarget/\nCargo.lock\n__pycache__/\n", encoding="utf-8"
    )
    git(place, "init", "-q")
    for side in ("base", "head"):
        commit(place, layout, side)
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
    for name in layout.others:
        builders.write(site_packages(top / ".venv"), {name: ""})
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


def is_satisfied(need: str) -> bool:
    wanted = Requirement(need)
    try:
        return version(wanted.name) in wanted.specifier
    except PackageNotFoundError:
        return False


def compare(python: str, rootdir: Path, spec: str, scratch: Path, **changes: str) -> tuple[dict[str, Any], set[str]]:
    """Run the gate as a user does; return the entry of its test, and what each process has written down."""
    scratch.mkdir()
    document, seen = scratch / "run.json", scratch / "seen"
    options = [
        f"--rlperf-against={spec}",
        f"--rlperf-json={document}",
        "-o",
        "rlperf_pairs=2..2",
        "--rlperf-max-time=0.1",
    ]
    plugins = [word for name in ("rlperf", "no:cacheprovider") for word in ("-p", name)]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *plugins, *options, "tests/test_speed.py"],
        cwd=rootdir,
        env=builders.environment(SEEN=str(seen), TMPDIR=str(scratch), **changes),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert document.exists(), done.stdout + done.stderr
    assert "new interpreter" not in done.stdout, done.stdout  # all were forked
    (entry,) = json.loads(document.read_text(encoding="utf-8"))["tests"].values()
    assert entry["verdict"]["status"] != "ERROR", done.stdout
    return entry, set(seen.read_text(encoding="utf-8").splitlines())


QUICK = "src on the path by a conftest"  # which stands for all others where every second counts


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in LAYOUTS]
)
def test_each_side_sees_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all of a run's processes, which are forked: base has the old code, head the new, both today's tests.

    So it is where head goes back to what base was, and the environment has neither's or the other's code. Where nothing
    of the code differs, nothing is measured.
    """
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
    changes = {} if layout.variable is None else {"PYTHONPATH": str(top / layout.variable)}

    def own(side: str, today: str) -> str:
        found = [each if side == "head" else "none" for each in layout.new]
        return " ".join([side, today, today, side, *(side for _ in layout.beside), *found])

    entry, seen = compare(python, rootdir, "HEAD~1", tmp_path / "forth", **changes)
    assert seen == {own("base", "head"), own("head", "head")}
    assert entry["live"] is not None
    status = subprocess.run(["git", "status", "--porcelain"], cwd=top, capture_output=True, text=True, timeout=60)
    assert not status.stdout

    commit(top, layout, "base")
    entry, seen = compare(python, rootdir, "HEAD~1", tmp_path / "back", **changes)
    assert seen == {own("base", "base"), own("head", "base")}
    assert entry["live"] is not None
    if layout.tools or name == QUICK:  # two builds of an extension are never sure to be the same bytes
        return
    (top / "NOTES.md").write_text("It is as fast as before.", encoding="utf-8")
    entry, seen = compare(python, rootdir, "HEAD", tmp_path / "same", **changes)
    assert seen == {own("base", "base")}
    assert entry["verdict"]["reason"]["code"] == "code"
