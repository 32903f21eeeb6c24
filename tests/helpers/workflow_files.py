"""Workflows of GitHub's: they are written for a project, and read."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pytest_rlperf.cli.workflows import write_workflows


def load(path: Path) -> dict[str, Any]:
    """Return a workflow as YAML 1.2 reads it, where `on` is a string."""
    workflow = deepcopy(_parsed(path.read_text(encoding="utf-8")))
    assert isinstance(workflow, dict)
    return workflow


@cache
def _parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def write(directory: Path, files: dict[str, str], project: str = ".", **options: Any) -> tuple[Path, Path]:
    """Write both workflows of a project, whose tests are in tests/test_perf.py, and return their places."""
    texts = {f"{project}/tests/test_perf.py": "", ".git/HEAD": "", **files}
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    root = directory / project
    needed = options.pop("needed", ())
    write_workflows(root, directory, root / "tests" / "test_perf.py", needed, **{"dependencies": ["numpy"], **options})
    gate = directory / ".github" / "workflows" / "gate.yml"
    return gate, gate.with_name("dependencies.yml")


def installs(path: Path) -> list[str]:
    """Return the commands by which a workflow installs, with a word for this package's own requirement."""
    job, *_ = load(path)["jobs"].values()
    (run,) = [step["run"] for step in job["steps"] if step.get("name") == "Install what is measured"]
    return [re.sub(r"'?pytest-rlperf(\[rl\])?( @ \S+|==[^\s']+)'?", r"TOOL\1", line) for line in run.splitlines()]
