"""``rlperf init``: the first tests of a project, and the workflow beside them."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from example import OK, Example
from test_workflows import PACKAGE, check, load
from wording import Wording

from pytest_rlperf.cli import init, main
from pytest_rlperf.components.libraries import libraries

GATE = Path(".github", "workflows", "gate.yml")
STARTED = [library.module for library in libraries() if library.starter]
GAE = """
def compute_gae(rewards, values, dones, last_values, gamma=0.99, lam=0.95, *, out=None):
    advantages, following, next_values = rewards.copy(), 0.0, last_values
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * (1 - dones[t]) * next_values - values[t]
        following = advantages[t] = delta + gamma * lam * (1 - dones[t]) * following
        next_values = values[t]
    return advantages
"""
CODE = f"""
import numpy

def compute_returns(rewards, values): ...
def gae_of_batch(batch, gamma): ...
def _gae(rewards, values): ...
{GAE}

class Measure:
    def __init__(self, env): ...
    def sample(self, batch_size): ...
    def collect(self, n_steps, callback=None): ...
    def update(self): ...

class Envs:
    def reset(self): ...
    def step(self, actions): return self.num_envs
"""

Installed: TypeAlias = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Return an empty project, in whose directory `rlperf init` runs and sees no module as installed."""
    example = Example(tmp_path)
    monkeypatch.chdir(example.root)
    monkeypatch.setattr(init, "find_spec", lambda name: None)
    return example


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Return what has `rlperf init` see these modules as installed, and no others."""

    def pretend(*modules: str) -> None:
        monkeypatch.setattr(init, "find_spec", lambda name: name if name in modules else None)

    return pretend


def written(project: Example, *arguments: str, at: str = "tests/test_perf.py") -> str:
    """Run `rlperf init` and return the text of the file that it writes."""
    assert main(["init", *arguments]) == 0
    return (project.root / at).read_text(encoding="utf-8")


def listed(text: str) -> list[str]:
    """Return the names of the tests in a file."""
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_without_a_library(project: Example) -> None:
    """There is an example, which passes in an ordinary run."""
    text = written(project)
    assert listed(text) == ["test_gae"]
    assert "torch" not in text
    assert project.pytest(code=OK).counts == "1 passed"


def test_with_one_library(project: Example, installed: Installed) -> None:
    """Its tests stand beside the example, where it has no GAE, and PyTorch keeps to one thread."""
    installed("torch", "gymnasium")
    text = written(project)
    assert listed(text) == ["test_gymnasium_step", "test_gae"]
    assert text.count("import torch\n") == text.count("    torch.set_num_threads(1)") == 1


def test_with_every_library(project: Example, installed: Installed) -> None:
    """Names do not collide, nothing is undefined or unused, and every line is as this repository's own are."""
    installed("torch", *STARTED)
    text = written(project)
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    assert {f"rlperf_{name}" for name in ("vecenv_step", "replay_sample", "gae", "sac_update", "ppo_collect")} <= {
        argument.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arguments) for argument in node.args
    }
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,W,B,UP,C4", "tests"]
    result = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout


def test_of_a_project(project: Example, installed: Installed) -> None:
    """Its own components have tests: a function as it is, an object once its arguments are written."""
    installed(*STARTED)
    hidden = {"mine/_hidden.py": GAE, "mine/broken.py": "def ("}
    project.write({"mine/__init__.py": "", "mine/code.py": CODE, **hidden})
    text = written(project, "--output=test_perf.py", at="test_perf.py")
    assert listed(text)[:4] == ["test_gae", "test_replay_sample", "test_ppo_collect", "test_vecenv_step"]
    assert "from mine.code import compute_gae\n" in text
    assert "    rlperf_gae(compute_gae)\n" in text
    assert "from mine.code import Measure as OwnMeasure\n" in text, "the libraries' tests have one of that name"
    assert "    rlperf_replay_sample(OwnMeasure(...), batch_size=256)\n" in text
    assert "    rlperf_ppo_collect(OwnMeasure(...), n_steps=128)\n" in text
    assert "sac_update" not in listed(text)[:4]


