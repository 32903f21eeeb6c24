"""Make the pages' pictures and recordings from real runs: ``python docs/pictures.py``, in about fifteen minutes.

The runs are those of the tutorial, in a directory of their own. The pages' pictures of HTML need Chromium.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
IMAGES, RECORDINGS = DOCS / "images", DOCS / "recordings"
SCRIPT = DOCS.parent / "examples" / "single_file" / "sac.py"
BEFORE, AFTER = (
    "np.random.randint(self.size, size=batch_size)",
    "np.random.choice(self.size, batch_size, replace=False)",
)
TEST = "test_perf.py::test_replay_buffer_sample[1000]"
AGAINST = ("pytest", "--rlperf-against=HEAD")
SHOWN = ("-k", "1000] or sac_update")  # in the first picture: one test that is slower, and one that is not
COURSE = ("Sort the imports", "Name the sizes", "Sample without replacement", "Mention the paper", "Log the entropy")
SLOWER = COURSE[2]


class Project:
    """The tutorial's project in a git repository, with the tests that ``rlperf init`` writes."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self.env |= {"TERM": "xterm-256color", "GIT_CONFIG_GLOBAL": os.devnull}
        shutil.copy(SCRIPT, directory)
        (directory / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
        (directory / "requirements.txt").write_text("gymnasium\nnumpy\ntorch\n", encoding="utf-8")
        self.run("git", "init", "--quiet")
        self.commit("Train SAC on Pendulum")

    def run(self, *command: str, columns: int = 100, **env: str) -> str:
        """Run a command to its end, and return what it wrote, in colours where it has some."""
        env = {**self.env, "COLUMNS": str(columns), "FORCE_COLOR": "1", **env}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def commit(self, subject: str) -> None:
        """Commit everything as a made-up author."""
        self.run("git", "add", "--all")
        self.run("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", subject)

    def edit(self, before: str, after: str) -> None:
        """Replace a text of the script."""
        script = self.root / SCRIPT.name
        text = script.read_text(encoding="utf-8")
        assert before in text, before
        script.write_text(text.replace(before, after), encoding="utf-8")

    def record(self, path: Path, *commands: str, columns: int = 80, lines: int = 40, **env: str) -> None:
        """Record what commands write at a terminal, in asciinema's format, version 2."""
        head = {"version": 2, "width": columns, "height": lines, "env": {"TERM": self.env["TERM"]}}
        began_s, events = time.monotonic(), []
        for command in commands:
            events.append([time.monotonic() - began_s, "o", f"$ {command}\r\n"])
            terminal, end = pty.openpty()
            shell = ("sh", "-c", f"stty cols {columns} rows {lines}; {command}")
            with subprocess.Popen(
                shell, cwd=self.root, env={**self.env, **env}, stdin=end, stdout=end, stderr=end, start_new_session=True
            ):
                os.close(end)
                while text := _read(terminal):
                    events.append([time.monotonic() - began_s, "o", text])
            os.close(terminal)
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in (head, *map(_rounded, events)))
        path.write_text(text, encoding="utf-8")


def _rounded(event: list[object]) -> list[object]:
    return [round(float(str(event[0])), 3), *event[1:]]


def _read(terminal: int) -> str:
    """Return what a terminal shows next; empty at its end."""
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # what Linux says when the last process has closed its end
        return ""


def draw_text(path: Path, text: str, columns: int) -> None:
    """Write a terminal's text, with its colours, as an SVG; longer lines go on below."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, file=nowhere, width=columns, force_terminal=True)
        console.print(Text.from_ansi(text.rstrip()))
        svg = console.export_svg(title="pytest --rlperf-against=HEAD", unique_id="terminal")
    # The fonts that every system has: a picture must not load one.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    path.write_text(svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas"), encoding="utf-8")


def draw_page(path: Path, page: Path, width: int, height: int, *more: str) -> None:
    """Write a picture of an HTML page as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}", *more)
    command = (browser, *flags, f"--screenshot={path}", page.as_uri())
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def failure(text: str) -> str:
    """Return what a person reads of a run that fails: the error, the table with its reasons, and the last line."""
    plain = re.compile(r"\x1b\[[0-9;]*m")
    lines = text.splitlines()
    errors = [line for line in lines if plain.sub("", line).startswith("E ")]
    first = next(number for number, line in enumerate(lines) if re.search("= rlperf =", plain.sub("", line)))
    notes = (number for number, line in enumerate(lines) if plain.sub("", line).startswith(("note ", "next ")))
    return "\n".join([f"$ {AGAINST[0]} {AGAINST[1]}", *errors[:3], "", *lines[first : next(notes)], lines[-1]])


def prepared(directory: Path) -> Project:
    """Return a project whose tests are committed."""
    project = Project(directory)
    project.run("rlperf", "init")
    project.commit("Add performance tests")
    return project


def draw_failure(directory: Path) -> None:
    """Draw a run that fails, its page, and what its log on GitHub shows."""
    project, page = prepared(directory), directory / "report.html"
    project.edit(BEFORE, AFTER)
    draw_text(IMAGES / "failure.svg", failure(project.run(*AGAINST, *SHOWN, "--color=yes", columns=96)), 98)
    project.record(RECORDINGS / "single-file.cast", f"{' '.join(AGAINST)} --rlperf-html={page.name}")
    draw_page(IMAGES / "html-report.png", page, 1000, 1400)
    draw_page(IMAGES / "html-report-phone-dark.png", page, 500, 1000, "--blink-settings=preferredColorScheme=0")
    job = {"GITHUB_ACTIONS": "true", "CI": "true", "COLUMNS": "120"}
    project.record(RECORDINGS / "ci-log.cast", f"{' '.join(AGAINST)} | cat", columns=120, **job)


def draw_history(directory: Path) -> None:
    """Draw the course of a test over commits that each store a baseline, of which one is slower."""
    project, page = prepared(directory), directory / "history.html"
    for number, subject in enumerate(COURSE):
        if subject == SLOWER:
            project.edit(BEFORE, AFTER)
        else:
            project.edit("import torch\n", f"import torch\n# Step {number}\n")
        project.commit(f"{subject}\n\nRlperf-Accept: {TEST} <= +900% drawn for a picture")
        project.run("pytest", "--rlperf-save-baseline", "-o", "rlperf_reach=off", "-k", "1000]")
        project.commit("Store a baseline")
    project.run("rlperf", "history", f"--html={page.name}")
    draw_page(IMAGES / "history.png", page, 1000, 700)


def main() -> None:
    """Make them all."""
    for draw in (draw_failure, draw_history):
        with tempfile.TemporaryDirectory() as directory:
            draw(Path(directory))


if __name__ == "__main__":
    main()
