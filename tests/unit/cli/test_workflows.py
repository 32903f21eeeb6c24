from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workflow_files import installs, load, write

from pytest_rlperf.cli.workflows import PYTHONS

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
TESTS = ROOT / ".github" / "workflows" / "tests.yml"
GATE, COMMENT, BASELINE, RELEASE = (
    TESTS.with_name(f"{name}.yml") for name in ("gate", "comment", "baseline", "since-release")
)
ACTION = ROOT / "action.yml"
CITATION = ROOT / "CITATION.cff"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
GUIDE = ROOT / "docs" / "github-actions.md"
COPIED = sorted((ROOT / "docs" / "workflows").glob("*.yml"))  # by users
SHARDS = ROOT / "docs" / "workflows" / "shards.yml"
HERE = "pytest-rlperf/pytest-rlperf"  # at GitHub
PACKAGE = f"'pytest-rlperf @ git+https://github.com/{HERE}'"
PINNED = f"'pytest-rlperf @ git+https://github.com/{HERE}@COMMIT'"
# The templates of `rlperf init --github`, which puts the project's own in the place of what begins with ~.
WRITTEN, DEPENDENCIES = (ROOT / "pytest_rlperf" / "cli" / f"{name}.yml" for name in ("gate", "dependencies"))
IF_CODE = "        if: steps.change.outputs.code == 'true'\n"