def test_two_classes_of_one_name(project: Example) -> None:
    """Each test imports its own class, a third by a number."""
    bodies = {"a": "def sample(self, batch_size): ...", "b": "def update(self, batch_size): ..."}
    bodies |= {"c": "def collect(self, n_steps): ...", "d": "def update(self, rollout): ..."}
    agents = {f"mine/{name}.py": f"class Agent:\n    {body}\n" for name, body in bodies.items()}
    project.write({"mine/__init__.py": "", **agents})
    text = written(project, "--output=test_perf.py", at="test_perf.py")
    assert (
        "from mine.a import Agent\nfrom mine.b import Agent as OwnAgent\nfrom mine.c import Agent as OwnAgent1\n"
        "from mine.d import Agent as OwnAgent2\n" in text
    )
    for call in (
        "replay_sample(Agent(...)",
        "sac_update(OwnAgent(...)",
        "ppo_collect(OwnAgent1(...)",
        "ppo_update(OwnAgent2(...)",
    ):
        assert f"    rlperf_{call}" in text


def test_code_with_a_very_long_expression(project: Example) -> None:
    """A module that Python's parser refuses is left out; in one that it takes, the other components are found."""
    envs = "class Envs:\n    def reset(self): ...\n    def step(self, num_envs):\n        return "
    long = {"mine/a.py": "A = " + "1 + " * 20_000 + "1\n", "mine/b.py": envs + "1 + " * 600 + "1\n"}
    project.write({"mine/__init__.py": "", **long, "mine/code.py": CODE})
    assert "from mine.code import" in written(project, "--output=test_perf.py", at="test_perf.py")


def test_a_projects_tests_run(project: Example) -> None:
    """The function is checked, and what must be edited first is skipped."""
    project.write({"mine/__init__.py": "", "mine/code.py": CODE})
    written(project, "--output=test_perf.py", at="test_perf.py")
    assert project.pytest(code=OK).counts == "1 passed, 3 skipped"


def test_of_a_project_in_torch(project: Example) -> None:
    """A function of tensors gets tensors."""
    project.write({"advantages.py": GAE.replace("rewards.copy()", "torch.zeros_like(rewards)")})
    assert 'rlperf_gae(compute_gae, backend="torch")' in written(project, "--output=perf.py", at="perf.py")


def test_of_a_project_that_uses_one_library(project: Example, installed: Installed) -> None:
    """Others are left out, though they are installed."""
    installed(*STARTED)
    project.write({"mine.py": "from gymnasium import Env"})
    text = written(project, "--output=test_perf.py", at="test_perf.py")
    assert listed(text) == ["test_gymnasium_step", "test_gae"]


def test_code_that_tests_cannot_import_is_left_out(project: Example) -> None:
    """A package that is not installed is importable for tests beside it alone."""
    project.write({"mine/__init__.py": "", "mine/code.py": CODE})
    assert "mine" not in written(project)


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        ('[tool.pytest.ini_options]\ntestpaths = ["missing", "checks"]', "checks"),
        ('[tool.pytest]\ntestpaths = ["checks"]', "checks"),
        ('[tool.pytest.ini_options]\ntestpaths = "checks"', "checks"),
        ('[tool.pytest.ini_options]\ntestpaths = ["missing"]', "tests"),
        ('[tool.pytest.ini_options]\ntestpaths = [1, "checks"]', "checks"),
        ("[tool.pytest.ini_options]\ntestpaths = 3", "tests"),
        ("[tool.pytest]\nini_options = 1", "tests"),
        ("[tool]\npytest = 1", "tests"),
        ("tool = 1", "tests"),
        ("", "tests"),
    ],
)
def test_it_stands_among_the_projects_tests(project: Example, settings: str, directory: str) -> None:
    """The directory is the one that pytest collects."""
    project.write({"pyproject.toml": settings})
    (project.root / "checks").mkdir()
    written(project, at=f"{directory}/test_perf.py")


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")], ids=["file", "link"])
def test_a_file_is_kept(project: Example, capsys: pytest.CaptureFixture[str], make: Any, wording: Wording) -> None:
    """A file that is there is a usage error of one sentence, and stays as it is."""
    path = project.root / "tests" / "test_perf.py"
    path.parent.mkdir()
    make(path)
    assert main(["init"]) == 4
    out, error = capsys.readouterr()
    assert out == ""
    assert error == wording
    assert path.is_symlink() or path.read_bytes() == b""


