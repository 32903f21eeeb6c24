"""``rlperf init``: the first tests of a project, tried before they are left there, and the workflows beside them."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders import others_are_slow
from example import Example
from wording import Wording
from workflow_files import installs

from pytest_rlperf.cli import init, main
from pytest_rlperf.cli.first_tests.trial import Trial
from pytest_rlperf.components.libraries import libraries

GATE = Path(".github", "workflows", "gate.yml")
DEPENDENCIES = GATE.with_name("dependencies.yml")
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
BUFFER = """
import random

class Memory:
    def __init__(self, capacity):
        self.capacity, self.rows = capacity, []
    def push(self, state, action, reward, next_state, done):
        self.rows.append((state, action, reward, next_state, done))
    def sample(self, batch_size):
        return random.sample(self.rows, batch_size)
"""
SHAPED = """
import numpy

class Buffer:
    def __init__(self, capacity, obs_shape=(4,)):
        self.obs_buf = numpy.zeros((capacity, *obs_shape))
    def add(self, obs): self.obs_buf[0] = obs
    def sample(self, batch_size): return self.obs_buf[:batch_size]
"""
ENVS = """
import numpy

class Actions:
    def sample(self):
        return numpy.random.randint(2)

class Walks:
    def __init__(self, num_envs, episode_length=50):
        self.num_envs, self.length, self.single_action_space = num_envs, episode_length, Actions()
    def reset(self):
        self.at, self.steps = numpy.zeros((self.num_envs, 1)), 0
        return self.at
    def step(self, actions):
        self.steps += 1
        ended = numpy.full(self.num_envs, self.steps == self.length)
        self.steps %= self.length
        return self.at, numpy.ones(self.num_envs), ended, {}
"""
SAC = """
class SAC:
    def __init__(self, obs_dim, act_dim, tau): self.weights = [0.0] * obs_dim
    def train(self, replay_buffer, batch_size=256): self.weights = [len(replay_buffer.sample(batch_size))]
"""
UPDATER = """
class Learner:
    def update(self, batch_size): self.done = batch_size
"""
PPO = """
import numpy

class Runner:
    def collect(self, n_steps): return {"rewards": numpy.zeros(n_steps)}

class PPO:
    def __init__(self, gamma): ...
    def collect_rollout(self, n_steps): return {"rewards": numpy.zeros(n_steps)}
"""
# What a project's own tests build: a fixture, a helper, and a list.
FIXTURE = """
import pytest
from mine.code import Walks

@pytest.fixture
def walks():
    return Walks(4)
"""
HELPERS = """
from mine.code import PPO, Walks

def _build_ppo(gamma=0.99):
    return PPO(gamma), None

many = [Walks(2), Walks(3)]
"""
# Objects of a module that raise when they are looked at, and one that is measured all the same.
HOSTILE = """
class Classless:
    @property
    def __class__(self): raise RuntimeError

class Raises:
    def __getattr__(self, name): raise RuntimeError(name)
    def __eq__(self, other): raise RuntimeError("eq")

class Property:
    def __get__(self, instance, owner): raise RuntimeError("of a class")

class Bad:
    sample = Property()

made, raising = Classless(), Raises()
"""
# By position, and by name alone.
KINDS_OF_PARAMETERS = """
import numpy

class Ordered:
    def __init__(self, capacity, /): self.rows = []
    def push(self, state, action, /, *, done): self.rows.append(state)
    def sample(self, batch_size, /): return numpy.stack(self.rows[:batch_size])
"""
# Fixtures that skip, and one that takes an array; a stand-in that has every method.
ODD_TESTS = """
import numpy
import pytest
from unittest.mock import MagicMock
from mine.code import Walks

@pytest.fixture
def skips(): pytest.skip("not here")

@pytest.fixture
def start(): return numpy.zeros(3)

@pytest.fixture
def walks(start): return Walks(4)

def get_nothing(): pytest.skip("not here")

