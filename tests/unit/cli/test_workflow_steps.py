"""The steps of the workflows: each is run by bash, as GitHub runs it, in a scratch repository."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest
from builders import git
from workflow_files import load, write

from pytest_rlperf.cli import workflows
from pytest_rlperf.cli.command import LARGEST_BYTES

ROOT = Path(__file__).parents[3]
GATE = ROOT / ".github" / "workflows" / "gate.yml"
DEPENDENCIES = ROOT / "pytest_rlperf" / "cli" / "dependencies.yml"
PULL_SHA = "3" * 40
REPOSITORY = "git+https://github.com/pytest-rlperf/pytest-rlperf"

LIBRARY = """
def work():
    return sum(range({rounds}))
"""
TEST = """
from scratch_library import work


def test_work(rlperf):
    rlperf(work)
"""
PYPROJECT = """
[build-system]
requires = ["flit_core"]
build-backend = "flit_core.buildapi"

[project]
name = "scratch_library"
version = "1"
description = "measured by a workflow"

[project.optional-dependencies]
rl = []

[tool.pytest.ini_options]
rlperf_max_time = "{max_time}"
"""


@dataclass
class Result:
    """The steps' results: the last exit code, all output, the job's summary and the outputs of the last one."""

    code: int
    text: str
    summary: str
    outputs: dict[str, str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith("::")]


@dataclass
class Runner:
    """A machine of GitHub's with a checkout in ``workspace``, where programs in the directory ``bin`` come first."""

    directory: Path
    workspace: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        temp = self.directory / "temp"
        temp.mkdir()
        for name in ("python", "pip"):  # those of the tests are not this machine's
            script(self.directory / "bin" / name, f"echo {name} is not here; exit 127")
        git = {"GIT_CONFIG_GLOBAL": str(self.directory / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
        # Nothing is downloaded: what is to be installed is there, and so are the backends that build it.
        pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_CACHE_DIR": "1"}
        self.environment = {
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.directory),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            **git,
            **pip,
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_REPOSITORY": "someone/scratch",
            "GITHUB_RUN_ID": "17",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_REF_NAME": "main",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_SHA": PULL_SHA,
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_STEP_SUMMARY": str(self.directory / "summary.md"),
            "GITHUB_OUTPUT": str(self.directory / "output"),
            "RUNNER_TEMP": str(temp),
        }
        for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
            Path(self.environment[name]).touch()

    @property
    def outputs(self) -> dict[str, str]:
        """What steps have written to the file of outputs."""
        written = Path(self.environment["GITHUB_OUTPUT"]).read_text(encoding="utf-8")
        lines = dict(line.split("=", 1) for line in written.splitlines() if re.match(r"\w+=", line))
        return {**lines, **{name: value for name, _, value in re.findall(r"(?m)^(\w+)<<(\S+)\n(.*)\n\2$", written)}}

    def add_python(self) -> None:
        """Make the Python that scripts find, and its pip, those of a virtual environment of this machine."""
        self.environment["PATH"] = f"{make_python(self.directory / 'python')}{os.pathsep}{self.environment['PATH']}"

    def run(self, steps: list[dict[str, Any]], context: Mapping[str, str], **variables: str) -> Result:
        """Run the scripts among the steps until one fails; ``context`` has the values of expressions."""
        code, text = 0, ""
        for step in steps:
            if "run" not in step or not holds(step.get("if"), context, self.outputs):
                continue
            script = self.directory / "temp" / "script.sh"
            script.write_text(step["run"], encoding="utf-8")
            wanted = {name: evaluated(str(value), context) for name, value in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.workspace,
                env={**self.environment, **wanted, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            code, text = done.returncode, text + done.stdout
            if code:
                break
        summary = Path(self.environment["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")
        return Result(code, text, summary, self.outputs)

    def gate(self, **inputs: str) -> Result:
        """Run the gate's steps, and those of the action that it uses, as in a pull request to main."""
        (job,) = load(GATE)["jobs"].values()
        (use,) = [step for step in job["steps"] if step.get("uses") == "./"]
        before = job["steps"][: job["steps"].index(use)]
        action = load(ROOT / "action.yml")
        defaults = {name: str(entry["default"]) for name, entry in action["inputs"].items()}
        against = evaluated(job["env"]["AGAINST"], EVENTS["pull_request"])
        given = {name: evaluated(value, {"env.AGAINST": against}) for name, value in use["with"].items()}
        context = {f"inputs.{name}": value for name, value in {**defaults, **given, **inputs}.items()}
        variables = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_BASE_REF": "main", "AGAINST": against}
        return self.run([*before, *action["runs"]["steps"]], {**EVENTS["pull_request"], **context}, **variables)

    def written(self, gate: Path, event: str, **values: str) -> Result:
        """Run the steps of a gate that `rlperf init --github` has written, for an event of GitHub's."""
        (job,) = load(gate)["jobs"].values()
        context = {**EVENTS[event], **{name.replace("__", "."): value for name, value in values.items()}}
        variables = {name: evaluated(value, context) for name, value in job["env"].items()}
        return self.run(job["steps"], context, GITHUB_EVENT_NAME=event, **variables)


# What expressions are in an event's context; those of other events are empty.
NOTHING = dict.fromkeys(("github.event.merge_group.base_sha", "github.base_ref", "inputs.against"), "")
EVENTS = {
    "pull_request": {**NOTHING, "github.event.repository.default_branch": "trunk", "github.base_ref": "main"},
    "merge_group": {**NOTHING, "github.event.repository.default_branch": "trunk"},
    "workflow_dispatch": {**NOTHING, "github.event.repository.default_branch": "main"},
}


def evaluated(text: str, context: Mapping[str, str]) -> str:
    """Return text with its expressions replaced; one that names what the test does not know is a KeyError."""
    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: value_of(found[1], context), text, flags=re.DOTALL)


def value_of(expression: str, context: Mapping[str, str]) -> str:
    """Return the value of an expression: of names, `||`, and a `format` of one value at its end."""
    before, is_format, value = expression.partition("format(")
    if is_format:
        text, _, inner = value.removesuffix(")").partition(", ")
        last = [text.strip("'").format(value_of(inner, context))]
    values = [context[name.strip()] for name in before.split("||") if name.strip()]
    return next(filter(None, [*values, *(last if is_format else [])]), "")


def holds(condition: str | None, context: Mapping[str, str], outputs: Mapping[str, str]) -> bool:
    """Whether a script's step is to be run: there are conditions on inputs and on outputs of steps before."""
    if condition is None:
        return True
    name, value = re.fullmatch(r"(inputs\.\w+|steps\.\w+\.outputs\.\w+) == '(\w+)'", condition).groups()  # type: ignore[union-attr]
    return (outputs.get(name.rpartition(".")[2]) if name.startswith("steps.") else context[name]) == value


def make_python(directory: Path) -> Path:
    """Return the scripts' directory of a virtual environment that has what the tests' own has, but not this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120)
    own = Path(sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})["purelib"])
    parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "parents.pth").write_text("".join(f"{parent}\n" for parent in sorted(parents)), encoding="utf-8")
    # Else `pip` would be the parent's, and install there.
    script(directory / "bin" / "pip", f'exec "{directory}/bin/python" -m pip "$@"')
    return directory / "bin"


def script(path: Path, command: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o755)


def scratch(
    directory: Path,
    change: Mapping[str, str],
    message: str = "change",
    max_time: float = 2,
    own: Mapping[str, str] = MappingProxyType({}),
    *,
    origin: bool = False,
) -> Path:
    """Return a checkout as GitHub makes it for a pull request: the merge of a branch with ``change`` into main.

    Main has a library and its test, and ``own`` files. With ``origin``, what it was fetched from is beside it.
    """
    made = merged(directory.parent, tuple(change.items()), message, max_time, tuple(own.items()))
    for name in ("origin", "checkout") if origin else ("checkout",):
        shutil.copytree(made / name, directory / name)
    return directory / "checkout"


Texts: TypeAlias = tuple[tuple[str, str], ...]  # of files, by their names


@functools.cache
def merged(scratches: Path, change: Texts, message: str, max_time: float, own: Texts) -> Path:
    """Return a directory with ``origin`` and ``checkout``, which finds the former beside it: tests get copies."""
    made = Path(tempfile.mkdtemp(dir=scratches))
    origin, checkout = made / "origin", made / "checkout"
    shutil.copytree(only_main(scratches, max_time, own), origin)
    git(origin, "switch", "--quiet", "--create", "branch")
    put(origin, dict(change))
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", message)
    git(origin, "switch", "--quiet", "--detach", "main")
    git(origin, "merge", "--quiet", "--no-ff", "--message", "merge", "branch")
    git(origin, "update-ref", "refs/pull/1/merge", "HEAD")
    git(origin, "switch", "--quiet", "main")
    git(made, "init", "--quiet", "--template=", "checkout")
    git(checkout, "config", "remote.origin.url", "../origin")
    packed = ("-c", "fetch.unpackLimit=1")  # of two files, which are soon copied
    git(checkout, *packed, "fetch", "--quiet", "origin", "+refs/heads/*:refs/remotes/origin/*", "refs/pull/1/merge")
    git(checkout, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    return made


@functools.cache
def only_main(scratches: Path, max_time: float, own: Texts) -> Path:
    """Return a repository with one commit."""
    made = Path(tempfile.mkdtemp(dir=scratches))
    files = {
        "pyproject.toml": PYPROJECT.format(max_time=max_time),
        "constraints.txt": "",
        "scratch_library.py": '"""Work."""\n' + LIBRARY.format(rounds=4000),
        "tests/test_perf.py": TEST,
        ".gitignore": "__pycache__\n.pytest_cache\n",
    }
    put(made, {**files, **dict(own)})
    git(made, "init", "--quiet", "--template=")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message", "main")
    return made


def put(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")


def test_shards_of_the_guide_are_merged(tmp_path: Path) -> None:
    """The matrix's step measures its shard, and the last job merges and summarizes what the shards have kept."""
    measure, gate = load(ROOT / "docs" / "workflows" / "shards.yml")["jobs"].values()
    runner = Runner(tmp_path, tmp_path)
    for name in ("python", "rlperf"):
        script(tmp_path / "bin" / name, 'printf "%s\\n" "$@"')
    context = {"matrix.shard": "2", "strategy.job-total": "4"}
    (step,) = [step for step in measure["steps"] if step.get("name") == "Measure"]
    result = runner.run([step], context, GITHUB_BASE_REF="main")
    assert result.text.splitlines() == [
        *("-m", "pytest", "--rlperf-against=main", "--rlperf-shard=2/4"),
        f"--rlperf-json={tmp_path}/temp/shard-2.json",
    ]
    (tmp_path / "shards").mkdir()
    for number in (1, 2):
        (tmp_path / "shards" / f"shard-{number}.json").touch()
    (step,) = [step for step in gate["steps"] if step.get("name") == "Merge"]
    result = runner.run([step], context)
    assert result.text.splitlines() == [
        *("merge", "shards/shard-1.json", "shards/shard-2.json"),
        f"--json={tmp_path}/temp/rlperf.json",
    ]
    (step,) = [step for step in gate["steps"] if step.get("name") == "Summarize"]
    result = runner.run([{**step, "if": None}], context)
    assert result.summary.splitlines() == ["show", f"{tmp_path}/temp/rlperf.json", "--format=github"]


def test_action_passes_its_inputs_on_as_they_are(tmp_path: Path) -> None:
    """An input is one argument, except that `args` is split as in a shell, and nothing in it runs."""
    runner = Runner(tmp_path, tmp_path)
    script(tmp_path / "bin" / "python", 'printf "%s\\n" "$@"')
    action = load(ROOT / "action.yml")
    context = {
        "inputs.install": "true",
        "inputs.extras": "$(touch extras)",
        "inputs.against": "$(touch against)",
        "inputs.baseline": "`touch baseline`",
        "inputs.tolerance": "5%; touch tolerance",
        "inputs.args": "-k 'one two' \"$(touch args)\" *",
        "github.event.merge_group.base_sha": "",
    }
    result = runner.run(action["runs"]["steps"], context)
    assert result.code == 0, result.text
    assert result.text.splitlines() == [
        "-m",
        "pip",
        "install",
        f"{ROOT}[$(touch extras)]",
        "-m",
        "pytest",
        "--rlperf",
        f"--rlperf-json={tmp_path}/temp/rlperf.json",
        "-k",
        "one two",
        "$(touch args)",
        "*",
        "--rlperf-against=$(touch against)",
        "-o",
        "rlperf_baseline=`touch baseline`",
        "--rlperf-tolerance=5%; touch tolerance",
    ]
    assert not [name for name in ("extras", "against", "baseline", "tolerance", "args") if (tmp_path / name).exists()]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["--rlperf-against=main"]),
        ({"github.base_ref": "", "github.event.merge_group.base_sha": PULL_SHA}, [f"--rlperf-against={PULL_SHA}"]),
        ({"inputs.against": "v1"}, ["--rlperf-against=v1"]),
        ({"inputs.baseline": "perf/nightly"}, ["-o", "rlperf_baseline=perf/nightly"]),
    ],
)
def test_action_compares_a_pull_request_with_its_base(
    tmp_path: Path, given: dict[str, str], expected: list[str]
) -> None:
    """Where nothing is named to compare with, it is the pull request's base branch, or the merge group's commit."""
    runner = Runner(tmp_path, tmp_path)
    script(tmp_path / "bin" / "python", 'printf "%s\\n" "$@"')
    nothing = dict.fromkeys(("inputs.against", "inputs.baseline", "inputs.tolerance", "inputs.args"), "")
    steps = load(ROOT / "action.yml")["runs"]["steps"]
    context = {**EVENTS["pull_request"], "inputs.install": "false", **nothing, **given}
    result = runner.run(steps, context, GITHUB_BASE_REF=context["github.base_ref"])
    assert result.text.splitlines()[4:] == expected


