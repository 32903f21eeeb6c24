"""Other programs, run to their end or to a time limit, and pip's builds of projects."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_LONGEST = 120  # characters of a command in a message
_SAID_EVERY_S = 1.0


class Completed(msgspec.Struct, frozen=True):
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    limit_s: float,
    on_wait: Callable[[float], None] = lambda _: None,
) -> Completed:
    """Run a program without a terminal, and return how it ended.

    SideError if it cannot start, takes too long or was killed, and so has no answer.

    While the program runs, ``on_wait`` receives the seconds since its start. Whatever ends the wait early, even a
    Ctrl-C, ends the program and every process that it has started.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a NUL in a word is a ValueError
        raise SideError(f"cannot run {words[0]}: {error}") from None
    with process:
        try:
            # As bytes, which file names are: they may have line ends in them, which a text's reader would change.
            out, err = (each.decode("utf-8", "surrogateescape") for each in _output(process, limit_s, on_wait))
        except subprocess.TimeoutExpired:
            raise SideError(f"`{_abridged(words)}` did not end within {limit_s:.0f} s and was ended") from None
        finally:
            # The program's children share its session and end with it, so that none of them writes to a side later.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return _answered(words, Completed(process.returncode, out, err))


def _output(process: subprocess.Popen[bytes], limit_s: float, on_wait: Callable[[float], None]) -> tuple[bytes, bytes]:
    """Return what a program writes until it ends; TimeoutExpired if it runs on after ``limit_s``."""
    began_s = time.monotonic()
    while True:
        passed_s = time.monotonic() - began_s
        try:
            return process.communicate(timeout=max(0.0, min(_SAID_EVERY_S, limit_s - passed_s)))
        except subprocess.TimeoutExpired:
            if passed_s >= limit_s:
                raise
            on_wait(time.monotonic() - began_s)


def _answered(words: Sequence[str], done: Completed) -> Completed:
    """Return how a program ended; SideError if it was killed."""
    if done.code >= 0:
        return done
    ended = f"was ended by signal {-done.code} ({signal.strsignal(-done.code)})"
    raise SideError(f"`{_abridged(words)}` {ended}: run this again\n{done.err}".rstrip())


def _abridged(words: Sequence[str]) -> str:
    """Return a command's program and its last words, which differ most between commands."""
    text = " ".join(words[1:])
    return f"{words[0]} {text if len(text) <= _LONGEST else f'…{text[-_LONGEST:]}'}"


def changed_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's variables with ``changes``, where None removes a variable."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


# --------------------------------------------------------------------------- pip


BUILD_LIMIT_S = 1800.0
_VERSION_LIMIT_S = 30.0
_LAST_LINES = 25
_OF_BUILDS = (
    *("ARCHFLAGS", "CARGO_", "CC", "CFLAGS", "CMAKE_", "CPPFLAGS", "CXX", "LDFLAGS", "MAKEFLAGS", "NVCC_", "RUST"),
    "SKBUILD_",
)
"""The beginnings of variables that change what a compiler makes of the same sources."""

# To warn of conflicts, pip would look at all that is installed here, which takes as long as a small package.
INSTALL = ("install", "--no-warn-conflicts")
# Variables that would make pip install or import elsewhere.
_MISLEADING = ("PIP_PREFIX", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PYTHONPATH")


def build_into(
    python: str,
    project_dirs: Sequence[Path],
    label: str,
    on_step: OnStep,
    *,
    isolated: bool,
) -> None:
    """Build each project and install it into the environment of ``python``, without its dependencies.

    ``on_step`` receives that the version with this ``label`` is being built, and for how long. Projects are copies that
    are built in place. Both sides of a comparison must be built alike: pass on what :func:`needs_isolation` returns for
    the projects of both.
    """
    for project_dir in project_dirs:
        options = ["--no-deps", "--ignore-installed", *([] if isolated else ["--no-build-isolation"])]
        step = f"building {label}" + (" in isolation" if isolated else "")
        arguments = [*INSTALL, *options, str(project_dir)]
        completed = run_pip(python, arguments, f"build {project_dir}", on_step, step)
        if completed.code:
            raise SideError(
                f"building {project_dir} with pip failed (exit code {completed.code}):\n{last_lines(completed)}"
            )


def needs_isolation(python: str, project_dirs: Iterable[Path]) -> bool:
    """Whether the tools in ``python``'s environment cannot build one of the projects."""
    return any(not _is_buildable(python, project_dir) for project_dir in project_dirs)


def _is_buildable(python: str, project_dir: Path) -> bool:
    options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--no-build-isolation"]
    if "build-system" in read_settings(project_dir):  # without one, pip asks for tools that may not be needed
        options.append("--check-build-dependencies")
    return not run_pip(python, [*INSTALL, *options, str(project_dir)], f"build {project_dir}").code


def run_pip(
    python: str, arguments: list[str], purpose: str, on_step: OnStep = lambda _: None, step: str = ""
) -> Completed:
    """Run this environment's pip in the thin environment of ``python``, which sees it; SideError without pip.

    ``on_step`` receives the ``step``, and then how long it has taken.
    """
    on_step(step)
    if importlib.util.find_spec("pip") is None:
        raise SideError(f"pip is needed to {purpose}, but {sys.executable} lacks it; python -m ensurepip installs it")
    options = ["--no-input", "--disable-pip-version-check", "--no-color"]
    # A build without isolation calls the tools beside the running interpreter.
    tools = [str(Path(python).parent), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    variables = {**dict.fromkeys(_MISLEADING), "PATH": os.pathsep.join(tools), "PIP_USER": "0"}
    return run(
        [python, "-m", "pip", *options, *arguments],
        cwd=Path(python).parent,  # on pip's sys.path, and without modules
        env=changed_environment(variables),
        limit_s=BUILD_LIMIT_S,
        on_wait=lambda seconds: on_step(f"{step}, {seconds:.0f} s"),
    )


def toolchain() -> str:
    """Return what a build depends on besides its sources: compilers' versions, and the variables with flags."""
    named = [(os.environ.get(name) or sysconfig.get_config_var(name) or "") for name in ("CC", "CXX")]
    compilers = [words for text in (*named, "cc", "c++", "rustc") if (words := shlex.split(text))]
    versions = [_version(words) for words in compilers if shutil.which(words[0])]
    return repr((versions, sorted(pair for pair in os.environ.items() if pair[0].startswith(_OF_BUILDS))))


def _version(compiler: Sequence[str]) -> str:
    try:
        return run([*compiler, "--version"], cwd=Path.cwd(), limit_s=_VERSION_LIMIT_S).out
    except SideError:  # a compiler that does not run builds nothing
        return ""


def last_lines(completed: Completed) -> str:
    """Return the end of a command's output, errors last."""
    lines = [line for line in (completed.out + "\n" + completed.err).splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])


def read_settings(project_dir: Path) -> dict[str, Any]:
    """Return the content of a project's pyproject.toml, empty without one; SideError if it cannot be read."""
    path = project_dir / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SideError(f"{path} cannot be read: {error}") from None
