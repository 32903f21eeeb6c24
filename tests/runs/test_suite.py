"""The suite on libraries: its table, what is skipped, and a few cells of a real run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import builders
import library_checks
import pytest
from example import NOTHING, OK, Example
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.cli import main
from pytest_rlperf.components.libraries import BASIS, Library, libraries
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.components import render_components

pytestmark = pytest.mark.usefixtures("alone")

ROOT = Path(__file__).parents[2]
SUITE = "pytest_rlperf.suite.libraries"
LIBRARIES = [library_checks.REFERENCE, *(each for each in libraries() if each.starter.startswith("test_"))]


def is_there(library: Library) -> bool:
    """Whether all that a library needs is installed."""
    return all(map(importlib.util.find_spec, ("gymnasium", "torch", library.module)))


@pytest.mark.slow
def test_every_library_works_or_is_skipped_with_what_adds_it(tmp_path: Path) -> None:
    """Each component of an installed library passes its check, unmeasured; else pip's command is the reason."""
    run = Example(tmp_path).pytest("-rs", "--pyargs", "pytest_rlperf.suite.libraries", "-v")
    assert run.code in (OK, NOTHING), run.text[-5000:]
    for library in LIBRARIES:
        results = {result for test, result in run.results if test.startswith(f"test_{library.name}_")}
        assert results == {"PASSED" if is_there(library) else "SKIPPED"}, library
        if not is_there(library):
            has_basis = all(map(importlib.util.find_spec, ("gymnasium", "torch")))
            requirement = library.requirement if has_basis else BASIS
            assert f": pip install '{requirement}'" in run.words


def test_every_component_has_rivals() -> None:
    """Each component is built for the libraries that have it."""
    learning = ["rlox", "skrl", "sb3", "tianshou", "torchrl"]
    for component in ("replay", "gae", "sac"):
        assert built(component) == learning
    for component in ("vecenv", "ppo"):
        assert built(component) == ["reference", *learning]
    assert built("ppo_update") == ["skrl", "tianshou", "torchrl"]  # others have it of their agents
    assert built("native_vecenv") == ["envpool", "rlox"]
    assert built("native_ppo") == ["rlox"]


def built(component: str) -> list[str]:
    return [library.name for library in library_checks.libraries_with(component)]


OF_LIBRARIES = "pytest_rlperf.suite.libraries.test_"
FIGURES = {
    "pytest_rlperf.suite.test_gae::test_gae[128-8]": 13.2e6,
    "pytest_rlperf.suite.test_gae::test_gae[2048-64]": 61e6,
    f"{OF_LIBRARIES}sb3::test_sb3_gae[128-8]": 3.3e6,
    f"{OF_LIBRARIES}sb3::test_sb3_gae[2048-64]": 65e6,
    f"{OF_LIBRARIES}torchrl::test_torchrl_vecenv_step_synthetic[8]": 4e3,
    f"{OF_LIBRARIES}reference::test_reference_vecenv_step_synthetic[8]": 130e3,
    f"{OF_LIBRARIES}envpool::test_envpool_vecenv_step[8]": 6.8e6,
    f"{OF_LIBRARIES}primitives::test_sb3_replay_push": 300e3,
    f"{OF_LIBRARIES}torchrl::test_torchrl_new_component[3-4]": 1.0,
    "tests/test_other.py::test_sb3_gae[128-8]": 1.0,
}
BROKEN = {
    f"{OF_LIBRARIES}torchrl::test_torchrl_gae[128-8]": Status.INVALID,
    f"{OF_LIBRARIES}torchrl::test_torchrl_gae[2048-64]": Status.ERROR,
}
REASONS = ["Skipped: skrl is not installed: pip install 'skrl[torch]'"] * 2 + ["Skipped: no device"]


def measured_suite(figures: Mapping[str, float] = FIGURES) -> list[Outcome]:
    """Return outcomes of tests with so many items/s, and of two that have broken."""
    outcomes = [builders.outcome(builders.result(key, 1 / items_per_s)) for key, items_per_s in figures.items()]
    for key, status in BROKEN.items():
        found = builders.result(key)
        found = found if status is Status.INVALID else replace(found, workers=())
        outcomes.append(builders.outcome(found, builders.verdict(status)))
    return outcomes


