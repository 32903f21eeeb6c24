"""Whole runs in small projects, as a user has them: files, perhaps a git repository, and pytest in its own process.

The projects are directories of `tests/samples/projects`, or texts by path where a few lines will do::

    example = Example(tmp_path, "phases")
    run = example.pytest("--rlperf", code=1)
    assert run.statuses == {"test_update": "SLOWER"}
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import builders

PROJECTS = Path(__file__).parents[1] / "samples" / "projects"
OK, FAILED, INTERRUPTED, INTERNAL, USAGE, NOTHING = range(6)  # pytest's exit codes, as numbers
_LIMIT_S = 180.0
_OUTCOME = re.compile(
    r"^(\S+?\.py::.+?) (PASSED|UNDECIDED|INVALID|INCOMPARABLE|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE
)


@dataclass(frozen=True)
class Run:
    """The end of a process: its exit code, what it wrote, and the run's JSON where it left one."""

    code: int
    out: str
    err: str
    document: dict[str, Any] = field(repr=False)

    @property
    def text(self) -> str:
        """Everything written."""
        return f"{self.out}\n--- stderr ---\n{self.err}" if self.err else self.out

    @property
    def words(self) -> str:
        """Everything written, in one line: sentences are wrapped to the terminal."""
        return " ".join(self.text.split())

    @cached_property
    def results(self) -> list[tuple[str, str]]:
        """The test and the outcome in each line of `-v`, in their order."""
        return [(match[1].partition("::")[2], match[2]) for match in _OUTCOME.finditer(self.out)]

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome in the last line of `-v` of each test."""
        return dict(self.results)

    @property
    def counts(self) -> str:
        """The last line, such as `1 failed, 2 passed`."""
        found = re.findall(r"^=* ?((?:\d+ [a-z]+(?:, )?)+|no tests ran) in \d", self.out, re.MULTILINE)
        return str(found[-1]) if found else ""

    def section(self, title: str) -> str:
        """Return the text between the headline `title` and the next."""
        parts = re.split(r"^=+ (.+?) =+$", self.out, flags=re.MULTILINE)
        return "".join(text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == title)

    def failure(self, test: str) -> str:
        """Return the report of a test's failure or error."""
        reports = self.section("FAILURES") + self.section("ERRORS")
        parts = re.split(r"^_{2,} (?:ERROR at \w+ of )?(\S.*?) _{2,}$", reports, flags=re.MULTILINE)
        return "".join(text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == test)

    @cached_property
    def tests(self) -> dict[str, dict[str, Any]]:
        """The entries of the run's JSON by the tests' names, without the files'."""
        return {key.partition("::")[2]: entry for key, entry in self.document.get("tests", {}).items()}

    @property
    def statuses(self) -> dict[str, str]:
        """The status of each verdict in the run's JSON."""
        return {name: entry["verdict"]["status"] for name, entry in self.tests.items()}

    @property
    def codes(self) -> dict[str, str]:
        """The code of each verdict's reason in the run's JSON."""
        return {name: entry["verdict"]["reason"]["code"] for name, entry in self.tests.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """The sentences of each verdict's reasons in the run's JSON."""
        return {name: entry["verdict"]["reason"]["message"] for name, entry in self.tests.items()}

    def error(self, test: str) -> str:
        """Return the lines that pytest marks with `E` in the report of a test."""
        return "\n".join(line[1:].strip() for line in self.failure(test).splitlines() if line.startswith("E "))

    def notes(self, value: str) -> list[str]:
        """Return the notes and next steps below the table that have a value in them, each in one line."""
        found = re.findall(r"^(?:note|next) .*(?:\n .*)*", self.section("rlperf"), re.MULTILINE)
        return [note for note in (" ".join(each.split()) for each in found) if value in note]


class Example:
    """A project below a test's directory, and runs in it that see nothing of the run of the tests.

    Temporary files, the cache of sides and the run's JSON lie beside the project, which a run leaves as it was.
    """

    def __init__(self, directory: Path, files: str | Mapping[str, str] = {}, **env: str) -> None:
        self.root = directory / "project"
        self.tmp = directory / "tmp"
        self.json = directory / "run.json"
        self.env = builders.environment(
            COLUMNS="100", TMPDIR=str(self.tmp), XDG_CACHE_HOME=str(directory / "cache"), **env
        )
        self.root.mkdir(parents=True)
        self.tmp.mkdir()
        if isinstance(files, str):
            shutil.copytree(PROJECTS / files, self.root, dirs_exist_ok=True)
        else:
            self.write(files)
        if not any((self.root / name).exists() for name in ("pytest.ini", "pyproject.toml")):
            self.write({"pytest.ini": "[pytest]\n"})

    def write(self, files: Mapping[str, str]) -> None:
        """Write files by their paths in the project, their common indentation removed."""
        builders.write(self.root, files)

    def git(self, *arguments: str) -> str:
        """Run git in the project, and return its output."""
        return builders.git(self.root, *arguments, env=self.env)

    def commit(self, message: str = "Change it") -> str:
        """Commit everything, in a new repository if there is none, and return the commit."""
        if not (self.root / ".git").exists():
            self.git("init", "--quiet")
            builders.write(self.root, {".git/info/exclude": "__pycache__/\n"})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", f"--message={message}")
        return self.git("rev-parse", "HEAD")

    def start(self, *arguments: str, plugins: tuple[str, ...] = ("rlperf",), **env: str) -> subprocess.Popen[str]:
        """Start pytest, with no plugin but these and no cache unless it is among them, in a session of its own."""
        self.json.unlink(missing_ok=True)
        if "rlperf" in plugins and any(argument.startswith("--rlperf") for argument in arguments):
            arguments = (f"--rlperf-json={self.json}", *arguments)
        cache = () if "cacheprovider" in plugins else ("no:cacheprovider",)
        loaded = [word for plugin in (*plugins, *cache) for word in ("-p", plugin)]
        return self._start([sys.executable, "-m", "pytest", *loaded, *arguments], env)

    def pytest(
        self,
        *arguments: str,
        plugins: tuple[str, ...] = ("rlperf",),
        code: int | None = None,
        stdin: str | None = None,
        **env: str,
    ) -> Run:
        """Run pytest to its end, which is with the exit code expected."""
        return self._finish(self.start(*arguments, plugins=plugins, **env), code, stdin)

    def rlperf(self, *arguments: str, code: int | None = None, **env: str) -> Run:
        """Run the command `rlperf` to its end, which is with the exit code expected."""
        return self._finish(self._start([sys.executable, "-m", "pytest_rlperf", *arguments], env), code)

    def left_over(self) -> list[str]:
        """Return what runs have left of their temporary files."""
        return sorted(path.name for path in self.tmp.rglob("*") if path.is_file())

    def _start(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=self.root,
            env={**self.env, **env},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def _finish(self, process: subprocess.Popen[str], code: int | None, stdin: str | None = None) -> Run:
        with process:
            try:
                out, err = process.communicate(stdin, timeout=_LIMIT_S)
            except BaseException:
                os.killpg(process.pid, 9)
                raise
        document = json.loads(self.json.read_bytes()) if self.json.exists() else {}
        run = Run(process.returncode, out, err, document)
        assert code is None or run.code == code, run.text
        return run