@pytest.mark.slow
def test_baseline_is_measured_stored_and_proposed(tmp_path: Path) -> None:
    """The baseline's steps: the measuring job stores figures, the other one pushes them and opens a pull request."""
    jobs = load(ROOT / ".github" / "workflows" / "baseline.yml")["jobs"]
    runner = Runner(tmp_path, scratch(tmp_path, {}, max_time=1, origin=True))
    runner.add_python()
    git(runner.workspace, "checkout", "--quiet", "--detach", "origin/main")
    install_this = load(ROOT / "action.yml")["runs"]["steps"][:1]  # which a library has among its dependencies
    context = {"inputs.install": "true", "inputs.extras": "", "inputs.accept": "", "github.token": "a token"}
    result = runner.run([*install_this, *jobs["measure"]["steps"]], context)
    assert result.code == 0, result.text
    (stored,) = (runner.workspace / "baselines" / "default").glob("*.json")
    assert "test_work" in stored.read_text(encoding="utf-8")

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(tmp_path / "origin"), str(clone))
    shutil.copytree(runner.workspace / "baselines", clone / "baselines")
    told = tmp_path / "gh.txt"
    script(tmp_path / "bin" / "gh", f'printf "%s\\n" "$GH_TOKEN" "$@" >>"{told}"')
    runner.workspace = clone
    result = runner.run(jobs["propose"]["steps"], context)
    assert result.code == 0, result.text
    branch = "rlperf-baseline-17-1"
    pushed = git(tmp_path / "origin", "show", "--stat", "--format=%an: %s", branch)
    assert pushed.startswith(f"github-actions[bot]: Store the performance baseline of {PULL_SHA[:12]}")
    assert stored.name in pushed
    assert "git" in told.read_text(encoding="utf-8")
    assert f"pr\ncreate\n--base\nmain\n--head\n{branch}\n" in told.read_text(encoding="utf-8")

    git(clone, "switch", "--quiet", "main")
    git(clone, "merge", "--quiet", branch)
    result = runner.run(jobs["propose"]["steps"], context, GITHUB_RUN_ATTEMPT="2")
    assert result.code == 0
    assert "baseline" in result.text.splitlines()[-1]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        (ROOT / ".github" / "workflows" / "since-release.yml", "performance-since-release"),
        (DEPENDENCIES, "performance-dependencies"),
    ],
    ids=["since-release", "dependencies"],
)
def test_one_issue_follows_the_slowdown(tmp_path: Path, path: Path, label: str) -> None:
    """The issue is opened by the first slow run, updated by the next, and closed by one that is not slow."""
    step = load(path)["jobs"]["report"]["steps"][-1]
    runner = Runner(tmp_path, scratch(tmp_path, {}, max_time=1))
    told, found = tmp_path / "gh.txt", tmp_path / "issue"
    script(
        tmp_path / "bin" / "gh", f'echo "$*" >>"{told}"; if [ "$2" = list ]; then cat "{found}" 2>/dev/null; fi; true'
    )

    def run(slower: str, issue: str) -> list[str]:
        told.write_text("", encoding="utf-8")
        found.write_text(issue, encoding="utf-8")
        (runner.workspace / "slower.md").write_text(slower.strip("0"), encoding="utf-8")  # of the artifact
        context = {"github.token": "a token", "github.repository": "a/b", "needs.measure.outputs.slower": slower}
        result = runner.run([step], context)
        assert result.code == 0, result.text
        return [line.split(" --")[0] for line in told.read_text(encoding="utf-8").splitlines()[1:]]

    assert run("0", "") == []
    assert run("2", "") == [f"label create {label}", "issue create"]
    assert run("2", "7\n") == ["issue edit 7"]
    assert run("0", "7\n") == ["issue close 7"]


