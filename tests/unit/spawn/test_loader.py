"""A preload server: what it imports, which modules both sides have alike, and whether copies can work."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from builders import write
from wording import Wording

import pytest_rlperf
from pytest_rlperf.spawn.modules import modules_alike, packages_of
from pytest_rlperf.spawn.preload import load

NO_TREE: tuple[str, tuple[str, ...]] = ("/nowhere", ())  # the top of a tree, and what is apart from it


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory whose modules can be imported, and are no more once the test is over."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gc.freeze", lambda: None)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("wanted", ["own", "own.part", "own_ext"])
def test_a_module_that_wants_a_package_under_test_is_named(place: Path, wanted: str) -> None:
    """Its import ends there, also where it would do without the package; nothing of the package is imported."""
    optional = f"try:\n    import {wanted}\nexcept ImportError:\n    pass\n"
    write(place, {"own/__init__.py": "", "own/part.py": "", "own_ext.py": "", "plain.py": "", "late.py": ""})
    for name in ("user", "another"):
        (place / f"{name}.py").write_text(optional)
    answer = load(["plain", "user", "late", "another"], {"own", "own_ext"}, *NO_TREE)
    assert answer == {"dirty": ["user", "another"]}, "the next process does without all of them"
    assert {"plain", "late"} <= set(sys.modules)
    assert not {"own", "own_ext"} & set(sys.modules)
    assert load(["own_extra"], {"own"}, *NO_TREE)["dirty"] == [], "a name that only begins alike"
    __import__("own_ext")  # which only a preload server refuses


@pytest.mark.parametrize(
    ("wanted", "is_refused"),
    [
        ("inside", True),
        ("package.part", True),
        ("namespace.part", True),
        ("linked", True),
        ("linked_package.part", True),
        ("spread.of_the_tree", True),
        ("of_the_environment", False),
        ("beside", False),
        ("math", False),
    ],
)
def test_a_module_that_wants_code_of_the_tree_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, is_refused: bool
) -> None:
    """By where it lies, also where a link leads there; an environment within the tree is no part of it."""
    tree, environment = place / "tree", place / "tree/.venv/lib"
    names = ("inside.py", "package/__init__.py", "package/part.py", "namespace/part.py", "spread/of_the_tree.py")
    write(tree, dict.fromkeys((*names, ".venv/lib/of_the_environment.py"), ""))
    write(place, {"tree_2/beside.py": "", "spread/other.py": "", "user.py": f"import {wanted}\n", "late.py": ""})
    (place / "linked.py").symlink_to(tree / "inside.py")
    (place / "linked_package").symlink_to(tree / "namespace")
    for path in (place / "tree_2", environment, tree):
        monkeypatch.syspath_prepend(path)
    answer = load(["user", "late"], (), str(tree), [str(place / "tree/.venv")])
    assert answer["dirty"] == ["user"] * is_refused
    assert is_refused or wanted in sys.modules
    __import__(wanted)  # which only a preload server refuses


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", id="run"
        ),
        pytest.param("import logging\nlogging.root.addHandler(logging.NullHandler())", id="handler"),
        pytest.param("import logging\nlogging.root.setLevel(7)", id="level"),
    ],
)
def test_a_module_that_sets_what_copies_must_not_have_is_named(place: Path, text: str) -> None:
    """A thread is not copied; the log, which a module may only set up where it has no handlers, is copied."""
    handlers, level = logging.root.handlers[:], logging.root.level
    write(place, {"plain.py": "", "setting.py": text, "late.py": ""})
    try:
        assert load(["plain", "setting", "late"], (), *NO_TREE) == {"dirty": ["setting"]}
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


def test_modules_that_fail_are_left_out(place: Path) -> None:
    """One that raises, one that ends the process and one that is not there: the next one is imported."""
    write(place, {"raises.py": "1 / 0", "ends.py": "raise SystemExit(3)", "sound.py": ""})
    assert load(["raises", "ends", "missing", "sound"], {"own"}, *NO_TREE) == {"dirty": [], "changes": {}}
    assert "sound" in sys.modules


def test_modules_alike_are_those_that_cannot_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out are the tree's, packages that differ, the run's own, unsafe ones, plugins, and what is no import's."""
    files = {"RECORD": "a_plugin/hooks.py,,\n_beside.py,,\nits.dist-info/RECORD,,\n../../../bin/run,,\n"}
    entries = [SimpleNamespace(value="a_plugin.hooks:Main", dist=SimpleNamespace(read_text=files.get))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    kept = ["a_library", "a_library.part", "own_extra", "torch.utils.data"]
    dropped = ["own", "own.part", "a_plugin", "a_plugin.other", "_beside", "ray.data", "torch.utils.tensorboard"]
    dropped.append("of_the_run")
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    places = dict.fromkeys((*kept, *dropped), Path("/usr/lib/somewhere.py")) | {"of_the_tree": tmp_path / "a.py"}
    kept.append("of_the_environment")
    places["of_the_environment"] = tmp_path / ".venv/lib/a.py"
    monkeypatch.setattr("sys.modules", {**sys.modules, **{name: made(name, file) for name, file in places.items()}})
    sys.modules["without_spec"] = ModuleType("without_spec")
    found = modules_alike(tmp_path, {"own"}, {"of_the_run"})
    known = {*places, "without_spec", "__main__", "pytest_rlperf.fixtures"}
    assert sorted(name for name in found if name in known) == sorted(kept)
    assert {"pytest_rlperf.worker.session", "pytest_rlperf.pair.driver"} <= {*found}
    assert "numpy" in modules_alike(tmp_path, {"own"}, {"numpy"}, ["rlperf"]), "the tests need it, too"
    assert "numpy" not in modules_alike(tmp_path, {"own"}, {"numpy"}, ["rlperf_import"]), "an import may do without"
    assert "numpy" not in modules_alike(tmp_path, {"numpy"}, {"numpy"}, ["rlperf"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        monkeypatch.delitem(sys.modules, name)
    assert "numpy" not in modules_alike(tmp_path, {"own"}, (), ["rlperf", "tmp_path"]), "any callable may do without"
    assert "numpy" in modules_alike(tmp_path, {"own"}, (), ["rlperf", "rlperf_gae"])


def test_packages_of_a_tree_are_those_that_are_loaded_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those of an environment that lies in the tree."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    places = {"own": "own/__init__.py", "own.part": "own/part.py", "of_env": ".venv/lib/of_env.py"}
    for name, file in places.items():
        monkeypatch.setitem(sys.modules, name, made(name, tmp_path / file))
    assert packages_of(tmp_path) == {"own"}


@pytest.mark.parametrize(
    ("top", "differing"),
    [
        (Path(pytest_rlperf.__file__).parents[1], ()),
        (Path("/elsewhere"), ("pytest_rlperf",)),
    ],
)
def test_this_package_is_not_alike_where_it_is_what_differs(top: Path, differing: Sequence[str]) -> None:
    """In its own repository, and beside another release of it."""
    assert not any(name.startswith("pytest_rlperf") for name in modules_alike(Path(top), differing, ()))


def made(name: str, file: Path) -> ModuleType:
    module = ModuleType(name)
    module.__spec__, module.__file__ = ModuleSpec(name, None), str(file)
    return module


ASK = "from pytest_rlperf.spawn.copies import fault_of_forks\nprint(fault_of_forks({}))"


def fault_in(text: str, limit_s: float) -> str:
    """Return the fault of copies of a new process that has run ``text``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{text}\n{ASK.format(limit_s)}"],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("text", ["", "import numpy\nnumpy.ones((500, 500)) @ numpy.ones((500, 500))"])
def test_a_copy_of_a_plain_process_works(text: str) -> None:
    """One without libraries, and one whose NumPy has begun to work, which survives a fork."""
    assert fault_in(text, 60) == ""


@pytest.mark.slow  # what PyTorch does; test_the_first_driver_finds_out_whether_copies_work: what follows
@pytest.mark.torch
def test_a_copy_of_a_process_where_torch_has_worked_hangs(wording: Wording) -> None:
    """After a parallel operation and a backward pass its threads are gone; with PyTorch only imported a copy works."""
    assert fault_in("import torch", 60) == ""
    worked = "x = torch.ones(1_000_000, requires_grad=True)\n(x * 2).sum().backward()"
    assert fault_in(f"import torch\n{worked}", 2) == wording


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "import threading\nthreading.Thread(target=threading.Event().wait, name='beside', daemon=True).start()",
            id="thread",
        ),
        pytest.param("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)", id="SIGCHLD"),
    ],
)
def test_what_a_copy_would_lack_is_a_fault(text: str, wording: Wording) -> None:
    """A thread of Python's, and the news of its children's end."""
    assert fault_in(text, 60) == wording