def test_the_next_commands_are_shown(project: Example, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """The output names the file, its tests, and the commands to type."""
    written(project)
    assert capsys.readouterr().out.splitlines() == wording


def gate(root: Path) -> dict[str, Any]:
    """Return the job of the workflow that was written, which satisfies its schema."""
    path = root / GATE
    assert check(path).returncode == 0
    (job,) = load(path)["jobs"].values()
    return dict(job)


def commands(job: dict[str, Any]) -> tuple[str, str]:
    """Return the commands that install and measure."""
    install, measure = (step["run"] for step in job["steps"] if "run" in step)
    return install, measure


def test_the_workflow(project: Example, installed: Installed) -> None:
    """It is the guide's, but that it installs what the written tests import, and names their file."""
    installed("gymnasium")
    written(project, "--github")
    text = Path(init.__file__).with_name("gate.yml").read_text(encoding="utf-8")
    without = GATE.read_text(encoding="utf-8")
    text = text.replace("python -m pytest ", "python -m pytest tests/test_perf.py ")
    assert without == text.replace(f"-e . {PACKAGE}", f"{PACKAGE} gymnasium")
    GATE.unlink()
    project.write({"pyproject.toml": "[project]"})
    assert main(["init", "--github"]) == 0, "the tests are there, the workflow is not"
    assert GATE.read_text(encoding="utf-8") == text.replace(PACKAGE, f"{PACKAGE} gymnasium")


def test_the_workflow_installs_torch(project: Example, installed: Installed) -> None:
    """The written tests import it, which a project need not declare."""
    installed("torch", "stable_baselines3")
    project.write({"pyproject.toml": "[project]"})
    written(project, "--github")
    needed = f"{PACKAGE.replace(' @', '[rl] @')} stable-baselines3"
    assert commands(gate(project.root))[0] == f"pip install -e . {needed}"


@pytest.mark.parametrize(
    ("files", "is_project"),
    [
        ({"setup.py": ""}, True),
        ({"pyproject.toml": "[build-system]"}, True),
        ({"pyproject.toml": "[tool.ruff]", "setup.cfg": "[metadata]\nname = mine\n"}, True),
        ({"pyproject.toml": "[tool.ruff]"}, False),
        ({"pyproject.toml": "[tool.ruff]", "setup.cfg": "[flake8]"}, False),
        ({"setup.cfg": "[flake8]"}, False),
        ({"setup.cfg": "[metadata]\nname = mine\n"}, False),
    ],
    ids=[
        "setup.py",
        "build-system",
        "metadata",
        "ruff",
        "ruff, flake8",
        "flake8",
        "setup.cfg alone, which pip refuses",
    ],
)
def test_the_workflow_installs_a_project(project: Example, files: dict[str, str], is_project: bool) -> None:
    """Settings of other tools make none."""
    project.write(files)
    written(project, "--github")
    assert commands(gate(project.root))[0] == f"pip install {'-e . ' if is_project else ''}{PACKAGE}"


@pytest.mark.parametrize("place", ["perf/test_perf.py", "my checks/test it.py", "a: b #c/test_perf.py"])
def test_the_workflow_measures_the_written_file(project: Example, place: str) -> None:
    """Also where pytest by itself would not collect it."""
    project.write({"pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]'})
    (project.root / "tests").mkdir()
    written(project, "--github", f"--output={project.root / place}", at=place)
    measure = shlex.split(commands(gate(project.root))[1])
    assert measure[:5] == ["python", "-m", "pytest", place, "--rlperf-against=$GITHUB_BASE_REF"]


def test_the_workflow_of_a_project_below_the_repositorys_top(
    project: Example,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    """It stands where GitHub reads it, and its commands run in the project's directory."""
    mine = project.root / "projects" / "mine"
    mine.mkdir(parents=True)
    (project.root / ".git").mkdir()
    monkeypatch.chdir(mine)
    assert main(["init", "--github"]) == 0
    assert "../../.github/workflows/gate.yml" in capsys.readouterr().out
    assert (mine / "tests" / "test_perf.py").exists()
    assert not (mine / ".github").exists()
    job = gate(project.root)
    assert job["defaults"] == {"run": {"working-directory": "projects/mine"}}
    assert "pytest tests/test_perf.py " in commands(job)[1]
    outside = project.root.parent / "test_perf.py"
    assert main(["init", "--github", f"--output={outside}"]) == 4
    error = capsys.readouterr().err
    assert str(outside) in error
    assert error.replace(str(outside), "OUTSIDE") == wording
    assert not outside.exists()


def test_a_workflow_is_kept(project: Example, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """Where the workflow is there, nothing is written."""
    path = project.root / GATE
    path.parent.mkdir(parents=True)
    path.touch()
    assert main(["init", "--github"]) == 4
    assert capsys.readouterr().err == wording
    assert path.read_bytes() == b""
    assert not (project.root / "tests").exists()