@pytest.mark.parametrize(
    ("installed", "slower", "expected"),
    [
        ("1.4.0", "", []),
        ("1.4.0", "torch==1.3.0", ["# torch 1.4.0 against 1.3.0", "the table", "bisect torch==0.9.0..1.4.0"]),
        ("1.0.0+cpu", "torch==0.9.0", ["# torch 1.0.0+cpu against 0.9.0", "the table", "bisect torch==0.8.0..1.0.0"]),
        ("0.8.0", "torch", []),
        ("7.0.0", "torch", []),
    ],
    ids=["none is slower", "slower", "another build of an earlier one", "the first release", "a release of no index"],
)
def test_each_dependency_is_compared_with_the_release_before(
    tmp_path: Path, installed: str, slower: str, expected: list[str]
) -> None:
    """A slower one has its table and the search among five releases; one that is not installed is passed over."""
    (measure,) = [step for step in load(DEPENDENCIES)["jobs"]["measure"]["steps"] if step.get("name") == "Measure"]
    measure["run"] = measure["run"].replace("~dependencies", "absent numpy torch").replace("~tests", "tests")
    runner = Runner(tmp_path, scratch(tmp_path, {}, max_time=1))
    versions = f"[ $2 = absent ] && exit 1; echo 'Version: {installed}'"
    releases = "echo 'Available versions: 1.4.0, 1.3.0+cpu, 1.3.0, 1.2.0, 1.1.0, 1.0.0, 0.9.0+cpu, 0.9.0, 0.8.0'"
    script(tmp_path / "bin" / "pip", f"if [ $1 = show ]; then {versions}; else {releases}; fi")
    search = "echo '= rlperf bisect ='; echo $1 $2; exit 1"
    script(tmp_path / "bin" / "rlperf", f"[ $1 = show ] || {{ {search}; }}; echo the table; exit 1")
    script(tmp_path / "bin" / "python", f"case $4 in --rlperf-against=pip:{slower or '-'}*) exit 1;; esac; exit 0")
    result = runner.run([measure], {})
    assert result.code == 0, result.text
    told = (tmp_path / "temp" / "slower.md").read_text(encoding="utf-8").replace("bisect pip:", "bisect ").splitlines()
    assert [line for line in told if line not in ("```", "```text", "## Since which release", "= rlperf bisect =")] == (
        expected
    )


