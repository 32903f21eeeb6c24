"""The examples show what works: each test of them passes as it stands, and is measured under ``--rlperf``."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import copytree

import pytest
from library_checks import EXAMPLES, example

from pytest_rlperf.cli.init import library_tests
from pytest_rlperf.components.libraries import libraries

pytestmark = pytest.mark.usefixtures("alone")


@dataclass(frozen=True)
class Example:
    """A library's example, the module that the library is, its tests, and those that a measured run leaves out."""

    name: str
    module: str
    tests: int
    unmeasured: tuple[str, ...] = ()
    environment: str = ""


ALL = (
    Example("any_agent", "numpy", 3),
    Example("cleanrl", "gymnasium", 7),
    Example("envpool", "envpool", 3),
    Example("gymnasium", "gymnasium", 4),
    Example("jax", "jax", 7),
    Example("multi_agent", "numpy", 2),
    Example("rlox", "rlox", 10, ("test_gae[one]", "test_collector", "test_vtrace")),
    Example("sample_factory", "sample_factory", 2),
    Example("skrl", "skrl", 6, ("test_acting",)),
    Example("stable_baselines3", "stable_baselines3", 8),
    # In every process again, compiling would take longer than all the rest.
    Example("tianshou", "tianshou", 8, ("test_update_by_a_function",), "NUMBA_DISABLE_JIT=1"),
    Example("torchrl", "torchrl", 6, ("test_joint_sac",)),
    Example("your_own", "numpy", 6),
)
STARTED = {library.module: library for library in libraries() if library.starter}


def test_every_example_is_tried() -> None:
    """A file in the directory has a row in the table."""
    assert sorted(f"test_{each.name}.py" for each in ALL) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.fixture(
    params=[
        # test_library_cleanrl.py has the script's phases
        pytest.param(each, id=each.name, marks=pytest.mark.slow if each.name == "cleanrl" else ())
        for each in ALL
    ]
)
def shown(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Copy a library's example; where the library is not installed, skip it."""
    shown: Example = request.param
    is_plain = shown.module in ("jax", "numpy")  # which work without PyTorch
    for module in (shown.module,) if is_plain else ("torch", "gymnasium", shown.module):
        if find_spec(module) is None:  # not imported: what is, pytester forgets, and no process imports PyTorch twice
            pytest.skip(f"needs {module}")
    name, _, value = shown.environment.partition("=")
    if name:
        monkeypatch.setitem(os.environ, name, value)
    pytester.makepyfile(test_example=example(shown.name))
    if shown.name == "cleanrl":
        copytree(EXAMPLES / "cleanrl", pytester.path / "cleanrl")
    pytester.makeconftest("" if is_plain else "import torch; torch.set_num_threads(1)")
    return shown


def test_it_passes(shown: Example, pytester: pytest.Pytester) -> None:
    """Unmeasured, as in an ordinary run; so do the tests that `rlperf init` writes for the library, beside it."""
    expected = {"test_example"}
    if shown.name in STARTED:
        pytester.makepyfile(test_starter=library_tests(STARTED[shown.name]))
        expected.add("test_starter")
    without = ("-p", "no:benchmark") if shown.name == "your_own" else ()  # which needs no other plugin
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *without)
    assert result.parseoutcomes().keys() - {"warning", "warnings"} == {"passed"}
    passed = Counter(re.findall(r"^PASSED .*?(\w+)\.py::", result.stdout.str(), re.MULTILINE))
    assert passed.keys() == expected
    assert passed["test_example"] == shown.tests


def test_every_librarys_first_tests_are_tried() -> None:
    """Each library that `rlperf init` writes tests for has an example of its name, which they are run beside."""
    assert STARTED.keys() <= {each.name for each in ALL}


@pytest.mark.slow
def test_it_is_measured(shown: Example, pytester: pytest.Pytester) -> None:
    """In processes of their own, with a figure each."""
    left_out = [f"--deselect=test_example.py::{name}" for name in shown.unmeasured]
    args = ("--rlperf", "--rlperf-max-time=1", "--rlperf-json=run.json", "-p", "no:cacheprovider", *left_out)
    measured = shown.tests - len(shown.unmeasured)
    result = pytester.runpytest_subprocess(*args, timeout=400)
    result.assert_outcomes(passed=measured, deselected=len(shown.unmeasured))
    run = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))
    assert len(run["tests"]) == measured
    assert all(test["result"]["items"] > 0 for test in run["tests"].values())