stand_in = MagicMock()
"""
# A module that can be imported once, and not by the tests.
LATE = """
import pathlib, sys
if "pytest" in sys.modules:
    import not_installed_at_all
class Replay:
    def __init__(self, **names): self.rows = []
    def sample(self, batch_size): return self.rows
"""
NONE = """
class Actor:
    def sample(self, obs): ...

def returns(rewards, values): ...
def _gae(rewards, values): ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Return an empty project, in whose directory `rlperf init` runs, and tries tests with no plugin but this one."""
    example = Example(tmp_path)
    monkeypatch.chdir(example.root)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return example


def test_what_only_the_author_knows_is_left_to_complete(
    project: Example, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """A test that cannot be filled in, or whose try fails, is written with a skip that says what is missing.

    It imports what it needs itself, so that what fails to import, too, keeps no other test from running.
    """
    agent = "class Agent:\n    def __init__(self, world): ...\n    def update(self, batch_size): ...\n"
    project.write(
        {"mine.py": agent, "rl.py": BUFFER.replace("random.sample", "random.nothing"), "late.py": LATE, "gae.py": GAE}
    )
    assert main(["init"]) == 0
    assert capsys.readouterr().out.splitlines() == wording
    assert Path("test_perf.py").read_text(encoding="utf-8").splitlines() == wording
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,W", "test_perf.py"]
    result = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout
    assert pytest.main(["-p", "rlperf", "-p", "no:cacheprovider", "test_perf.py"]) == 0


def test_a_constructors_own_defaults_come_first(project: Example) -> None:
    """A value that a name suggests is given to no parameter that has a default, but a buffer has room for each size."""
    walks = ENVS.replace("num_envs, episode_length=50", "num_envs=4, max_steps=50, size=64")
    walks = walks.replace("episode_length", "size if size == 64 else None")
    memory = BUFFER.replace("capacity)", "capacity=20_000)")
    project.write({"rl.py": walks + memory})
    assert main(["init"]) == 0
    text = Path("test_perf.py").read_text(encoding="utf-8")
    assert "rlperf_vecenv_step(lambda: Walks())" in text
    assert "    buffer = Memory(capacity=stored)\n" in text
    assert "    for step in range(stored):\n" in text
    assert listed("test_perf.py") == ["test_walks_step", "test_memory_sample"]


def test_a_second_file_repeats_no_test(project: Example, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """A test that a file beside it has, by its name and with its component's module, is not written again."""
    project.write({"rl.py": GAE + BUFFER, "new/__init__.py": ""})
    assert main(["init"]) == 0
    project.write({"new/rl.py": BUFFER})
    capsys.readouterr()
    assert main(["init", "--output=test_more.py"]) == 0
    assert listed("test_more.py") == ["test_rl_memory_sample"]
    assert main(["init", "rl:Memory", "--output=test_again.py"]) == 5
    assert capsys.readouterr().out.splitlines() == wording
    assert not Path("test_again.py").exists()