@pytest.mark.parametrize(
    ("change", "is_code"),
    [
        pytest.param({"README.md": "words", "docs/guide/a b.rst": "", "docs/plot.svg": ""}, False, id="documentation"),
        pytest.param({".github/dependabot.yml": "", ".github/workflows/other.yml": ""}, False, id="GitHub's own"),
        pytest.param({}, False, id="nothing"),
        pytest.param({"scratch_library.py": "work = len\n"}, True, id="a source"),
        pytest.param({"README.md": "words", "data.txt": ""}, True, id="any other file"),
        pytest.param({"scratch/README.md": ""}, True, id="among sources"),
        pytest.param({"docs/table.csv": ""}, True, id="data in docs"),
        pytest.param({"docs/conf.py": ""}, True, id="a source in docs"),
        pytest.param({".github/actions/own/action.yml": ""}, True, id="an action"),
        pytest.param({".github/workflows/gate.yml": ""}, True, id="the gate"),
        pytest.param({"NAMED.md": ""}, True, id="documentation that a source names"),
        pytest.param({"docs/plot.gif": ""}, True, id="a suffix that a source names"),
        pytest.param({"docs/::error::\n%0A.py": ""}, True, id="a name for the log"),
    ],
)
@pytest.mark.parametrize("event", ["pull_request", "merge_group"])
def test_the_written_gate_ends_early_without_code(
    tmp_path: Path, event: str, change: dict[str, str], is_code: bool
) -> None:
    """It is green before anything is installed, and says why, only where no changed file can matter to a test."""
    library = f"{LIBRARY.format(rounds=1)}PAGE = 'docs/NAMED.md'\nPLOTS = '*.gif'\n"
    texts = {"pyproject.toml": "[project]\nreadme = 'README.md'\n", "scratch_library.py": library}
    runner = Runner(tmp_path, scratch(tmp_path, change, own=texts))
    for name in ("pip", "python"):
        script(tmp_path / "bin" / name, f'echo "{name} is called" "$@"')
    gate, _ = write(tmp_path / "written", {})
    base = git(runner.workspace, "rev-parse", "HEAD^1") if event == "merge_group" else ""
    result = runner.written(gate, event, github__event__merge_group__base_sha=base)
    print(result.text)  # noqa: T201 - what a person looks at
    assert result.code == 0, result.text
    assert result.commands == []
    assert (f"pytest tests/test_perf.py --rlperf-against={base or 'origin/main'}" in result.text) is is_code
    assert ("is called" in result.text) is is_code
    assert ("Nothing was measured" in result.summary) is not is_code
    assert ("Measuring: " in result.text) is is_code


