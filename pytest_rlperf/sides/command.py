"""Running another program, to its end or to ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import SideError

_KILL_LIMIT_S = 5.0

# What git sets for the hooks it runs, and would take for ours. Settings (GIT_CONFIG_COUNT) stay: they may say that a
# directory is safe.
_REPOSITORY_VARIABLES = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
}


@dataclass(frozen=True)
class Completed:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float,
) -> Completed:
    """Run a program without a terminal, and return how it ended; SideError where it cannot start or takes too long.

    Git finds its repository by the directory alone, whatever hook this process was started from. Whatever ends the wait
    early, a Ctrl-C too, ends the program and all that it has started.
    """
    words = [str(word) for word in argv]
    variables = os.environ if env is None else env
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=git_environment(variables) if words[0] == "git" else dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",  # file names are bytes
            start_new_session=True,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise SideError(f"cannot run {words[0]} in {cwd}: there is no such directory") from None
        raise SideError(
            f"there is no {words[0]} to run ({error.strerror}): install it, or put it on the PATH"
        ) from None
    except OSError as error:
        raise SideError(f"cannot run {words[0]}: {error}") from None
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise SideError(f"{_shown(words)} did not end within {limit_s:.0f} s and was ended") from None
    finally:
        # What it left running in its session ends with it, so that nothing writes on behind our back.
        _kill_group(process)
    return Completed(process.returncode, out, err)


def git_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for git: in English, asking nobody, writing and fetching nothing it was not told to."""
    kept = {name: value for name, value in variables.items() if name not in _REPOSITORY_VARIABLES}
    return {
        **kept,
        "LC_ALL": "C",
        "LANGUAGE": "",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",  # the user's index is not refreshed
        "GIT_NO_LAZY_FETCH": "1",
    }


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_LIMIT_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _shown(words: Sequence[str]) -> str:
    """Return the beginning of a command line, enough to know it by."""
    text = " ".join(words)
    return f"`{text}`" if len(text) <= 120 else f"`{text[:117]}…`"
