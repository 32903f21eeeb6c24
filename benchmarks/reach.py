"""What reach spares in a library's commits, and whether that is right.

``python benchmarks/reach.py CLONE COMMITS FILE [--package PLACE...] [--only-look]``

CLONE is a checkout with untracked rlperf tests in ``perf/``, and is left at its last commit. Each of the last COMMITS
that touch PACKAGE (``--package``, the clone's name unless given) is compared with its parent. Tests that reach would
spare are measured all the same, and those that it would measure are not: so one run of a commit shows what is spared,
and that nothing of it is slower or faster. FILE gets a line of JSON a commit; a commit that is there is left out.

``--only-look`` measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "RLPERF_REACH_LOOKS"  # holds the file of what tests reach; in a run's process this module is a plugin
ONLY_LOOK = "RLPERF_REACH_ONLY_LOOK"


# --------------------------------------------------------------------------- the plugin


def pytest_configure(config: Any) -> None:
    """Let the run measure what it would spare, and spare what it would measure."""
    if VARIABLE not in os.environ or hasattr(config, "workerinput"):
        return
    from msgspec.structs import replace

    from pytest_rlperf.model import reasons
    from pytest_rlperf.run.measure import Measurement

    observed = Measurement._observed

    def turned(measurement: Measurement, test: Any, drivers: Any) -> Any:
        known = test.observed
        found = yield from observed(measurement, test, drivers)
        if known is not None:
            return found
        parts = [] if found.reached is None else [[part.kind, part.file, part.name] for part in found.reached.executes]
        why = "same" if isinstance(found.reason, reasons.SameCode) else "spared" if found.reason else "touched"
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test.key, "why": why, "parts": parts}) + "\n")
        if why == "spared" and ONLY_LOOK not in os.environ:
            test.abandon()
            test.forget_reporter()
            found = replace(found, reason=None)
        elif why == "touched":
            found = replace(found, reason=reasons.Unreached("not looked at", 0))
        test.observed = found
        return found

    Measurement._observed = turned  # type: ignore[assignment,method-assign]


# --------------------------------------------------------------------------- the program


def compare(clone: Path, sha: str, scratch: Path, *, only_look: bool) -> dict[str, Any]:
    """Compare a commit with its parent, and return what came of it."""
    from shared import git, python  # not where this module is a plugin

    git(clone, "checkout", "--quiet", "--force", sha)
    looks, output = scratch / "looks.jsonl", scratch / "run.json"
    for path in (looks, output):
        path.unlink(missing_ok=True)
    arguments = ["-m", "pytest", "perf", f"--rlperf-against={sha}^", f"--rlperf-json={output}", "-q"]
    arguments += ["-p", "reach", "-p", "no:cacheprovider", "--rlperf-max-time=10", "-o", "rlperf_setup_timeout=60"]
    arguments += ["--rlperf-findings=first_call=off,growth=off,counts=off"]
    variables = {VARIABLE: str(looks), "PYTHONPATH": str(Path(__file__).parent)} | (
        {ONLY_LOOK: "1"} if only_look else {}
    )
    ended = python(arguments, clone, **variables)
    found: dict[str, Any] = {"sha": sha, "code": ended.code, "seconds": round(ended.seconds, 1)}
    if not output.exists() or not looks.exists():
        return {**found, "failed": ended.output[-1500:]}
    tests = json.loads(output.read_text())["tests"]
    found["tests"] = [json.loads(line) for line in looks.read_text().splitlines()]
    for test in found["tests"]:
        verdict = tests.get(test["test"], {}).get("verdict", {"status": "", "estimate": None})
        test |= {"status": verdict["status"], "estimate": verdict["estimate"]}
    return found


def summary(lines: list[dict[str, Any]]) -> str:
    """Return the shares of (commit, test) that are measured, and the verdicts of those that are spared."""
    worked = [line for line in lines if "tests" in line]
    tests = [test for line in worked for test in line["tests"]]
    kinds = Counter(test["why"] for test in tests)
    loads = sum(test["why"] != "same" for test in tests)
    free = sum(all(test["why"] != "touched" for test in line["tests"]) for line in worked)
    spared = Counter(test["status"] or "not reported" for test in tests if test["why"] == "spared")
    total = max(1, len(tests))
    return (
        f"{len(worked)} commits, {len(lines) - len(worked)} more that do not run; {len(tests)} (commit, test): "
        f"by loaded files {100 * loads / total:.0f} %, by executed functions {100 * kinds['touched'] / total:.0f} %; "
        f"{free} commits need no measurement; spared and measured all the same: {dict(spared)}"
    )


def main() -> None:
    """Compare commits with their parents."""
    from shared import git

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("commits", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--package", nargs="*")
    parser.add_argument("--only-look", action="store_true")
    wanted = parser.parse_args()
    known = [json.loads(line) for line in wanted.file.read_text().splitlines()] if wanted.file.exists() else []
    places = wanted.package or [wanted.clone.name]
    shas = git(wanted.clone, "log", "--no-merges", f"-{wanted.commits}", "--format=%H", "origin/HEAD", "--", *places)
    scratch = wanted.file.resolve().parent
    for sha in shas.split():
        if sha in {line["sha"] for line in known}:
            continue
        known.append(compare(wanted.clone, sha, scratch, only_look=wanted.only_look))
        with wanted.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(known[-1]) + "\n")
        print(f"{sha[:12]} {known[-1]['code']} {known[-1]['seconds']} s", flush=True)
    git(wanted.clone, "checkout", "--quiet", "--force", "origin/HEAD")
    print(summary(known))


if __name__ == "__main__":
    main()