@pytest.mark.parametrize(
    ("source", "is_code"),
    [
        ("open('docs/page-1.md')", True),
        ("'page-%d.md' % 1", True),
        ("f'{page}.md'", True),
        ("glob('page*.md')", True),
        (r"re.compile(r'\.md$')", True),
        ("path.suffix == '.md'", True),
        ("open('other.md')", False),
        ("'.mdx', 'page-1.html', 'amd', page.model", False),
    ],
)
def test_documentation_that_a_source_may_read_is_measured(tmp_path: Path, source: str, is_code: bool) -> None:
    """A source names it by its whole name, or by a pattern of its suffix."""
    runner = Runner(tmp_path, scratch(tmp_path, {"docs/page-1.md": ""}, own={"reader.py": source, "docs/other.md": ""}))
    (step,) = [step for step in load(GATE)["jobs"]["gate"]["steps"] if step.get("id") == "change"]
    result = runner.run([step], {}, GITHUB_EVENT_NAME="pull_request", AGAINST="origin/main")
    assert result.code == 0, result.text
    assert (result.outputs == {"code": "true"}) is is_code


def test_documentation_is_measured_where_git_cannot_search(tmp_path: Path) -> None:
    """An error of the search is no evidence that no source names a file."""
    runner = Runner(tmp_path, scratch(tmp_path, {"README.md": "words"}))
    script(tmp_path / "bin" / "git", f'[ "$1" = grep ] && exit 128; exec "{shutil.which("git")}" "$@"')
    (step,) = [step for step in load(GATE)["jobs"]["gate"]["steps"] if step.get("id") == "change"]
    result = runner.run([step], {}, GITHUB_EVENT_NAME="pull_request", AGAINST="origin/main")
    assert (result.code, result.outputs) == (0, {"code": "true"}), result.text


