"""A ninth library is one module and a file of tests: with these it is measured, counted, compared, and tested."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from library_checks import builder

from pytest_rlperf.cli import main
from pytest_rlperf.components import libraries as package
from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.libraries import libraries, libraries_known
from pytest_rlperf.components.updates import replay_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.wire import Count
from pytest_rlperf.worker.counting import count

NINTH = Path(__file__).parent / "ninth"
SUITE = "pytest_rlperf.suite.libraries"
PLUGIN = f"""
import sys
from pytest_rlperf.components import libraries

sys.path.insert(0, {str(NINTH)!r})
libraries.__path__.append({str(NINTH / "libraries")!r})
"""

pytestmark = pytest.mark.torch


@pytest.fixture
def gridlab(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(NINTH))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(NINTH / "libraries")])
    import gridlab

    yield gridlab
    for name in ("gridlab", f"{package.__name__}.grids"):
        sys.modules.pop(name, None)


def test_it_is_measured(gridlab: Any) -> None:
    """Its objects are known by their classes, and messages name it beside the others."""
    pytest.importorskip("gymnasium")
    (library,) = (library for library in libraries() if library.name == "gridlab")
    for workload in (
        vecenv_workload(builder(library, "vecenv")(3)),
        replay_workload(builder(library, "replay")(100), 8),
        gae_workload(gridlab.credit, 32, 4, "numpy"),
    ):
        workload.check()
        workload.call()
    known = libraries_known(lambda library: library.vecenv).split(", ")
    assert known == sorted(known)
    assert "gridlab" in known


def test_its_steps_are_counted(gridlab: Any) -> None:
    """A step of its envs is a step of each, whatever the method is called."""
    pytest.importorskip("gymnasium")
    from pytest_rlperf.components.reference.ppo import SyntheticEnv

    workload = vecenv_workload(gridlab.Grids(SyntheticEnv, 3))
    workload.check()
    tally = count(workload, Count(1, 60.0))
    assert {found.value for found in tally.repetitions[0] if found.name == "env_steps"} == {3}


@pytest.mark.slow  # test_examples: test_it_passes
def test_it_has_first_tests(gridlab: Any, pytester: pytest.Pytester) -> None:
    """`rlperf init` writes those of its module in its own project."""
    pytester.makeconftest(PLUGIN.replace(f"sys.path.insert(0, {str(NINTH)!r})\n", ""))
    copy(NINTH / "gridlab.py", pytester.path)
    assert main(["init"]) == 0
    text = (pytester.path / "tests" / "test_perf.py").read_text(encoding="utf-8")
    assert "def gridlab_gae(" in text
    assert "rlperf_gae(gridlab_gae(128, 8), " in text
    assert "rlperf_replay_sample(gridlab_replay(transitions), " in text


@pytest.mark.usefixtures("alone")
def test_it_is_tested(pytester: pytest.Pytester) -> None:
    """Its own tests pass, and the conformance suite takes it as any other."""
    for module in ("gymnasium", "torch"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    pytester.makepyfile(ninth=PLUGIN)
    options = ("-p", "no:cacheprovider", "-p", "ninth", "-k", "gridlab", "--strict-markers", "-rA")
    tests = (str(NINTH / "gridlab_tests.py"), str(Path(__file__).with_name("test_adapters.py")))
    result = pytester.runpytest_subprocess(*options, *tests)
    passed = re.findall(r"^PASSED .*?(\w+)\.py::", result.stdout.str(), re.MULTILINE)
    assert Counter(passed) == {"gridlab_tests": 3, "test_adapters": 9}, result.stdout.str()
    assert not {"failed", "errors", "skipped"} & result.parseoutcomes().keys()
