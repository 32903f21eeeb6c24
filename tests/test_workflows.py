from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
TESTS = ROOT / ".github" / "workflows" / "tests.yml"

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def load(path: Path) -> dict[str, Any]:
    """Return a workflow as YAML 1.2 reads it, where `on` is a string."""
    workflow = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def check(path: Path) -> subprocess.CompletedProcess[str]:
    """Validate a workflow against the schema that check-jsonschema carries along."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def legs(matrix: dict[str, Any]) -> list[dict[str, str]]:
    """Expand a matrix whose `include` only adds whole combinations."""
    axes = {name: values for name, values in matrix.items() if name != "include"}
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    added: list[dict[str, str]] = matrix.get("include", [])
    assert all(leg.keys() == axes.keys() and leg not in combinations for leg in added)
    return combinations + added


def test_there_is_a_workflow_for_the_tests() -> None:
    """The tests below would pass over an empty directory."""
    assert TESTS in WORKFLOWS


@each_workflow
def test_workflow_is_valid(path: Path) -> None:
    """Every workflow satisfies the schema of GitHub's workflows."""
    result = check(path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("    runs-on: ubuntu-latest\n", "", id="a job without a machine"),
        pytest.param("    steps:\n", "    stpes:\n", id="a misspelt key"),
        pytest.param("    timeout-minutes: 30\n", '    timeout-minutes: "soon"\n', id="a value of the wrong type"),
        pytest.param("  contents: read\n", "  contents: some\n", id="an unknown permission"),
    ],
)
def test_broken_workflow_is_not_valid(tmp_path: Path, right: str, wrong: str) -> None:
    """The schema check does find mistakes."""
    text = TESTS.read_text(encoding="utf-8")
    assert right in text
    broken = tmp_path / "broken.yml"
    broken.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    assert check(broken).returncode != 0


@each_workflow
def test_workflow_may_only_read(path: Path) -> None:
    """A workflow may read the contents and nothing else, and no job asks for more or keeps the token."""
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@each_workflow
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """An action is named by its full commit, with the version beside it for people."""
    uses = re.findall(r"uses:(.*)", path.read_text(encoding="utf-8"))
    assert uses
    assert not [line for line in uses if not re.fullmatch(r" [\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)]


@each_workflow
def test_jobs_have_a_time_limit(path: Path) -> None:
    """No job hangs for the six hours GitHub would give it."""
    assert not [name for name, job in load(path)["jobs"].items() if "timeout-minutes" not in job]


def test_matrix_holds_every_supported_python() -> None:
    """The Pythons tested with the extra `rl` are those pyproject.toml says are supported."""
    supported = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    tested = [leg["python-version"] for leg in legs(load(TESTS)["jobs"]["tests"]["strategy"]["matrix"]) if rl(leg)]
    assert sorted(tested) == sorted(supported) == ["3.10", "3.11", "3.12", "3.13"]


def test_core_is_tested_without_torch() -> None:
    """At least one leg installs the core and the test tools alone, and runs the tests."""
    job = load(TESTS)["jobs"]["tests"]
    assert [leg for leg in legs(job["strategy"]["matrix"]) if not rl(leg)]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert [line for line in commands if line.startswith("pip install")] == [
        "pip install -c constraints.txt -e '.[${{ matrix.extras }}]'"
    ]
    assert "pytest" in commands


def rl(leg: dict[str, str]) -> bool:
    """Whether a leg of the matrix has PyTorch and gymnasium."""
    return "rl" in leg["extras"].split(",")


@pytest.mark.parametrize(
    "readme",
    [
        pytest.param("", id="no marker"),
        pytest.param("<!-- test command -->\n\n```console\npytest\n```\n", id="a line between"),
        pytest.param("<!-- test command -->\n```python\npytest\n```\n", id="another language"),
        pytest.param("<!-- test command -->\n```console\n```\n", id="no command"),
        pytest.param("<!-- test command -->\n```console\npytest\npytest -x\n```\n", id="two commands"),
        pytest.param(2 * "<!-- test command -->\n```console\npytest\n```\n", id="two blocks"),
    ],
)
def test_ci_run_needs_the_readmes_command(tmp_path: Path, readme: str) -> None:
    """A README whose test command cannot be told stops `.ci/run` at once, with a sentence that says so."""
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    result = subprocess.run([script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "README.md must hold one line '<!-- test command -->'" in result.stderr
