"""What `rlperf init` does in projects: what it finds, writes and leaves out, and whether its tests pass afterwards.

``python benchmarks/first_tests.py PROJECT=PYTHON... [--output FILE]``

PROJECT is a checkout without changes, and PYTHON the interpreter of an environment that has it and this plugin. The
command runs in the checkout; the tests are run once more by plain pytest, and removed. FILE gets the table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import time
from pathlib import Path

_HEAD = ("project", "commit", "found", "written", "passed", "left out", "seconds")


def main() -> None:
    """Try each project, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("projects", nargs="+", metavar="PROJECT=PYTHON")
    parser.add_argument("--output", type=Path, help="a file for the table and for what was left out")
    arguments = parser.parse_args()
    rows, details = [], []
    for project in arguments.projects:
        directory, _, python = project.partition("=")
        row, detail = _tried(Path(directory), Path(python))
        rows.append(row)
        details.append(detail)
        print("  ".join(map(str, row)), flush=True)
    text = "\n".join("  ".join(map(str, row)) for row in (_HEAD, *rows)) + "\n\n" + "\n".join(details)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


def _tried(directory: Path, python: Path) -> tuple[tuple[object, ...], str]:
    """Run `rlperf init` in a project, and pytest on what it wrote; return the figures and what was left out."""
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    if run("git", "status", "--porcelain").stdout:
        raise SystemExit(f"{directory} has changes")
    began_s = time.monotonic()
    out = run(str(python), "-m", "pytest_rlperf", "init").stdout
    took_s = time.monotonic() - began_s
    found = re.findall(r"^  (.*)$", _part(out, "found"), re.MULTILINE)
    not_passed = _part(out, "left out") + _part(out, r"wrote \S+: \d+ tests? to complete.*")
    left_out = re.findall(r"^  (\S.*)$", not_passed, re.MULTILINE)
    wrote = re.search(r"^wrote (\S+): (test_.*|)", out, re.MULTILINE)
    names = wrote[2].split(", ") if wrote and wrote[2] else []
    passed = ""
    if wrote:
        ended = run(str(python), "-m", "pytest", "-p", "no:cacheprovider", wrote[1]).stdout.strip().splitlines()
        passed = next(
            (line.strip("= ") for line in reversed(ended) if re.search(r"\d+ (passed|failed|error|skipped)", line)), ""
        )
        (directory / wrote[1]).unlink()
    run("git", "clean", "-fdq")
    commit = run("git", "rev-parse", "--short", "HEAD").stdout.strip()
    row = (directory.name, commit, len(found), len(names), passed, len(left_out), f"{took_s:.0f}")
    return row, "\n".join([f"{directory.name}: {', '.join(names) or 'nothing'}", *(f"  - {line}" for line in left_out)])


def _part(text: str, title: str) -> str:
    """Return the indented lines below a title."""
    found = re.search(rf"^{title}\n((?:  .*\n)*)", text, re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    main()