@pytest.mark.parametrize(
    ("event", "values", "against"),
    [
        ("workflow_dispatch", {}, "origin/main"),
        ("workflow_dispatch", {"inputs__against": "v1 $(touch made)"}, "v1 $(touch made)"),
        ("pull_request", {"github__base_ref": "gone"}, "origin/gone"),
    ],
    ids=["by hand", "by hand against another", "a base that git lacks"],
)
def test_the_written_gate_measures_when_in_doubt(
    tmp_path: Path, event: str, values: dict[str, str], against: str
) -> None:
    """Whoever starts it by hand gets figures; a base that is not there is an error of the run itself."""
    runner = Runner(tmp_path, scratch(tmp_path, {"README.md": "words"}))
    for name in ("pip", "python"):
        script(tmp_path / "bin" / name, 'printf "%s\\n" "$@"')
    gate, _ = write(tmp_path / "written", {})
    result = runner.written(gate, event, **values)
    assert result.code == 0, result.text
    assert f"--rlperf-against={against}" in result.text.splitlines()
    assert not (runner.workspace / "made").exists()


# How this package is installed with what pip takes, {0} for a clone and {1} for a directory with its wheel, and what is
# pinned of it then: the release is 1.2.3.
ORIGINS = {
    "an index": (["--find-links={1}", "pytest-rlperf"], "pytest-rlperf[rl]==1.2.3"),
    "a repository": (["git+file://{0}"], "pytest-rlperf[rl] @ REPOSITORY@HEAD"),
    "a clone": (["--editable", "{0}"], "pytest-rlperf[rl] @ REPOSITORY@HEAD"),
    "a copy of a clone": (["{0}"], "pytest-rlperf[rl] @ REPOSITORY@HEAD"),
    "a wheel": (["{1}/pytest_rlperf-1.2.3-py3-none-any.whl"], "pytest-rlperf[rl] @ REPOSITORY@v1.2.3"),
}


@pytest.mark.slow
def test_the_tool_is_pinned_to_what_wrote_the_workflow(tmp_path: Path) -> None:
    """A release by its number, anything else by its commit: a later version would measure otherwise."""
    clone, wheels = tmp_path / "clone", tmp_path / "wheels"
    if not (ROOT / ".git").exists():
        pytest.skip("a clone is made of a clone")
    git(tmp_path, "clone", "--quiet", str(ROOT), str(clone))
    runner = Runner(tmp_path, tmp_path)
    runner.add_python()
    # The module is the one that is tested here, the metadata those of what was installed.
    variables = {**runner.environment, "SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.3", "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout.strip()

    run("pip", "wheel", f"--wheel-dir={wheels}", str(clone))
    head = git(clone, "rev-parse", "HEAD")
    for origin, (words, expected) in ORIGINS.items():
        run("pip", "install", "--force-reinstall", *(word.format(clone, wheels) for word in words))
        found = run("python", "-c", "from pytest_rlperf.cli import workflows; print(workflows._tool('[rl]'))")
        assert found.replace(REPOSITORY, "REPOSITORY").replace(head, "HEAD") == expected, origin


def test_a_build_of_a_clone_is_pinned_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it came from a directory of wheels, as from an index: no index takes such a version."""
    metadata = tmp_path / "pytest_rlperf-0.1.dev5+gabcdef123.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pytest-rlperf\nVersion: 0.1.dev5+gabcdef123\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert workflows._tool("[rl]") == f"pytest-rlperf[rl] @ {REPOSITORY}@abcdef123"


@pytest.mark.slow
def test_the_written_gate_installs_and_measures(tmp_path: Path) -> None:
    """The commit that it names is installed with the project and its extra, and judges a merge group as it should."""
    if not (ROOT / ".git").exists():
        pytest.skip("the commit is taken from a clone")
    own = {"pyproject.toml": PYPROJECT.format(max_time=30).replace("rl = []", "test = []")}
    runner = Runner(tmp_path, scratch(tmp_path, {"scratch_library.py": LIBRARY.format(rounds=8000)}, own=own))
    runner.add_python()
    here = f"url.{ROOT}.insteadOf"  # what the pin names is at hand
    git(tmp_path, "config", "--file", str(tmp_path / "gitconfig"), here, REPOSITORY.removeprefix("git+"))
    gate, _ = write(tmp_path / "written", own)
    base = git(runner.workspace, "rev-parse", "HEAD^1")
    result = runner.written(gate, "merge_group", github__event__merge_group__base_sha=base)
    print(result.text)  # noqa: T201 - what a person looks at
    assert "'.[test]'" in gate.read_text(encoding="utf-8")
    assert (result.code, result.outputs["verdict"]) == (1, "SLOWER")
    assert base in (tmp_path / "temp" / "rlperf.json").read_text(encoding="utf-8")


# Records its calls; has the artifact and the pull requests that a test has put beside it.
GH = """printf '%s\\n' "$@" >>"$0.calls"
case "$1 $2" in
  "run download") mkdir "$7" && cp "$0.json" "$7/rlperf.json";;
  "api --method") for filter; do :; done; jq -r "$filter" "$0.pulls";;
  "pr comment") cat >"$0.comment";;
