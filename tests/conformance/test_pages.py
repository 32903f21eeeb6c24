"""The pages on libraries show what works: every example passes as it stands, and is measured under ``--rlperf``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
from library_checks import write_documented_tests

from pytest_rlperf.cli.init import first_tests
from pytest_rlperf.components.libraries import Library, libraries

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]


@dataclass(frozen=True)
class Page:
    """A page, the module that its library is, how many tests it shows, and which of them a measured run leaves out."""

    name: str
    module: str
    tests: int
    unmeasured: tuple[str, ...] = ()
    environment: str = ""


PAGES = (
    Page("cleanrl", "gymnasium", 6),
    Page("envpool", "envpool", 3),
    Page("gymnasium", "gymnasium", 4),
    Page("jax", "jax", 6),
    Page("rlox", "rlox", 10, ("test_gae[one]", "test_collector", "test_vtrace")),
    Page("sample-factory", "sample_factory", 2),
    Page("skrl", "skrl", 6, ("test_acting",)),
    Page("stable-baselines3", "stable_baselines3", 8),
    # In every process again, compiling would take longer than all the rest.
    Page("tianshou", "tianshou", 8, ("test_update_by_a_thunk",), "NUMBA_DISABLE_JIT=1"),
    Page("torchrl", "torchrl", 6, ("test_joint_sac",)),
)


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Write a page's examples to a test file; where the library is not installed, skip them."""
    page: Page = request.param
    for module in ("torch", "gymnasium", page.module):
        if find_spec(module) is None:  # not imported: what is, pytester forgets, and no process imports PyTorch twice
            pytest.skip(f"needs {module}")
    name, _, value = page.environment.partition("=")
    if name:
        monkeypatch.setitem(os.environ, name, value)
    write_documented_tests(pytester, page.name)
    pytester.makeconftest("import torch; torch.set_num_threads(1)")
    return page


def test_its_examples_pass(page: Page, pytester: pytest.Pytester) -> None:
    """Unmeasured, as in an ordinary run."""
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=page.tests)


@pytest.mark.slow
def test_its_examples_are_measured(page: Page, pytester: pytest.Pytester) -> None:
    """In processes of their own, with a figure each."""
    left_out = [f"--deselect=test_documented.py::{name}" for name in page.unmeasured]
    args = ("--rlperf", "--rlperf-max-time=1", "--rlperf-json=run.json", "-p", "no:cacheprovider", *left_out)
    measured = page.tests - len(page.unmeasured)
    result = pytester.runpytest_subprocess(*args, timeout=400)
    result.assert_outcomes(passed=measured, deselected=len(page.unmeasured))
    run = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))
    assert len(run["tests"]) == measured
    assert all(test["result"]["items"] > 0 for test in run["tests"].values())


@pytest.mark.parametrize("library", [each for each in libraries() if each.starter], ids=lambda each: each.name)
def test_its_first_tests_pass(library: Library, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests that `rlperf init` writes for a library, each unmeasured."""
    for module in ("torch", "gymnasium", library.module):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    text = first_tests(library)
    pytester.makepyfile(test_starter=text)
    pytester.makeconftest("import torch; torch.set_num_threads(1)")
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider").parseoutcomes()
    assert outcome.keys() - {"warning", "warnings"} == {"passed"}
