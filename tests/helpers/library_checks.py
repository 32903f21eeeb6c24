"""The checks that tests of several libraries' adapters share."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pytest_rlperf import suite
from pytest_rlperf.components.libraries import BASIS, Library, libraries
from pytest_rlperf.model.measured import Phase, Workload
from pytest_rlperf.probes import attached
from pytest_rlperf.timers import recording

EXAMPLES = Path(__file__).parents[2] / "examples"
SUITE = Path(suite.__file__).parent / "libraries"
REFERENCE = Library(name="reference", module="torch", requirement=BASIS)  # measured beside the libraries


def libraries_with(component: str) -> list[Library]:
    """Return the libraries whose tests in the suite have a function that makes a component; none is imported."""
    found = []
    for library in (REFERENCE, *libraries()):
        tree = ast.parse(_tests_of(library).read_bytes())
        if any(getattr(node, "name", "") == f"{library.name}_{component}" for node in tree.body):
            found.append(library)
    return found


def builder(library: Library, component: str) -> Callable[..., Any]:
    """Return the function of a library's tests in the suite that makes a component."""
    spec = spec_from_file_location(f"tests_of_{library.name}", _tests_of(library))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, f"{library.name}_{component}")
    return found


def _tests_of(library: Library) -> Path:
    return library.first_tests if library.starter else SUITE / f"test_{library.name}.py"


def harvested(workload: Workload, calls: int) -> dict[str, Phase]:
    """Return the phases, by their paths, that traced calls of a checked workload record."""
    call, probes = workload.call, workload.probes
    if workload.harvest is not None:
        call, probes = workload.harvest.call, workload.harvest.probes
    with attached(probes), recording() as recorded:
        for _ in range(calls):
            if workload.setup is not None:
                workload.setup()
            call()
    return {phase.path: phase for phase in recorded.phases(calls)}


def assert_parts(phases: dict[str, Phase], root: str, names: tuple[str, ...]) -> None:
    """Assert that the phases right within ``root`` are ``names``."""
    within = [path.removeprefix(f"{root}/") for path in phases if path.startswith(f"{root}/")]
    assert {path for path in within if "/" not in path} == set(names)


def assert_counts(workload: Workload, real_steps: Callable[[], float]) -> None:
    """Check a workload, and compare its count with the steps that there were, over slices of several lengths."""
    workload.check()
    assert workload.count is not None
    workload.count()
    for calls in (1, 1, 1, 2, 7, 1, 40, 3, 1):
        before = real_steps()
        for _ in range(calls):
            workload.call()
        steps = real_steps() - before
        assert workload.count() == steps
        assert workload.count() == 0, "nothing new has been stepped"


def example(name: str) -> str:
    """Return the example of a library, a module of tests."""
    return (EXAMPLES / f"test_{name}.py").read_text(encoding="utf-8")
