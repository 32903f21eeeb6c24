"""The suite on libraries: its table, what is skipped, and a few cells of a real run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import builders
import library_checks
import pytest
from example import NOTHING, OK, Example
from wording import Wording

from pytest_rlperf.cli import main
from pytest_rlperf.components.libraries import BASIS, Library, libraries
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.matrix import render_matrix

pytestmark = pytest.mark.usefixtures("alone")

ROOT = Path(__file__).parents[1]
SUITE = "pytest_rlperf.suite.libraries"
LIBRARIES = [library for library in libraries() if (library_checks.SUITE / f"test_{library.name}.py").exists()]
NOT_THERE = "skrl is not installed: pip install 'skrl[torch]'"


def timed(key: str, items_per_s: float, status: Status = Status.NEW) -> Outcome:
    return builders.compared(key, status, None, 256.0 / items_per_s)


OUTCOMES = [
    timed("pytest_rlperf.suite.test_gae::test_gae[128-8]", 13.2e6),
    timed("pytest_rlperf.suite.test_gae::test_gae[2048-64]", 61e6),
    timed("pytest_rlperf.suite.test_sac::test_sac_update", 105.0),
    timed("pytest_rlperf.suite.test_vecenv::test_vecenv_step[8]", 340e3),
    timed(f"{SUITE}.test_reference::test_reference_vecenv_step_synthetic[8]", 130e3),
    timed(f"{SUITE}.test_torchrl::test_torchrl_vecenv_step_synthetic[8]", 4e3),
    timed(f"{SUITE}.test_envpool::test_envpool_vecenv_step[8]", 6.8e6),
    timed(f"{SUITE}.test_sb3::test_sb3_gae[128-8]", 3.3e6),
    timed(f"{SUITE}.test_torchrl::test_torchrl_gae[128-8]", 0.9e6, Status.INVALID),
    timed(f"{SUITE}.test_sb3::test_sb3_gae[2048-64]", 65e6),
    timed(f"{SUITE}.test_torchrl::test_torchrl_sac_update", 105.0),
    timed(f"{SUITE}.test_torchrl::test_torchrl_replay_sample", 2e6),
    timed(f"{SUITE}.test_sb3::test_sb3_sac_update", 200.0, Status.ERROR),
    timed("tests/test_other.py::test_gae[sb3-128-8]", 1.0),
]
SKIPPED = {
    f"{SUITE}.test_torchrl::test_torchrl_gae[2048-64]": "no time",
    f"{SUITE}.test_skrl::test_skrl_gae[128-8]": NOT_THERE,
    f"{SUITE}.test_skrl::test_skrl_gae[2048-64]": NOT_THERE,
    "tests/test_other.py::test_more": "another reason",
}


def test_the_table_has_a_row_for_equal_work(wording: Wording) -> None:
    """Rows of equal work, a share beside each figure, a word where there is none, and why libraries are missing."""
    assert render_matrix(OUTCOMES, SKIPPED, width=80) == wording


def test_keys_of_a_run_by_path_are_the_same_tests() -> None:
    """Node ids, of this repository or of an installed package below another directory, give the same table."""
    by_module = render_matrix(OUTCOMES, SKIPPED, width=80)
    for prefix in ("", "lib/site-packages/"):
        moved = []
        for one in OUTCOMES:
            module, _, test = one.result.nodeid.partition("::")
            key = f"{prefix}{module.replace('.', '/')}.py::{test}" if "suite" in module else one.result.nodeid
            moved.append(timed(key, one.result.items_per_s, one.verdict.status))
        assert render_matrix(moved, SKIPPED, width=80) == by_module


def test_a_narrow_terminal_gets_the_table_in_parts() -> None:
    """Columns that do not fit come below, with the rows' names again; no line is wider."""
    text = render_matrix(OUTCOMES, SKIPPED, width=36)
    assert max(map(len, text.splitlines())) <= 36
    headings = [line for line in text.splitlines() if line.startswith("items/s")]
    assert [line.split()[1:] for line in headings] == [["reference", "envpool"], ["sb3", "torchrl"]]


def test_seven_libraries_fit_80_columns() -> None:
    """All the suite has, in one table, though figures be wide."""
    full = [
        timed(f"{SUITE}.test_{library.name}::test_{library.name}_{test}{sizes}", 1.23e3 / (1 + number))
        for test, sizes in (("vecenv_step_synthetic", "[64]"), ("ppo_collect_synthetic", ""), ("sac_update", ""))
        for number, library in enumerate(LIBRARIES)
    ]
    text = render_matrix(full, {}, width=80)
    assert text.count("items/s") == 1
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("count", [0, 3])
def test_without_libraries_there_is_no_table(count: int) -> None:
    """The reference alone, or nothing, is compared with nothing."""
    assert not render_matrix(OUTCOMES[:count], {f"{SUITE}.test_sb3::test_sb3_gae[128-8]": "no time"}, width=80)


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


@pytest.mark.slow
@pytest.mark.torch
def test_a_measured_run_ends_with_the_table(tmp_path: Path) -> None:
    """A row's cells come from the reference's test and the library's own; others are listed below."""
    pytest.importorskip("stable_baselines3")
    cells = "gae and 128-8 and (sb3 or tianshou or test_gae.py)"
    arguments = ("--rlperf", "--pyargs", "pytest_rlperf.suite", "-k", cells, "--rlperf-max-time=2")
    table = Example(tmp_path).pytest(*arguments, code=OK).section("rlperf suite").splitlines()
    assert table[1].split()[:3] == ["items/s", "reference", "sb3"]
    assert table[3].split()[0] == "gae"
    assert {"best", "%"} <= set(table[4].split())
    if not importlib.util.find_spec("tianshou"):
        assert any("pip install 'tianshou'" in line for line in table)


def test_the_plain_command_measures_the_reference_alone() -> None:
    """In this repository ``pytest --rlperf`` has the tests whose figures its baseline has, under the same names."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rlperf", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
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
        main(["tree", "--nope"])
    assert "unrecognized arguments: --nope" in capsys.readouterr().err


def test_the_command_runs_the_suite(tmp_path: Path) -> None:
    """From anywhere, by the installed package."""
    run = Example(tmp_path).rlperf("suite", "-p", "rlperf", "--co", "-q", code=OK)
    assert "::test_torchrl_gae[128-8]" in run.out
    assert "::test_gae[128-8]" in run.out