def test_the_file_says_what_to_type(project: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins with the commands that the command itself ends with, which need no baseline."""
    project.write({"rl.py": GAE + BUFFER})
    assert main(["init"]) == 0
    assert listed("test_perf.py") == ["test_gae", "test_memory_sample"]
    told = re.findall(r"^  pytest test_perf\.py(.*)$", capsys.readouterr().out, re.MULTILINE)
    head = ast.get_docstring(ast.parse(Path("test_perf.py").read_text(encoding="utf-8")))
    assert head is not None
    assert re.findall(r"^pytest(.*)$", head, re.MULTILINE) == told
    assert ["--rlperf-against=HEAD" in line for line in told] == [False, True]


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `rlperf init` see every module as installed, and leave out the trial."""
    monkeypatch.setattr(init, "find_spec", lambda name: name)
    monkeypatch.setattr(Trial, "run", lambda trial: trial.__dict__.update(_passed=dict.fromkeys(trial.left(), True)))


def listed(path: str | Path) -> list[str]:
    body = ast.parse(Path(path).read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def files_of(project: Example) -> list[Path]:
    """Return the files and directories of a project."""
    return sorted(project.root.rglob("*"))


def test_a_hostile_project(
    project: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """What ends a process, raises or has no name for an import is told with its place; the rest has tests, and no file.

    Those run with the plugins and settings of pytest that the project has, of which some would end the trial.
    """
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    project.write(
        {
            "rl.py": GAE + BUFFER + KINDS_OF_PARAMETERS,
            "a_child.py": "import os, time\nif not os.fork():\n    time.sleep(60)\n",
            "b_ends.py": "import os\nos._exit(0)\n",
            "c_moves.py": "import os, sys\nos.chdir('/')\nsys.path.clear()\n",
            "d_argv.py": "import argparse\nargparse.ArgumentParser().parse_args()\n",
            "hostile.py": HOSTILE,
            "tests/test_it.py": f"{HOSTILE}\ndef make_it(): return made",
            "my-agent.py": GAE,
            "types.py": "",
            "leaves.py": ENVS.replace("Walks", "Leaves").replace("self.steps += 1", "__import__('os')._exit(0)"),
            "pytest.ini": "[pytest]\naddopts = -x -p no:xdist --rlperf -k 'not memory'\n",
        }
    )
    before = files_of(project)
    assert main(["init"]) == 0
    assert [path for path in files_of(project) if path not in before] == [project.root / "test_perf.py"]
    out = re.sub(r"imported from [^ :]+", "imported from PLACE", capsys.readouterr().out)
    assert out.splitlines() == wording


def test_odd_fixtures(project: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture that skips hides no other, nor does one that takes an array; a mock is no env.

    The package is in a namespace, which a path outside of the project's own leads to.
    """
    project.write(
        {
            "src/mine/code.py": ENVS,
            "src/name/space/__init__.py": "",
            "src/name/space/code.py": GAE,
            "checks/conftest.py": "import sys\nfrom pathlib import Path\n"
            "sys.path.insert(0, f'{Path(__file__).parent}/../src')\n" + ODD_TESTS,
            "checks/test_it.py": ODD_TESTS,
            "pyproject.toml": "[tool.pytest]\ntestpaths = ['checks']\n[tool.poetry]\ndependencies = 3\n[project]\n",
        }
    )
    monkeypatch.setenv("PYTHONPATH", "")
    assert main(["init"]) == 0
    assert listed("checks/test_perf.py") == ["test_walks_step", "test_gae", "test_walks_step_2"]


def test_a_named_function_of_another_kind_is_a_call(project: Example) -> None:
    """An update that takes rewards and values computes no advantages; its author completes the call."""
    project.write({"rl.py": "def update(rewards, values, dones): ...\n"})
    assert main(["init", "rl:update", "--output=test_perf.py"]) == 0
    text = Path("test_perf.py").read_text(encoding="utf-8")
    assert "    rlperf(lambda: update(rewards=..., values=..., dones=...))\n" in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["rl:Memory", "rl:Nothing", "./rl.py:_Hidden", "again:Memory", "--output=a.py"], 0),
        (["rl:"], 4),
        ([":Memory"], 4),
        (["tests/builds.py:Memory"], 4),
        (["--output=rl.py/test_it.py"], 4),
        (["--output=test.txt"], 4),
    ],
)
def test_what_is_named(
    project: Example, capsys: pytest.CaptureFixture[str], wording: Wording, arguments: list[str], code: int
) -> None:
    """Each name has a test or a reason; a name that no test can be made of, or written to, is told as what it is."""
    hidden = BUFFER.replace("Memory", "_Hidden")
    project.write(
        {
            "rl.py": f"{BUFFER}{hidden}class Nothing: ...\n",
            "again.py": "from rl import Memory\n",
            "tests/builds.py": f"def make_it(): ...\n{BUFFER}",
        }
    )
    assert main(["init", *arguments]) == code
    out, error = capsys.readouterr()
    assert (out + error).splitlines() == wording


def test_pytest_that_runs_nothing(project: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told once, with the file at fault, and no version of a test is tried again."""
    project.write({"rl.py": GAE + BUFFER, "conftest.py": "import not_there_at_all\n"})
    before = files_of(project)
    assert main(["init"]) == 4
    out, error = capsys.readouterr()
    assert out.count("trying") == 1
    assert "conftest.py" in error
    assert "No module named 'not_there_at_all'" in error
    assert files_of(project) == before


@pytest.mark.usefixtures("in_foreground")
def test_an_interrupt(project: Example) -> None:
    """It ends all at once, without a file or a traceback."""
    project.write({"hangs.py": "import time\nopen('../begun', 'w').close()\ntime.sleep(100)\n"})
    before = files_of(project)
    command = [sys.executable, "-c", "from pytest_rlperf.cli import main; raise SystemExit(main(['init']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not Path("../begun").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith("\ninterrupted\n")
    assert "Traceback" not in out
    assert files_of(project) == before


LAYOUTS: dict[str, tuple[dict[str, str], list[str], str, list[str]]] = {
    "a package in src": ({"src/mine/__init__.py": GAE}, [], "tests/test_perf.py", ["test_gae"]),
    "a package": ({"mine/__init__.py": "", "mine/a/code.py": ENVS}, [], "test_perf.py", ["test_walks_step"]),
    "packages of a monorepo": (
        {"py/a/pyproject.toml": "[project]", "py/a/src/a/__init__.py": GAE, "py/b/b/__init__.py": BUFFER},
        [],
        "tests/test_perf.py",
        ["test_gae", "test_memory_sample"],
    ),
    "a project that is named": (
        {"py/a/a.py": PPO, "py/c/c.py": GAE},
        ["py/a"],
        "py/a/test_perf.py",
        ["test_runner_collect", "test_ppo_collect"],
    ),
    "an agent that takes a buffer": (
        {"agent.py": SAC, "memory.py": BUFFER},
        [],
        "test_perf.py",
        ["test_memory_sample", "test_sac_update"],
    ),
    "an agent made with a buffer": (
        {"agent.py": SAC.replace("tau)", "memory)"), "memory.py": BUFFER, "z.py": BUFFER.replace("Memory", "Other")},
        ["agent:SAC"],
        "test_perf_sac.py",
        ["test_sac_update"],
    ),
    "an agent with a buffer of its own": ({"a.py": UPDATER}, [], "test_perf.py", ["test_learner_update"]),
    "a component that is named": (
        {"rl.py": GAE + UPDATER.replace("update", "learn")},
        ["rl:Learner"],
        "test_perf_learner.py",
        ["test_learner_update"],
    ),
    "a file that is named": ({"rl.py": GAE}, ["--output", "perf/test_it.py"], "perf/test_it.py", ["test_gae"]),
}


@others_are_slow("layout", LAYOUTS)
def test_a_layouts_components_have_tests(
    project: Example,
    monkeypatch: pytest.MonkeyPatch,
    layout: tuple[dict[str, str], list[str], str, list[str]],
) -> None:
    """Each is found, and its test passed the trial, where the project's code is importable."""
    files, arguments, at, tests = layout
    project.write(files)
    places = ["src", "py/a/src", "py/b", *(["."] if "perf/" in at else [])]
    path = os.pathsep.join([*(str(project.root / place) for place in places), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    assert main(["init", *arguments]) == 0
    assert listed(at) == tests


def test_the_output(project: Example, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """It says what was found and where, what was skipped and why, what does not pass, and what to type."""
    project.write(
        {
            "rl.py": GAE + GAE.replace("compute_gae", "gae_of_nothing").replace("rewards.copy()", "rewards * 0"),
            "wrong.py": "def wrong_gae(rewards, values):\n    return rewards\n",
            "again.py": GAE + GAE.replace("compute_", ""),
            "taken.py": "class Buffer:\n    def __init__(self, config): ...\n    def sample(self, batch_size): ...\n",
            "needs.py": f"import not_installed_at_all\n{GAE}",
            "script.py": f"{GAE}\ndef main(): raise SystemExit\n\nmain()\n",
            "loop.py": "if __name__ == '__main__':\n    while True:\n        act = 1\n        print(act)\n",
            "broken.py": "def (",
            "_hidden.py": GAE,
            "tests/test_it.py": GAE,
            "none.py": NONE,
            "requirements.txt": "sample-factory  # or another\n-r other.txt\n",
        }
    )
    assert main(["init"]) == 0
    assert capsys.readouterr().out.splitlines() == wording


@pytest.mark.parametrize(
    ("files", "arguments", "code"),
    [
        pytest.param({}, [], 5, id="no code"),
        pytest.param({"__init__.py": "", "more.py": NONE}, [], 5, id="a package itself"),
        pytest.param({"mine.py": NONE}, [], 5, id="no RL"),
        pytest.param({"mine.py": "import os\nos._exit(3)\n" + GAE}, [], 5, id="a module that ends the process"),
        pytest.param({"src/mine.py": GAE}, [], 4, id="not installed"),
        pytest.param({"mine.py": "class A: ..."}, ["mine:A"], 4, id="a named class of no component"),
        pytest.param({"mine.py": NONE}, ["mine:Other"], 4, id="no such name"),
        pytest.param({}, ["nowhere"], 4, id="no such directory"),
        pytest.param({"pyproject.toml": "["}, [], 4, id="settings that are no TOML"),
    ],
)
def test_nothing_is_left(
    project: Example,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
    files: dict[str, str],
    arguments: list[str],
    code: int,
) -> None:
    """Where nothing is found there is no file, and the output says what to do."""
    project.write(files)
    before = files_of(project)
    assert main(["init", *arguments]) == code
    out, error = capsys.readouterr()
    assert (out + error).splitlines() == wording
    assert files_of(project) == before


@pytest.mark.usefixtures("untried")
def test_of_all_that_is_there(project: Example) -> None:
    """Names do not collide, nothing is undefined or unused, and every line is as this repository's own are."""
    pytest.importorskip("gymnasium")
    makers = "def make_env(env_id, idx):\n    def thunk(): ...\n    return thunk\n"
    code = f"import gymnasium\n{GAE}{ENVS}{BUFFER}{SAC}{PPO}{makers}"
    project.write(
        {
            "mine/__init__.py": "",
            "mine/code.py": code,
            "mine/more.py": code,
            "tests/test_it.py": HELPERS,
            "tests/conftest.py": FIXTURE,
        }
    )
    assert main(["init", "--output=tests/test_perf.py"]) == 0
    tree = ast.parse(Path("tests/test_perf.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    fixtures = {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
    kinds = ("vecenv_step", "replay_sample", "gae", "sac_update", "ppo_collect")
    assert {f"rlperf_{kind}" for kind in kinds} <= fixtures
    options = ["--isolated", "--line-length=120", "--config=src=['.', 'tests']", "--select=E,F,W,B,UP,C4"]
    lint = [sys.executable, "-m", "ruff", "check", *options, "tests/test_perf.py"]
    result = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("files", "libraries"),
    [
        ({"mine.py": "from gymnasium import Env"}, []),
        ({"requirements.txt": "gymnasium[all]>=1 ; python_version > '3'\n# stable-baselines3\n"}, []),
        ({"tianshou/__init__.py": "", "x.py": GAE}, ["tianshou"]),
    ],
)
def test_libraries_are_tested_by_their_own_projects(
    project: Example, files: dict[str, str], libraries: list[str]
) -> None:
    """Tests of a library that a project only uses would load none of its code."""
    project.write(files)
    assert main(["init", "--output=test_perf.py"]) == (0 if libraries else 5)
    assert {name.split("_")[1] for name in (listed("test_perf.py") if libraries else [])} == set(libraries)


def test_what_runs_none_of_the_projects_code_has_no_test(project: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """An env that stands in the tests themselves, and is stepped by others' code alone, is left out."""
    makes = f"{ENVS}\ndef make_walks():\n    return Walks(2)\n"
    project.write({"mine.py": NONE, "tests/test_it.py": makes})
    assert main(["init", "--output=tests/test_perf.py"]) == 5
    assert "tests/test_it.py:20  it runs none of your code\n" in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.usefixtures("untried")
def test_of_a_project_in_torch(project: Example) -> None:
    """A function of tensors gets tensors, on one thread, and the workflow installs what has torch."""
    project.write({"advantages.py": f"import torch\n{GAE.replace('rewards.copy()', 'torch.zeros_like(rewards)')}"})
    assert main(["init", "--github"]) == 0
    assert installs(GATE) == ["pip install TOOL[rl]"]
    text = Path("test_perf.py").read_text(encoding="utf-8")
    assert 'rlperf_gae(compute_gae, backend="torch")' in text
    assert text.count("import torch\n") == text.count("    torch.set_num_threads(1)") == 1


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("files", "lines"),
    [
        pytest.param(
            {
                "bare.py": "class Env: ...\nclass E(Env):\n    def reset(self): ...\n    def step(self, a): ...",
                "makes.py": "def make_env(env_id, idx):\n    def thunk(): ...\n    return thunk",
                "walks.py": ENVS,
            },
            [
                "lambda: E())",
                'make_env(env_id="Pendulum-v1", idx=0)',
                "rlperf_vecenv_step(lambda: Walks(num_envs=8))",
            ],
            id="envs",
        ),
        pytest.param(
            {
                "mine.py": f"{BUFFER.replace('Memory', 'B')}class B2(B): ...",
                "batch.py": BUFFER.replace("Memory", "C").replace("def sample(", "def sample_batch("),
                "shaped.py": SHAPED,
                "square.py": SHAPED.replace("Buffer", "Square").replace("obs_shape=(4,)", "obs_shape=(2, 5)"),
            },
            [
                "from mine import B, B2\n",
                '@pytest.mark.parametrize("stored", [1_000, 10_000, 100_000])',
                "buffer.push(state=obs, action=action, reward=1.0, next_state=obs, done=step % 10 == 9)",
                "rlperf_replay_sample(lambda: buffer.sample_batch(256), batch_size=256)",
                "obs = np.random.rand(4).astype(np.float32)",
                "obs = np.random.rand(2, 5).astype(np.float32)",
            ],
            id="buffers",
        ),
        pytest.param(
            {
                "many.py": BUFFER.replace("push(self, state, action,", "add_batch(self, states, actions,"),
                "rows.py": BUFFER.replace("Memory", "Rows").replace(
                    "push(self, state, action, reward, next_state, done)", "extend(self, transitions)"
                ),
            },
            [
                "buffer.add_batch(np.array([obs]), np.array([action]), np.array([1.0]), np.array([obs]), ",
                "buffer.extend(transitions=[(obs, action, 1.0, obs, step % 10 == 9)])",
            ],
            id="buffers that take several transitions",
        ),
        pytest.param(
            {"mine.py": BUFFER + SAC, "ppo.py": PPO, "other.py": "class PPO:\n    def update(self): ..."},
            [
                "buffer = Memory(capacity=10_000)",
                "rlperf_sac_update(lambda: agent.train(replay_buffer=buffer))",
                "rlperf_ppo_collect(lambda: agent.collect_rollout(n_steps=128), items=128)",
                "rlperf_ppo_update(lambda: agent.update())",
            ],
            id="agents",
        ),
    ],
)
def test_what_tests_are_made_of(project: Example, files: dict[str, str], lines: list[str]) -> None:
    """Sizes are those that regressions showed at: full buffers of several sizes."""
    project.write(files)
    assert main(["init"]) == 0
    text = Path("test_perf.py").read_text(encoding="utf-8")
    assert [line for line in lines if line not in text] == []


def test_an_agent_of_a_script_is_made_with_its_own_arguments(project: Example) -> None:
    """Its actions may be numbers, and its settings a class without required arguments."""
    store = "def push(self, state, action, reward, next_state, done):\n        assert action in (0, 1)"
    code = (
        "class Args: ...\nclass DQN:\n    def __init__(self, args): self.args = args\n"
        "    def update(self): self.args.n = 1\n"
    )
    project.write({"rl.py": BUFFER.replace("def push(self, state, action, reward, next_state, done):", store) + code})
    assert main(["init"]) == 0
    assert listed("test_perf.py") == ["test_memory_sample", "test_dqn_update"]
    text = Path("test_perf.py").read_text(encoding="utf-8")
    assert "        action = step % 2\n" in text
    assert "agent = DQN(args=Args())\n" in text


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        ('[tool.pytest.ini_options]\ntestpaths = ["missing", "checks"]', "checks"),
        ('[tool.pytest.ini_options]\ntestpaths = "checks"', "checks"),
        ('[tool.pytest.ini_options]\ntestpaths = ["missing"]', "test"),
        ("", "test"),
    ],
)
def test_it_stands_among_the_projects_tests(project: Example, settings: str, directory: str) -> None:
    """The directory is the one that pytest collects."""
    project.write({"pyproject.toml": settings, "src/mine.py": GAE})
    for name in ("checks", "test"):
        (project.root / name).mkdir()
    assert main(["init"]) == 0
    assert Path(directory, "test_perf.py").exists()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")], ids=["file", "link"])
def test_a_file_is_kept(project: Example, capsys: pytest.CaptureFixture[str], make: Any, wording: Wording) -> None:
    """A file that is there is a usage error of one sentence, and stays as it is."""
    path = project.root / "tests" / "test_perf.py"
    path.parent.mkdir()
    make(path)
    assert main(["init"]) == 4
    _, error = capsys.readouterr()
    assert error == wording
    assert path.is_symlink() or path.read_bytes() == b""


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("files", "installed"),
    [
        ({"pyproject.toml": "[build-system]"}, "pip install -e . TOOL"),
        ({"other.py": "import gymnasium"}, "pip install TOOL gymnasium"),
        ({"other.py": "import gymnasium", "requirements.txt": "gymnasium"}, "pip install -r requirements.txt TOOL"),
        ({"envpool.py": GAE}, "pip install TOOL"),
    ],
)
def test_the_workflow_installs_what_is_measured(project: Example, files: dict[str, str], installed: str) -> None:
    """The project, this package, and the libraries that the tests import and the project does not declare."""
    project.write({"mine.py": GAE, **files})
    assert main(["init", "--github"]) == 0
    assert installs(GATE) == [installed]
    assert not DEPENDENCIES.exists()


@pytest.mark.usefixtures("untried")
def test_the_workflow_compares_each_dependency(project: Example) -> None:
    """Those that the project declares, and libraries that it uses."""
    project.write(
        {"mine.py": GAE, "requirements.txt": "SciPy>=1\nnumpy\nFarama_Notifications\n", "other.py": "import gymnasium"}
    )
    assert main(["init", "--github-dependencies"]) == 0
    assert GATE.exists()
    text = DEPENDENCIES.read_text(encoding="utf-8")
    assert "names=(farama-notifications gymnasium numpy scipy)\n" in text
    assert 'python -m pytest test_perf.py "--rlperf-against=pip:$name==$before"' in text


@pytest.mark.usefixtures("untried")
def test_workflows_are_kept(project: Example, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """What is there stays as it is, and the rest is written."""
    project.write({"mine.py": GAE, str(GATE): "", "requirements.txt": "numpy"})
    assert main(["init", "--github-dependencies"]) == 0
    assert capsys.readouterr().out.splitlines() == wording
    assert GATE.read_bytes() == b""
    assert DEPENDENCIES.exists()
    assert main(["init", "--github"]) == 0
    assert listed("test_perf.py") == ["test_gae"]