def test_the_table_of_components_by_libraries(wording: Wording) -> None:
    """A row is equal work, with a share beside each figure, a word where there is none, and how to add a library."""
    assert render_components(measured_suite(), REASONS, width=80) == wording


@pytest.mark.parametrize("prefix", ["", "lib/site-packages/"])
def test_the_table_of_a_run_by_paths(prefix: str) -> None:
    """Node ids, of this repository or of an installed package, give the same table as the names of modules."""
    moved = {}
    for key, figure in FIGURES.items():
        module, _, test = key.partition("::")
        moved[f"{prefix}{module.replace('.', '/')}.py::{test}" if "suite" in module else key] = figure
    by_module = render_components(measured_suite(), [], width=80)
    assert render_components(measured_suite(moved), [], width=80) == by_module


def test_a_narrow_terminal_gets_the_table_in_parts() -> None:
    """Libraries that do not fit come below, with the rows' names again; no line is wider."""
    text = render_components(measured_suite(), REASONS, width=44)
    assert max(map(len, text.splitlines())) <= 44
    headings = [line.split()[1:] for line in text.splitlines() if line.startswith("items/s")]
    assert headings == [["reference", "envpool"], ["sb3", "torchrl"]]


def test_no_table_of_the_reference_alone() -> None:
    """What is compared with nothing has no table, nor have tests of others."""
    reference = {key: figure for key, figure in FIGURES.items() if "libraries" not in key or "other" in key}
    assert render_components(measured_suite(reference)[: len(reference)], REASONS, width=80) == ""
    assert render_components([], [], width=80) == ""


def test_collecting_loads_no_library(tmp_path: Path) -> None:
    """The tests of all libraries are collected without importing one, in every process that measures one of them."""
    example = Example(tmp_path)
    plugin = """
        import sys

        def pytest_collection_finish():
            print("loaded:", *sys.modules.keys() & MODULES)
    """
    modules = repr({library.module for library in LIBRARIES})
    example.write({"loaded.py": textwrap.dedent(plugin).replace("MODULES", modules)})
    run = example.pytest("-p", "loaded", "--co", "-q", "-s", "--pyargs", "pytest_rlperf.suite", code=OK)
    assert re.search(r"^loaded:\s*$", run.out, re.MULTILINE), run.out[-500:]


def test_the_plain_command_measures_the_reference_alone() -> None:
    """In this repository ``pytest --rlperf`` has the tests of its baseline, by their names, and that of the import."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rlperf", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    collected.remove("benchmarks/test_loading.py::test_plugin")
    assert len(collected) == 8
    (baseline,) = (ROOT / "baselines" / "default").glob("*.json")
    stored = baseline.read_text(encoding="utf-8")
    assert [key for key in collected if f'"{key}"' not in stored] == []


def test_the_command_becomes_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that follows ``suite`` is pytest's, in its order."""
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, command: became.append(command))
    main(["suite", "-k", "sac", "--rlperf-max-time=5", "-v", "--co"])
    given = ["-k", "sac", "--rlperf-max-time=5", "-v", "--co"]
    assert became == [[sys.executable, "-m", "pytest", "--rlperf", "--pyargs", "pytest_rlperf.suite", *given]]


def test_other_commands_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """As they did before one of them passed things on."""
    with pytest.raises(SystemExit):
        main(["tree", "a", "--nope"])
    assert "unrecognized arguments: --nope" in capsys.readouterr().err


def test_the_command_runs_the_suite(tmp_path: Path) -> None:
    """From anywhere, by the installed package."""
    run = Example(tmp_path).rlperf("suite", "-p", "rlperf", "--co", "-q", code=OK)
    assert "::test_torchrl_gae[128-8]" in run.out
    assert "::test_gae[128-8]" in run.out