READ = {"contents": "read"}
# Permissions of jobs beside reading the repository: none, but for these.
PERMISSIONS = {
    ("comment.yml", "render"): {**READ, "actions": "read"},
    ("comment.yml", "comment"): {"pull-requests": "write"},
    ("baseline.yml", "propose"): {"contents": "write", "pull-requests": "write"},
    ("since-release.yml", "report"): {"issues": "write"},
    ("dependencies.yml", "report"): {"issues": "write"},
    ("pages.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}

each_workflow = pytest.mark.parametrize(
    "path", [*WORKFLOWS, WRITTEN, DEPENDENCIES], ids=lambda path: f"{path.parent.name}/{path.name}"
)


def is_valid(*paths: Path) -> bool:
    """Whether workflows, or other files of GitHub's, fit the schema that check-jsonschema carries along; it prints."""
    from check_jsonschema import main  # type: ignore[import-untyped]  # which takes as long as many tests

    special = {ACTION: "github-actions", CITATION: "citation-file-format", **dict.fromkeys(FORMS, "github-issue-forms")}
    schema = f"vendor.{special.get(paths[0], 'github-workflows')}"
    options = ["--default-filetype=yaml", "--builtin-schema", schema]
    return bool(main([*options, *map(str, paths)], standalone_mode=False) == 0)


def audit(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Look for what others could misuse in workflows, as zizmor does without a network."""
    command = [str(Path(sysconfig.get_path("scripts"), "zizmor")), "--offline", "--no-config", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    if "runs" in workflow:
        return list(workflow["runs"]["steps"])
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    "paths",
    [(*WORKFLOWS, WRITTEN, DEPENDENCIES), (ACTION,), (CITATION,), tuple(FORMS)],
    ids=["workflows", "action", "citation", "issue forms"],
)
def test_files_are_valid(paths: tuple[Path, ...]) -> None:
    """Every workflow, the action, the citation and the forms of issues satisfy their schemas."""
    assert paths
    assert is_valid(*paths)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the gate of a project that needs PyTorch and measures all of its tests."""
    files = {"pyproject.toml": '[project]\nname = "scratch"\ndependencies = ["torch"]'}
    gate, _ = write(tmp_path_factory.mktemp("whole"), files)
    text = re.sub(rf"(?<={HERE}@)[0-9a-f]{{40}}", "COMMIT", gate.read_text(encoding="utf-8"))
    return text.replace(" tests/test_perf.py", "")


Lint = Callable[[dict[str, Any], str, str], list[str]]


def excess_permissions(workflow: dict[str, Any], text: str, name: str) -> list[str]:
    """Return the jobs whose permissions are not just the least, whatever the repository's default is."""
    found = {job: entry.get("permissions", workflow["permissions"]) for job, entry in workflow["jobs"].items()}
    return [job for job, permissions in found.items() if permissions != PERMISSIONS.get((name, job), READ)]


def kept_tokens(workflow: dict[str, Any], text: str, name: str) -> list[str]:
    """Return the checkouts that leave the token to whatever runs after them."""
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    return [step["uses"] for step in checkouts if step.get("with", {}).get("persist-credentials") is not False]


def loose_actions(workflow: dict[str, Any], text: str, name: str) -> list[str]:
    """Return the actions that are not named by their full commit, with the version beside it for people."""
    uses = re.findall(r"uses:(.*)", text)
    return [line for line in uses if not re.fullmatch(r" (\./|[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)", line)]


def expressions_in_scripts(workflow: dict[str, Any], text: str, name: str) -> list[str]:
    """Return the expressions that become part of a script, where others might write code in them."""
    found = [word for step in steps(workflow) for word in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", step.get("run", ""))]
    return [expression for expression in found if not expression.startswith("matrix.")]


def foreign_checkouts(workflow: dict[str, Any], text: str, name: str) -> list[str]:
    """Return what brings another's code into a job that has the repository's own rights."""
    triggers = workflow["on"] if isinstance(workflow["on"], dict) else dict.fromkeys(workflow["on"])
    found = [trigger for trigger in triggers if trigger == "pull_request_target"]
    if "workflow_run" in triggers:
        found += [key for step in steps(workflow) for key in step.get("with", {}) if key in {"ref", "repository"}]
    return found


LINTS: tuple[Lint, ...] = (
    excess_permissions,
    kept_tokens,
    loose_actions,
    expressions_in_scripts,
    foreign_checkouts,
)


@each_workflow
@pytest.mark.parametrize("lint", LINTS, ids=lambda lint: lint.__name__)
def test_workflow_is_safe(path: Path, lint: Lint) -> None:
    """Jobs may do the least, keep no token, use pinned actions, and run nothing that others have written."""
    assert lint(load(path), path.read_text(encoding="utf-8"), path.name) == []


@pytest.mark.parametrize("lint", [loose_actions, expressions_in_scripts], ids=lambda lint: lint.__name__)
def test_action_is_safe(lint: Lint) -> None:
    """The action's own actions are pinned, and its inputs reach its scripts as variables only."""
    assert lint(load(ACTION), ACTION.read_text(encoding="utf-8"), ACTION.name) == []


def test_the_comment_follows_the_gate() -> None:
    """The comment waits for the gate by its name, and reads the artifact that the action uploads for it."""
    comment, gate, action = load(COMMENT), load(GATE), load(ACTION)
    assert comment["on"]["workflow_run"] == {"workflows": [gate["name"]], "types": ["completed"]}
    (render,) = [step["run"] for step in steps(comment) if step.get("name") == "Render"]
    assert f"--name {action['inputs']['artifact']['default']} " in render
    assert f"/run/{Path(steps(action)[-1]['with']['path']).name}" in render
    assert not [step for step in steps(gate) if "artifact" in step.get("with", {})]


def test_only_what_runs_nobodys_code_may_write() -> None:
    """A job that may write installs nothing and runs no tests."""
    for name, job in [key for key, permissions in PERMISSIONS.items() if "write" in permissions.values()]:
        path = DEPENDENCIES if name == DEPENDENCIES.name else TESTS.with_name(name)
        steps_of_job = load(path)["jobs"][job]["steps"]
        scripts = [step["run"] for step in steps_of_job if "run" in step]
        assert scripts or all(step["uses"].startswith("actions/") for step in steps_of_job)
        assert not [script for script in scripts if re.search(r"\bpip\b|\bpytest\b(?!_)", script)]


def elsewhere(path: Path, whole: str) -> str:
    """Return a workflow as another repository has it: it installs itself, and takes this package from an index."""
    ours = """        uses: ./
        with:
          install: "false" # it is what was installed above
"""
    install, _, measure = whole.partition("      - name: Install what is measured\n")[2].partition(
        "      - name: Measure\n"
    )
    text = path.read_text(encoding="utf-8")
    for here, there in {
        f"{IF_CODE}        run: pip install -c constraints.txt -e '.[rl]'\n": install,
        "run: pip install -c constraints.txt -e '.[rl]'": "run: pip install -e .",
        "            constraints.txt\n": "",
        """      - name: Find the last release
        id: release
        run: echo "tag=$(git describe --tags --abbrev=0)" >>"$GITHUB_OUTPUT" # before the first one, the baseline
""": "",
        f"""{ours}          against: ${{{{ steps.release.outputs.tag }}}}
          artifact: rlperf-since-release
""": f"""        run: |
          pip install {PINNED}
          python -m pytest "--rlperf-against=$(git describe --tags --abbrev=0)"
""",
        f"{IF_CODE}{ours}          against: ${{{{ env.AGAINST }}}}\n": measure,
        "        run: python -m pytest --rlperf-save-baseline\n": f"""        run: |
          pip install {PINNED}
          python -m pytest --rlperf-save-baseline
""",
        """      # Of the default branch, as every workflow_run is.
""": "",
    }.items():
        text = text.replace(here, there)
    if path == COMMENT:
        checkout = "        with:\n"
        ours = f"{checkout}          repository: {HERE}\n          ref: COMMIT # of main\n"
        text = text.replace(checkout, ours, 1)
    return text


@pytest.mark.parametrize("path", [GATE, COMMENT, BASELINE, RELEASE], ids=lambda path: path.name)
def test_guide_has_the_workflows_as_they_are(path: Path, whole: str) -> None:
    """The workflow that users copy is the one that runs here, but for the origin of the package."""
    assert SHARDS.with_name(path.name).read_text(encoding="utf-8") == elsewhere(path, whole)


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.name)
def test_guide_includes_every_workflow_to_copy(path: Path) -> None:
    """The page shows the whole file, and the file is valid."""
    assert f"```yaml\n{path.read_text(encoding='utf-8')}```\n" in GUIDE.read_text(encoding="utf-8")
    assert is_valid(path)


def test_init_writes_the_guides_gate(whole: str) -> None:
    """The gate that `rlperf init --github` writes is the guide's, and does what the action does for it."""
    assert elsewhere(GATE, whole) == whole
    measured, kept = steps(load(WRITTEN))[-2:]
    assert measured["run"].startswith("python -m pytest ~tests ")
    theirs = steps(load(ACTION))[-1]
    assert kept["uses"] == theirs["uses"]
    assert kept["with"]["name"] == load(ACTION)["inputs"]["artifact"]["default"]


def test_the_shortest_gate_is_valid(tmp_path: Path) -> None:
    """The ten lines of the guide are a workflow with the least rights, pinned actions and the whole history."""
    text = GUIDE.read_text(encoding="utf-8").partition("<!-- ten lines -->\n```yaml\n")[2].partition("```")[0]
    assert len(text.splitlines()) == 10
    path = tmp_path / "gate.yml"
    path.write_text(text, encoding="utf-8")
    assert is_valid(path)
    workflow = load(path)
    path.write_text(text.replace("steps:", "stpes:"), encoding="utf-8")
    assert not is_valid(path)
    assert workflow["permissions"] == READ
    checkout, python, install, measure = steps(workflow)
    assert checkout["with"]["fetch-depth"] == 0
    assert [step["uses"] for step in (checkout, python)] == [
        step["uses"] for step in steps(load(GATE)) if step.get("uses", "").startswith("actions/")
    ]
    assert install["run"] == f"pip install -e . {PACKAGE}"
    assert measure["run"] == 'python -m pytest "--rlperf-against=$GITHUB_BASE_REF"'


def test_the_gate_in_shards_is_safe() -> None:
    """The guide's matrix keeps the rules of the workflows here, and its last job is what the comment follows."""
    workflow, text = load(SHARDS), SHARDS.read_text(encoding="utf-8")
    assert [finding for lint in LINTS for finding in lint(workflow, text, SHARDS.name)] == []
    measure, gate = workflow["jobs"].values()
    assert [step["uses"] for step in measure["steps"][:2]] == [
        step["uses"] for step in steps(load(WRITTEN))[:-1] if "uses" in step
    ]
    assert measure["steps"][2]["run"] == f"pip install -e . {PINNED}"
    assert not measure["strategy"]["fail-fast"]
    assert gate["needs"] == "measure"
    assert gate["steps"][-1] == steps(load(WRITTEN))[-1]
    assert workflow["name"] == load(GATE)["name"]
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert set(used) <= {step["uses"] for known in WORKFLOWS for step in steps(load(known)) if "uses" in step}


def test_guide_names_this_package_by_its_commit() -> None:
    """A tag can be moved to other code, which would then run in the jobs of everybody who copied the guide."""
    references = re.findall(rf"{HERE}(?:@|\n\s+ref: )([^\s']+)", GUIDE.read_text(encoding="utf-8"))
    assert len(references) == 7
    assert set(references) == {"COMMIT"}


def test_guide_has_every_input_and_output() -> None:
    """The action's inputs and outputs are all explained."""
    action, guide = load(ACTION), GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| `(\w+)` \|", guide) == list(action["inputs"])
    assert not [name for name in action["outputs"] if f"`{name}`" not in guide]


TOML = "pyproject.toml"
# Of a project: its files, its directory, and what its workflows install, with which Python, cached by which files.
SHAPES: dict[str, tuple[dict[str, str], str, list[str], str, list[str]]] = {
    "src with extras": (
        {
            TOML: """
[project]
requires-python = ">=3.9,<3.13"
[project.optional-dependencies]
docs = []
dev = []
test = []
""",
            "requirements-test.txt": "",
        },
        ".",
        ["pip install -e '.[test]' TOOL"],
        "3.12",
        [TOML],
    ),
    "flat with requirements": (
        {"requirements.txt": "torch", "requirements/test.txt": ""},
        ".",
        ["pip install -r requirements.txt -r requirements/test.txt TOOL"],
        "3.13",
        ["requirements.txt", "requirements/test.txt"],
    ),
    "a directory of a repository": (
        {f"py/a/{TOML}": "[project]\noptional-dependencies = {dev = []}", "py/a/setup.cfg": "", TOML: "[project]"},
        "py/a",
        ["pip install -e './py/a[dev]' TOOL"],
        "3.13",
        [f"py/a/{TOML}", "py/a/setup.cfg"],
    ),
    "dependency groups": (
        {TOML: "[build-system]\n[dependency-groups]\ndev = ['torch']\ntests = [{include-group = 'dev'}]"},
        ".",
        ["pip install 'pip>=25.1' # for --group", "pip install -e . --group tests TOOL"],
        "3.13",
        [TOML],
    ),
    "dependency groups in a directory": (
        {f"py/a b/{TOML}": "[dependency-groups]\ndev = ['torch']", "py/a b/requirements.txt": "numpy"},
        "py/a b",
        [
            "pip install 'pip>=25.1' # for --group",
            f"pip install --group 'py/a b/{TOML}:dev' -r 'py/a b/requirements.txt' TOOL",
        ],
        "3.13",
        [f"py/a b/{TOML}", "py/a b/requirements.txt"],
    ),
    "setup.py": ({"setup.py": "", "requirements.txt": ""}, ".", ["pip install -e . TOOL"], "3.13", ["setup.py"]),
    "no project": ({TOML: "[tool.ruff]"}, ".", ["pip install TOOL"], "3.13", []),
}


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Write the workflows of all shapes."""
    return {
        shape: write(tmp_path_factory.mktemp("shape"), files, project) for shape, (files, project, *_) in SHAPES.items()
    }


@pytest.fixture(scope="module")
def audited(fitting: dict[str, tuple[Path, Path]]) -> subprocess.CompletedProcess[str]:
    """Audit the workflows of all shapes by one process; what it says names the file."""
    return audit(*(path for paths in fitting.values() for path in paths))


@pytest.mark.parametrize(
    ("shape", "commands", "python", "cached"), [(shape, *of[2:]) for shape, of in SHAPES.items()], ids=SHAPES
)
def test_workflows_fit_the_project(
    fitting: dict[str, tuple[Path, Path]],
    audited: subprocess.CompletedProcess[str],
    shape: str,
    commands: list[str],
    python: str,
    cached: list[str],
) -> None:
    """They install the project with what its tests need, by a Python that it supports, and no linter has a finding."""
    paths = fitting[shape]
    upgraded = [line.replace(" install ", " install --upgrade --upgrade-strategy eager ") for line in commands]
    assert installs(paths[0]) == commands
    assert installs(paths[1]) == [*commands[:-1], upgraded[-1]]
    for path in paths:
        (setup,) = [step["with"] for step in steps(load(path)) if "setup-python" in step.get("uses", "")]
        assert (setup["python-version"], setup["cache"]) == (python, "pip")
        assert setup["cache-dependency-path"].splitlines() == [*cached, ".github/workflows/gate.yml"]
        text = path.read_text(encoding="utf-8")
        assert "~" not in text.replace("=~", "")
        assert [finding for lint in LINTS for finding in lint(load(path), text, path.name)] == []
    assert is_valid(*paths)
    assert audited.returncode == 0, audited.stdout


def test_the_audit_has_findings(tmp_path: Path) -> None:
    """It sees an expression in a script, and an action that is named by a tag."""
    gate, _ = write(tmp_path, {})
    text = gate.read_text(encoding="utf-8")
    for whole, part in {
        "$AGAINST": "${{ github.head_ref }}",
        "@de0fac2e4500dabe0009e67214ff5f5447ce83dd": "@v6",
    }.items():
        gate.write_text(text.replace(whole, part), encoding="utf-8")
        assert audit(gate).returncode > 10


@pytest.mark.parametrize(
    ("project", "python"),
    [
        ("", "3.13"),
        ("requires-python = '>=3.10'", "3.13"),
        ("requires-python = '>=3.14'", PYTHONS[-1]),
        ("requires-python = '>=3.10,<=3.13'", "3.12"),
        ("requires-python = '~=3.11.2'", "3.11"),
        ("requires-python = '>=3.9'\nclassifiers = ['Programming Language :: Python :: 3.11']", "3.11"),
        ("classifiers = ['Programming Language :: Python :: 3', 'Programming Language :: Python :: 3.12']", "3.12"),
        ("requires-python = '>=3.10'\nclassifiers = ['Programming Language :: Python :: 3.9']", "3.13"),
        ("requires-python = '>=3.99'", ".".join(map(str, sys.version_info[:2]))),
        ("requires-python = '^3.10'", "3.13"),
    ],
)
def test_the_python_is_the_newest_that_the_project_supports(tmp_path: Path, project: str, python: str) -> None:
    """By its requirement and its classifiers; the one that runs here where none fits."""
    gate, _ = write(tmp_path, {TOML: f"[project]\n{project}"})
    assert f'python-version: "{python}"\n' in gate.read_text(encoding="utf-8")


def test_the_pythons_are_those_of_this_package() -> None:
    """The list in the code is the one that users see."""
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / TOML).read_text(encoding="utf-8"))
    assert list(PYTHONS) == classifiers


def test_the_gate_measures_all_tests_beside_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that have an rlperf fixture: a green gate that leaves one out would say nothing of it."""
    own = "def test_own(rlperf):\n    rlperf(work)\n"
    files = {"tests/test_own.py": own, "tests/test_other.py": "def test_other(): ...\n", "tests/rlperf_test.py": own}
    gate, _ = write(tmp_path, files)
    measured = "tests/test_perf.py tests/rlperf_test.py tests/test_own.py"
    assert f"python -m pytest {measured} " in gate.read_text(encoding="utf-8")
    assert f"by {measured}; commit it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "needed", "extra", "is_cpu"),
    [
        ({}, (), "", False),
        ({"tests/test_perf.py": "import torch"}, (), "[rl]", True),
        ({"tests/test_perf.py": "import torchless, gymnasium"}, ["gymnasium"], "", False),
        ({TOML: "[project]\ndependencies = ['torch>=2 ; python_version > \"3\"']"}, (), "", True),
        ({TOML: "[project]\ndependencies = ['torch ; python_version < \"3\"']"}, (), "", False),
        ({TOML: "[project]\noptional-dependencies = {test = ['Torch'], other = []}"}, (), "", True),
        ({TOML: "[project]\noptional-dependencies = {test = [], other = ['torch']}"}, (), "", False),
        ({TOML: "[dependency-groups]\ntest = ['torch']"}, (), "", True),
        ({"requirements.txt": "-r other.txt\ntorch==2.1 # pinned\n"}, (), "", True),
        ({}, ["pytest-rlperf[suite]"], "", True),  # by what it requires
        ({}, ["pytest-rlperf"], "", False),
    ],
)
def test_pytorch_is_installed_without_cuda(
    tmp_path: Path, files: dict[str, str], needed: list[str], extra: str, is_cpu: bool
) -> None:
    """Where anything installs it, pip also looks into the index of builds for CPUs; the extra is for tests in it."""
    for path in write(tmp_path, files, needed=needed):
        job, *_ = load(path)["jobs"].values()
        assert ("PIP_EXTRA_INDEX_URL" in job.get("env", {})) is is_cpu
        assert f"TOOL{extra}" in installs(path)[-1].split()
        assert ("gymnasium" in installs(path)[-1].split()) is ("gymnasium" in needed)


def test_the_weekly_workflow_is_written_for_dependencies_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written where it was not asked for, or where nothing is declared; what is there is kept."""
    monkeypatch.chdir(tmp_path)
    gate, weekly = write(tmp_path, {}, dependencies=None)
    assert gate.exists()
    assert not weekly.exists()
    write(tmp_path, {}, dependencies=[])
    assert not weekly.exists()
    gate.write_text("", encoding="utf-8")
    write(tmp_path, {}, dependencies=["numpy", "torch"])
    assert gate.read_bytes() == b""
    assert "names=(numpy torch)\n" in weekly.read_text(encoding="utf-8")
    lines = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    places = "gate.yml", "dependencies.yml"
    gate_place, weekly_place = (f".github/workflows/{name}" for name in places)
    assert lines == [
        f"wrote {gate_place}",
        *(f"kept {gate_place}", f"left out {weekly_place}"),
        *(f"kept {gate_place}", f"wrote {weekly_place}"),
    ]


@each_workflow
def test_jobs_have_a_time_limit(path: Path) -> None:
    """No job hangs for the six hours GitHub would give it."""
    assert not [name for name, job in load(path)["jobs"].items() if "timeout-minutes" not in job]


def rl(leg: dict[str, str]) -> bool:
    """Whether a leg of the matrix has PyTorch and gymnasium."""
    return "rl" in leg["extras"].split(",")
