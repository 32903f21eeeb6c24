"""Replay real regressions of RL libraries, each with the tests that a maintainer would have had.

A case is an entry of cases.toml and a folder with its test file; a planted one has a small library, too. Prints a
Markdown table: which test failed, with which finding, after how many seconds::

    python benchmarks/real_regressions/replay.py             # all cases, about twenty minutes
    python benchmarks/real_regressions/replay.py record_video omp_threads
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
CASES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))


def replay(name: str, case: dict[str, Any], folder: Path) -> str:
    """Replay one case in ``folder``; return its row."""
    shutil.copy(HERE / name / "test_it.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    python, against = sys.executable, "HEAD"
    if "versions" in case:
        base, head = case["versions"]
        python, against = _environment(folder / ".venv", head, case.get("needs", [])), f"pip:{base}"
    else:
        library = (HERE / name / "library.py").read_text(encoding="utf-8")
        (folder / "library.py").write_text(library, encoding="utf-8")
    (folder / ".gitignore").write_text(".venv\nrun.json\n", encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "good"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command], cwd=folder, check=True)
    if "versions" not in case:
        changed = library.replace("REGRESSED = False", "REGRESSED = True")
        for good, bad in case.get("change", []):
            assert good in changed, good
            changed = changed.replace(good, bad)
        assert changed != library
        (folder / "library.py").write_text(changed, encoding="utf-8")
    start_s = time.monotonic()
    command = [
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--rlperf-against={against}",
        "--rlperf-json=run.json",
    ]
    done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return _row(name, case, folder / "run.json", done.stdout, time.monotonic() - start_s)


def _environment(place: Path, requirement: str, needs: list[str]) -> str:
    """Return the interpreter of an environment like this one, but for one release, and with packages it ``needs``."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = str(place / "bin" / "python")
    site = next((place / "lib").glob("python*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    (site / "ours.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for wanted in (["--no-deps", requirement], needs):
        if wanted:
            subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
    return python


def _row(name: str, case: dict[str, Any], path: Path, output: str, seconds: float) -> str:
    """Return a case's row: the failing tests with their lines, or how the run ended without any."""
    tests = json.loads(path.read_text(encoding="utf-8"))["tests"] if path.exists() else {}
    found = []
    for key, test in tests.items():
        verdict = test["verdict"]
        if verdict["status"] == "SLOWER":
            kinds = [each["kind"] for each in verdict["findings"] if each["gates"]]
            by_time = verdict["reason"]["code"] == "live"
            text = " ".join([verdict["reason"]["message"], test["live"]["blame"], *map(str, verdict["counters"])])
            found.append(([*(["time"] if by_time else []), *kinds], key.partition("::")[2], verdict, text))
    hit = any(case["kind"] in kinds and case["place"] in f"SLOWER {key} {text}" for kinds, key, _, text in found)
    statuses = ", ".join(f"{key.partition('::')[2]} {test['verdict']['status']}" for key, test in tests.items())
    shown = "; ".join(f"{key}: {', '.join(kinds)}" for kinds, key, _, _ in found) or statuses or output[-300:]
    line = next((verdict["reason"]["message"].splitlines()[0] for _, _, verdict, _ in found), "")
    ratio = max((verdict["estimate"]["ratio"] for *_, verdict, _ in found), default=0.0)
    change = f"×{ratio:.2f}" if ratio else ""
    cells = (name, case["report"], case["what"], case["size"], "yes" if hit else "**no**", shown, change, line)
    return f"| {' | '.join(cells)} | {seconds:.0f} |"


def main() -> None:
    """Replay the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    wanted = parser.parse_args().cases or list(CASES)
    if unknown := sorted(set(wanted) - CASES.keys()):
        parser.error(f"there is no case {', '.join(unknown)}")
    print("| case | reported in | what | true size | found | failing tests, by | time | line | seconds |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    os.environ.pop("PYTEST_ADDOPTS", None)
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            print(replay(name, CASES[name], Path(folder)), flush=True)


if __name__ == "__main__":
    main()