esac"""
EVENT = {
    "github.token": "a token",
    "github.repository": "owner/project",
    "github.event.workflow_run.id": "17",
    "github.event.workflow_run.head_repository.full_name": "someone/fork",
    "github.event.workflow_run.head_branch": "a branch&state=closed$(touch made)`touch made`",
    "github.event.workflow_run.head_sha": PULL_SHA,
    "github.event.workflow_run.conclusion": "failure",
    "github.event.workflow_run.html_url": "https://github.com/owner/project/actions/runs/17",
}
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="gh has a jq of its own; here it is the program jq")


@pytest.fixture
def commenting(tmp_path: Path) -> Runner:
    """Return a machine with `rlperf`, and with `gh` as a recorder."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    script(tmp_path / "bin" / "rlperf", f'exec "{sys.executable}" -m pytest_rlperf "$@"')
    script(tmp_path / "bin" / "gh", GH)
    return Runner(tmp_path, workspace)


def run_comment(runner: Runner, artifact: bytes | None, pulls: list[dict[str, Any]], **event: str) -> Result:
    """Run both jobs' scripts for a gate's artifact, in a repository with these open pull requests."""
    jobs = load(ROOT / ".github" / "workflows" / "comment.yml")["jobs"]
    gh = runner.directory / "bin" / "gh"
    if artifact is not None:
        gh.with_suffix(".json").write_bytes(artifact)
    gh.with_suffix(".pulls").write_text(json.dumps(pulls), encoding="utf-8")
    context = {**EVENT, **{f"github.event.workflow_run.{name.replace('__', '.')}": event[name] for name in event}}
    steps = [step for step in jobs["render"]["steps"] if not step.get("run", "").startswith("pip install")]
    rendered = runner.run(steps, context)
    if rendered.code:
        return rendered
    shutil.copy(runner.directory / "temp" / "comment.md", runner.workspace)  # by way of an artifact
    return runner.run(jobs["comment"]["steps"], context)


def pull(number: int, sha: str = PULL_SHA, repository: str | None = "someone/fork") -> dict[str, Any]:
    """Return a pull request as GitHub has it; the head's repository is None where it was deleted."""
    return {"number": number, "head": {"sha": sha, "repo": repository and {"full_name": repository}}}


@needs_jq
def test_the_verdict_is_commented_on_the_pull_request_that_was_measured(commenting: Runner) -> None:
    """The text is made of the run's figures; the pull request is found by GitHub's own event, which runs nothing."""
    run = (ROOT / "tests" / "samples" / "run.json").read_bytes()
    result = run_comment(commenting, run, [pull(4, "b" * 40), pull(5)])
    assert result.code == 0, result.text
    gh = commenting.directory / "bin" / "gh"
    branch = EVENT["github.event.workflow_run.head_branch"]
    assert [
        line for line in gh.with_suffix(".calls").read_text(encoding="utf-8").splitlines() if "env." not in line
    ] == [
        *("run", "download", "17", "--name", "rlperf", "--dir", f"{commenting.directory}/temp/run"),
        *("api", "--method", "GET", "repos/owner/project/pulls"),
        *("-f", "state=open", "-f", f"head=someone:{branch}", "--jq"),
        *("pr", "comment", "5", "--edit-last", "--create-if-none", "--body-file", "-"),
    ]
    text = gh.with_suffix(".comment").read_text(encoding="utf-8")
    assert text.startswith("## ❌ 1 of 1 ")
    assert text.endswith(f"\n[The run]({EVENT['github.event.workflow_run.html_url']}) of {PULL_SHA[:12]}\n")
    assert not (commenting.workspace / "made").exists()


