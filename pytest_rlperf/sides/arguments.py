"""The run's own command line and environment, as another tree's workers must have them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.environment import mapped, mapped_search_path
from pytest_rlperf.sides.installs import in_tree

# Options whose value is no path, though there may be a file of that name.
_TAKE_WORDS = {"-k", "-m", "-n", "-o", "-p", "-r", "-W"}


def side_args(project: Project, mapping: tuple[Path, Path]) -> tuple[str, ...]:
    """Return the run's arguments with what names today's tree naming the other, and its root and settings said."""
    args = list(_mapped_args(project.args, project, mapping))
    said = [f"--rootdir={mapped(project.rootdir, mapping)}"]
    if project.inipath is not None:
        said += ["-c", str(mapped(project.inipath, mapping))]
    # What comes last counts, and behind "--" nothing is an option.
    end = args.index("--") if "--" in args else len(args)
    return (*args[:end], *said, *args[end:])


def side_variables(project: Project, mapping: tuple[Path, Path], environment: Path) -> Mapping[str, str | None]:
    """Return the variables that a side's workers have unlike this process.

    ``environment`` is the side's virtual environment, which takes the place of the running one on the PATH: children
    started by name import from the same tree.
    """
    variables: dict[str, str | None] = {}
    if (value := os.environ.get("PYTHONPATH")) is not None:
        variables["PYTHONPATH"] = mapped_search_path(value, project.directory, mapping)
    if value := os.environ.get("PYTEST_ADDOPTS"):
        variables["PYTEST_ADDOPTS"] = shlex.join(_mapped_args(shlex.split(value), project, mapping))
    if "VIRTUAL_ENV" in os.environ:
        variables["VIRTUAL_ENV"] = str(environment)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if str(Path(sys.executable).parent) in places:
        variables["PATH"] = os.pathsep.join([str(environment / "bin"), *places])
    return variables


def _mapped_args(args: Iterable[str], project: Project, mapping: tuple[Path, Path]) -> Iterator[str]:
    before = ""
    for arg in args:
        option, equals, value = arg.partition("=")
        if arg.startswith("-") and equals:
            yield f"{option}={_mapped_value(value, project, mapping, guess=True)}"
        elif arg.startswith("-"):
            yield arg
        else:
            yield _mapped_value(arg, project, mapping, guess=before not in _TAKE_WORDS)
        before = arg


def _mapped_value(text: str, project: Project, mapping: tuple[Path, Path], *, guess: bool) -> str:
    """Return a value that may be a path, a node id or a setting; with ``guess`` a relative path counts as one.

    The workers start in the place of the directory that the run was started in. So a relative path needs mapping
    only where that directory is of no tree, or where the path leads out of the tree.
    """
    path, colons, test = text.partition("::")
    name, equals, value = path.partition("=")
    if equals and not Path(path).is_absolute():  # --override-ini=NAME=VALUE
        return f"{name}={_mapped_value(value, project, mapping, guess=False)}{colons}{test}"
    head, _ = mapping
    whole = project.directory / path
    if not path or not (Path(path).is_absolute() or (guess and whole.exists())):
        return text
    started_inside = in_tree(project.directory, head)
    if Path(path).is_absolute() or in_tree(whole, head) != started_inside:
        place = mapped(whole, mapping)
        return text if place == Path(path) else f"{place}{colons}{test}"
    return text
