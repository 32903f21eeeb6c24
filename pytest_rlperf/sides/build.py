"""Builds by pip into the environment of a side; the environment of the run stays as it is."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.sides.command import Completed, run
from pytest_rlperf.sides.environment import changed_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILD_LIMIT_S = 1800.0
_LAST_LINES = 25

_MISLEADING = ("PIP_PREFIX", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PYTHONPATH")


def build_into(
    python: str,
    project_dirs: Sequence[Path],
    on_step: OnStep,
    *,
    isolated: bool,
) -> None:
    """Build each project and install it into the environment of ``python``, without its dependencies.

    Projects are copies that are built in place. Both sides of a comparison must be built alike: pass on what
    :func:`needs_isolation` returns for the projects of both.
    """
    for project_dir in project_dirs:
        options = ["--no-deps", "--ignore-installed", *([] if isolated else ["--no-build-isolation"])]
        on_step(f"building {project_dir}" + (" in isolation" if isolated else ""))
        completed = run_pip(python, ["install", *options, str(project_dir)], f"build {project_dir}")
        if completed.code:
            raise SideError(
                f"building {project_dir} with pip failed (exit code {completed.code}):\n{last_lines(completed)}"
            )


def needs_isolation(python: str, project_dirs: Iterable[Path]) -> bool:
    """Whether any of the projects cannot be built with the tools that the environment of ``python`` has."""
    return any(not _is_buildable(python, project_dir) for project_dir in project_dirs)


def _is_buildable(python: str, project_dir: Path) -> bool:
    options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--no-build-isolation"]
    if "build-system" in read_settings(project_dir):  # without one, pip asks for tools that may not be needed
        options.append("--check-build-dependencies")
    return not run_pip(python, ["install", *options, str(project_dir)], f"build {project_dir}").code


def run_pip(python: str, arguments: list[str], purpose: str) -> Completed:
    """Run this environment's pip in the thin environment of ``python``, which sees it; SideError without pip."""
    if importlib.util.find_spec("pip") is None:
        raise SideError(f"pip is needed to {purpose}, and {sys.executable} has none; python -m ensurepip installs it")
    options = ["--no-input", "--disable-pip-version-check", "--no-color"]
    argv = [python, "-m", "pip", *options, *arguments]
    # Its directory is on its sys.path, so it is one without modules.
    return run(argv, cwd=Path(python).parent, env=_for_pip(python), limit_s=BUILD_LIMIT_S)


def _for_pip(python: str) -> dict[str, str]:
    """Return the variables for pip, less those that would make it install or import elsewhere."""
    # A build without isolation calls the tools beside the running interpreter.
    tools = [str(Path(python).parent), str(Path(sys.executable).parent)]
    path = os.pathsep.join([*tools, os.environ.get("PATH", os.defpath)])
    return changed_environment({**dict.fromkeys(_MISLEADING), "PATH": path, "PIP_USER": "0"})


def last_lines(completed: Completed) -> str:
    """Return the end of a command's output, errors last."""
    lines = [line for line in (completed.out + "\n" + completed.err).splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])


def read_settings(project_dir: Path) -> dict[str, Any]:
    """Return the content of a project's pyproject.toml, empty without one; SideError where it cannot be read."""
    path = project_dir / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SideError(f"{path} cannot be read: {error}") from None
