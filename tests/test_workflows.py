from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
TESTS = ROOT / ".github" / "workflows" / "tests.yml"
GATE, COMMENT, BASELINE, ANCHOR = (TESTS.with_name(f"{name}.yml") for name in ("gate", "comment", "baseline", "anchor"))
ACTION = ROOT / "action.yml"
CITATION = ROOT / "CITATION.cff"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
GUIDE = ROOT / "docs" / "github-actions.md"
COPIED = sorted((ROOT / "docs" / "workflows").glob("*.yml"))  # by users
SHARDS = ROOT / "docs" / "workflows" / "shards.yml"
HERE = "pytest-rlperf/pytest-rlperf"  # at GitHub
PACKAGE = f"'pytest-rlperf @ git+https://github.com/{HERE}'"
# By `rlperf init --github`, which puts the project's own in the place of what begins with ~.
WRITTEN, DEPENDENCIES = (ROOT / "pytest_rlperf" / "cli" / f"{name}.yml" for name in ("gate", "dependencies"))
WHOLE = WRITTEN.read_text(encoding="utf-8").replace("~install", f"-e . {PACKAGE}").replace(" ~tests", "")
# The gate's last steps where it does not use the action.
INSTALL = f"run: |\n          pip install -e . {PACKAGE}"
MEASURE = WHOLE.partition("      - name: Measure\n")[2]

READ = {"contents": "read"}
# Permissions of jobs beside reading the repository: none, but for these.
PERMISSIONS = {
    ("comment.yml", "render"): {**READ, "actions": "read"},
    ("comment.yml", "comment"): {"pull-requests": "write"},
    ("baseline.yml", "propose"): {"contents": "write", "pull-requests": "write"},
    ("anchor.yml", "report"): {"issues": "write"},
    ("dependencies.yml", "report"): {"issues": "write"},
    ("pages.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}

each_workflow = pytest.mark.parametrize(
    "path", [*WORKFLOWS, WRITTEN, DEPENDENCIES], ids=lambda path: f"{path.parent.name}/{path.name}"
)


def load(path: Path) -> dict[str, Any]:
    """Return a workflow as YAML 1.2 reads it, where `on` is a string."""
    workflow = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def check(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Validate workflows, or other files of GitHub's, against the schema that check-jsonschema carries along."""
    special = {ACTION: "github-actions", CITATION: "citation-file-format", **dict.fromkeys(FORMS, "github-issue-forms")}
    schema = f"vendor.{special.get(paths[0], 'github-workflows')}"
    options = ["--default-filetype=yaml", "--builtin-schema", schema]
    command = [sys.executable, "-m", "check_jsonschema", *options, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    if "runs" in workflow:
        return list(workflow["runs"]["steps"])
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    "paths",
    [(*WORKFLOWS, WRITTEN), (ACTION,), (CITATION,), tuple(FORMS)],
    ids=["workflows", "action", "citation", "issue forms"],
)
def test_files_are_valid(paths: tuple[Path, ...]) -> None:
    """Every workflow, the action, the citation and the forms of issues satisfy their schemas."""
    assert paths
    result = check(*paths)
    assert result.returncode == 0, result.stdout + result.stderr


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


def elsewhere(path: Path) -> str:
    """Return a workflow as another repository has it: it installs itself, and takes this package from an index."""
    ours = """        uses: ./
        with:
          install: "false" # it is what was installed above
"""
    text = path.read_text(encoding="utf-8")
    for here, there in {
        "run: pip install -c constraints.txt -e '.[rl]'": INSTALL if path == GATE else "run: pip install -e .",
        f"{ours}          against: anchor\n          artifact: rlperf-anchor\n": f"""        run: |
          pip install {PACKAGE}
          python -m pytest --rlperf-against=anchor
""",
        ours: MEASURE,
        """          python -m pytest "${arguments[@]}"
""": f"""          pip install {PACKAGE}
          python -m pytest "${{arguments[@]}}"
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


@pytest.mark.parametrize("path", [GATE, COMMENT, BASELINE, ANCHOR], ids=lambda path: path.name)
def test_guide_has_the_workflows_as_they_are(path: Path) -> None:
    """The workflow that users copy is the one that runs here, but for the origin of the package."""
    assert SHARDS.with_name(path.name).read_text(encoding="utf-8") == elsewhere(path)


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.name)
def test_guide_includes_every_workflow_to_copy(path: Path) -> None:
    """The page shows the whole file, and the file is valid."""
    assert f"```{{literalinclude}} workflows/{path.name}\n" in GUIDE.read_text(encoding="utf-8")
    assert check(path).returncode == 0, check(path).stdout


def test_init_writes_the_guides_gate() -> None:
    """The gate that `rlperf init --github` writes is the guide's, and does what the action does for it."""
    assert elsewhere(GATE) == WHOLE
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
    assert check(path).returncode == 0, check(path).stdout
    workflow = load(path)
    path.write_text(text.replace("steps:", "stpes:"), encoding="utf-8")
    assert check(path).returncode != 0
    assert workflow["permissions"] == READ
    checkout, python, install, measure = steps(workflow)
    assert checkout["with"]["fetch-depth"] == 0
    assert [step["uses"] for step in (checkout, python)] == [
        step["uses"] for step in steps(load(GATE)) if step.get("uses", "").startswith("actions/")
    ]
    assert install["run"] == f"pip install -e . {PACKAGE}"
    assert measure["run"] == steps(load(WRITTEN))[-2]["run"].replace(" ~tests", "").rpartition(" ")[0]


def test_the_gate_in_shards_is_safe() -> None:
    """The guide's matrix keeps the rules of the workflows here, and its last job is what the comment follows."""
    workflow, text = load(SHARDS), SHARDS.read_text(encoding="utf-8")
    assert [finding for lint in LINTS for finding in lint(workflow, text, SHARDS.name)] == []
    measure, gate = workflow["jobs"].values()
    assert measure["steps"][:2] == steps(load(WRITTEN))[:2]
    assert measure["steps"][2]["run"] == f"pip install -e . {PACKAGE}"
    assert not measure["strategy"]["fail-fast"]
    assert gate["needs"] == "measure"
    assert gate["steps"][-1] == steps(load(WRITTEN))[-1]
    assert workflow["name"] == load(GATE)["name"]
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert set(used) <= {step["uses"] for known in WORKFLOWS for step in steps(load(known)) if "uses" in step}


def test_guide_names_this_package_by_its_commit() -> None:
    """A tag can be moved to other code, which would then run in the jobs of everybody who copied the guide."""
    texts = "".join(path.read_text(encoding="utf-8") for path in (GUIDE, *COPIED))
    references = re.findall(rf"{HERE}(?:@|\n\s+ref: )([^\s']+)", texts)
    assert len(references) == 2
    assert set(references) == {"COMMIT"}


def test_guide_has_every_input_and_output() -> None:
    """The action's inputs and outputs are all explained."""
    action, guide = load(ACTION), GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| `(\w+)` \|", guide) == list(action["inputs"])
    assert not [name for name in action["outputs"] if f"`{name}`" not in guide]


@each_workflow
def test_jobs_have_a_time_limit(path: Path) -> None:
    """No job hangs for the six hours GitHub would give it."""
    assert not [name for name, job in load(path)["jobs"].items() if "timeout-minutes" not in job]


def rl(leg: dict[str, str]) -> bool:
    """Whether a leg of the matrix has PyTorch and gymnasium."""
    return "rl" in leg["extras"].split(",")