@needs_jq
@pytest.mark.parametrize(
    ("pulls", "event"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([pull(4, "b" * 40)], {}, id="pushed since"),
        pytest.param([pull(4, repository="someone/other")], {}, id="another fork"),
        pytest.param([pull(4, repository=None)], {}, id="head deleted"),
        pytest.param([pull(4, repository=None)], {"head_repository__full_name": ""}, id="fork deleted"),
    ],
)
def test_without_its_pull_request_nothing_is_commented(
    commenting: Runner, pulls: list[dict[str, Any]], event: dict[str, str]
) -> None:
    """Where no open pull request has the head that was measured, the job is green and writes nothing."""
    result = run_comment(commenting, None, pulls, **event)  # whatever the text
    assert result.code == 0, result.text
    assert PULL_SHA in result.text
    assert not (commenting.directory / "bin" / "gh.comment").exists()


@needs_jq
@pytest.mark.parametrize(
    ("conclusion", "words"), [("failure", "has no figures"), ("success", "had nothing to measure")]
)
def test_a_run_without_figures_is_commented(commenting: Runner, conclusion: str, words: str) -> None:
    """An older comment must not stand for a run that broke before there were figures, or had nothing to measure."""
    result = run_comment(commenting, None, [pull(5)], conclusion=conclusion)
    assert result.code == 0, result.text
    text = (commenting.directory / "bin" / "gh.comment").read_text(encoding="utf-8")
    assert text.startswith(f"## ⚠️ The performance gate {words}")
    assert EVENT["github.event.workflow_run.html_url"] in text


@pytest.mark.parametrize(
    ("artifact", "times", "names"),
    [
        pytest.param(b"\xff", 1, "rlperf.json", id="no JSON"),
        pytest.param(b'{"schema": 99, "kind": "run"}', 1, "99", id="newer"),
        pytest.param(b'{"schema": 1, "kind": "run", "machine": "::error::"}', 1, "$.machine", id="no run"),
        pytest.param(b" ", LARGEST_BYTES + 1, str(LARGEST_BYTES), id="huge"),
    ],
)
def test_figures_that_are_refused_fail_the_job(commenting: Runner, artifact: bytes, times: int, names: str) -> None:
    """The artifact is anybody's: nothing is commented, and the log has the reason, which commands no runner."""
    result = run_comment(commenting, artifact * times, [pull(5)])
    assert result.code != 0
    assert names in result.text
    assert result.commands == []
    assert not (commenting.directory / "bin" / "gh.comment").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "message", "passes"),
    [
        pytest.param(4000, "Reword", True, id="unchanged"),
        pytest.param(6000, "Slow down", False, id="slower"),
        pytest.param(6000, "Slow down\n\nRlperf-Accept: *test_work <= +300% more digits", True, id="accepted"),
    ],
)
def test_gate_judges_a_branch(tmp_path: Path, rounds: int, message: str, passes: bool) -> None:
    """An unchanged branch is green, a slower one red at the changed line, an accepted one green with its reason.

    What is slower is so by half, which a busy machine does not hide either.
    """
    library = '"""The same work, reworded."""\n' + LIBRARY.format(rounds=rounds)
    runner = Runner(tmp_path, scratch(tmp_path, {"scratch_library.py": library}, message, max_time=30, origin=True))
    runner.add_python()
    result = runner.gate(install="true")
    print(result.text, result.summary, sep="\n")  # noqa: T201 - what a person looks at
    assert (result.code == 0) is passes, result.text
    if rounds == 4000:
        # Of a restless machine it may take more pairs to be sure, which fails nothing.
        assert result.outputs["verdict"] in ("SAME", "UNDECIDED")
        assert (result.outputs["slower"], result.commands) == ("0", [])
        assert re.match("## ✅ .* 1 ", result.summary)
    elif passes:
        assert (result.outputs["verdict"], result.outputs["accepted"]) == ("ACCEPTED", "1")
        assert result.commands == []
        sha = git(tmp_path / "origin", "rev-parse", "--short=12", "branch")
        assert "<summary>✅ SLOWER (accepted) <code>test&#95;work</code></summary>" in result.summary
        assert f"300 % by {sha}&#58; more digits" in result.summary
    else:
        assert (result.outputs["verdict"], result.outputs["slower"]) == ("SLOWER", "1")
        (line,) = result.commands
        assert line.startswith("::error file=scratch_library.py,line=4,title=SLOWER +")
        assert "Rlperf-Accept: tests/test_perf.py::test_work <= +" in result.summary
