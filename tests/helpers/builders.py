"""Builders of the values that many tests need: measured figures, verdicts, outcomes, files and repositories."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.model.judged import Estimate, Outcome, Status, Verdict
from pytest_rlperf.model.live import Contribution, Live, PairRecord
from pytest_rlperf.model.measured import (
    CounterChange,
    Counting,
    Figures,
    Phase,
    PhaseCounts,
    Result,
    Share,
    WorkerRecord,
)
from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.model.reasons import WrittenReason
from pytest_rlperf.model.sides import Project
from pytest_rlperf.model.stored import Machine, Provenance, StoredResult
from pytest_rlperf.report.run_json import RunFile, document_of
from pytest_rlperf.sides.prepare import Preparation

MS = 1e-3
TESTS = Path(__file__).parents[1]
KEY = "tests/test_it.py::test_it"
MACHINE = Machine(system="Linux", arch="x86_64", cpu="Made Up 9000", cores=4, python="CPython 3.11", kernel=1)
PROVENANCE = Provenance(commit=None, tree=None, dirty=False, created="2026-01-02T03:04:05+00:00", packages={})


# --------------------------------------------------------------------------- parameters


def others_are_slow(argument: str, cases: Mapping[str, object], of: int = 2) -> pytest.MarkDecorator:
    """Return the cases of a test by their ids; of each few that follow each other all but the first are slow."""
    marks = [pytest.mark.slow if number % of else () for number in range(len(cases))]
    found = [pytest.param(case, id=name, marks=mark) for (name, case), mark in zip(cases.items(), marks, strict=True)]
    return pytest.mark.parametrize(argument, found)


# --------------------------------------------------------------------------- measured


def figures(call_s: float = MS, relative: float | None = None, relative_memory: float | None = None) -> Figures:
    """Return figures of one clock; without more arguments a call of either reference kernel takes 1 ms."""
    relative = call_s / MS if relative is None else relative
    return Figures(call_s, relative, relative if relative_memory is None else relative_memory)


def worker(
    call_s: float = MS, relative: float | None = None, relative_memory: float | None = None, **changes: Any
) -> WorkerRecord:
    """Return the record of a worker whose two clocks agree; ``changes`` replace fields."""
    one = figures(call_s, relative, relative_memory)
    record = WorkerRecord(
        wall=one,
        cpu=one,
        long=False,
        alone=False,
        items_per_call=1.0,
        slices=40,
        calls=400,
        cpu_share=1.0,
        idle_cpu_share=0.0,
        collections=0,
        threads=1,
        seed=0,
    )
    return replace(record, **changes)


def result(nodeid: str = KEY, call_s: float = MS, **changes: Any) -> Result:
    """Return the result of five equal workers, without phases; ``changes`` replace fields."""
    found = Result(
        nodeid=nodeid,
        component="gae",
        unit="transition",
        items=1.0,
        workers=(worker(call_s),) * 5,
        phases=(),
        traced_call_s=0.0,
        notes=(),
    )
    return replace(found, **changes)


def stored(found: Result, session: str = "then", **changes: Any) -> StoredResult:
    """Return the entry of a baseline that holds a result."""
    return replace(StoredResult(found, session, accepted=None), **changes)


def provenance(**changes: Any) -> Provenance:
    """Return where figures come from: no repository, unless ``changes`` name a commit."""
    return replace(PROVENANCE, **changes)


def pair(
    log_ratio: float, base: WorkerRecord | None = None, head: WorkerRecord | None = None, **changes: Any
) -> PairRecord:
    """Return a live pair that found a log-ratio; ``changes`` replace fields."""
    record = PairRecord(
        wall_log_ratio=log_ratio,
        cpu_log_ratio=log_ratio,
        alone=False,
        blocks=10,
        base=base or worker(),
        head=head or worker(),
        placed=0,
        cpus=(0,),
        setup_s=1.0,
        seconds=2.0,
    )
    return replace(record, **changes)


# --------------------------------------------------------------------------- judged


def estimate(ratio: float, margin: float = 0.01, **changes: Any) -> Estimate:
    """Return an estimate whose bounds all lie ``margin`` away from the ratio, unless ``changes`` give others."""
    low, high = ratio - margin, ratio + margin
    return replace(Estimate(ratio, low, high, confidence=0.99, floor=low, ceiling=high), **changes)


def verdict(
    status: Status = Status.SAME,
    ratio: float | None = None,
    *,
    code: str = "code",
    message: str = "why",
    margin: float = 0.01,
    **changes: Any,
) -> Verdict:
    """Return a gated verdict, with an estimate where a ratio is given; ``changes`` replace fields."""
    found = Verdict(
        status=status,
        reason=WrittenReason(code, message),
        estimate=None if ratio is None else estimate(ratio, margin),
        smallest_seen=0.2,
        suspect=False,
        gated=True,
        accepted=False,
    )
    return replace(found, **changes)


def outcome(
    found: Result | None = None,
    judged: Verdict | None = None,
    before: Result | None = None,
    live: Live | None = None,
    seconds: float = 8.25,
) -> Outcome:
    """Return a test's outcome; ``before`` is the result that the baseline holds of it."""
    return Outcome(
        result=found or result(),
        baseline=None if before is None else stored(before),
        live=live,
        verdict=judged or verdict(),
        seconds=seconds,
    )


TREE = (
    ("sac_update", 1.0, 0.98, 0.08),
    ("sac_update/critic", 1.0, 0.5, 0.2),
    ("sac_update/critic/backward", 2.0, 0.3, 0.3),
    ("sac_update/actor", 1.0, 0.4, 0.4),
)
"""The phases of a SAC update: path, entries, and the shares of a call in it and in no phase of it."""


def compared(
    name: str = "test_it",
    status: Status = Status.SAME,
    ratio: float | None = 1.0,
    call_s: float = MS,
    *,
    live: bool = False,
    **judged: Any,
) -> Outcome:
    """Return the outcome of a SAC update that takes ``ratio`` times its base, by a baseline or by four live pairs.

    All its phases have changed alike. Without a ratio there is no base. ``judged`` goes to :func:`verdict`.
    """

    def side(taken_s: float) -> Result:
        return result(
            name if "::" in name else f"tests/test_sac.py::{name}",
            component="sac_update",
            items=256.0,
            workers=(worker(taken_s, items_per_call=256.0),) * 5,
            phases=tuple(
                Phase(path, count, total * taken_s, own * taken_s, "host") for path, count, total, own in TREE
            ),
            traced_call_s=taken_s,
        )

    found, judgement = side(call_s), verdict(status, ratio, **judged)
    if ratio is None:
        return outcome(found, judgement)
    base = side(call_s / ratio)
    if not live:
        return outcome(found, judgement, base)
    change_s = call_s - call_s / ratio
    shares = {**{path: own for path, _, _, own in reversed(TREE)}, "": 0.02}
    added = tuple(Contribution(path, own * change_s) for path, own in shares.items() if change_s)
    pairs = (pair(math.log(ratio), base.workers[0], found.workers[0]),) * 4
    sides = Live("main", "HEAD", base, pairs, contributions=added, carriers=added[:2], base_commit="b" * 40)
    return outcome(found, judgement, live=sides)


def everywhere(name: str) -> Outcome:
    """Return a slower test in which all texts are one: ids, messages, phases, counts, notes and sides."""
    found = compared(name, Status.SLOWER, 1.1, live=True)
    assert found.live is not None
    flat = name.replace("/", "")
    return replace(
        found,
        # Values in messages may have several lines.
        verdict=replace(
            found.verdict,
            reason=WrittenReason("live", name.replace("\n", "")),
            counters=(CounterChange(name, name, 1, 2),),
            more_work=(CounterChange("", name, 1, 2),),
        ),
        result=replace(
            found.result,
            component=name,
            unit=name,
            notes=(name,),
            phases=(Phase(flat, 1.0, 1e-3, 1e-3, name),),
            counting=Counting((PhaseCounts(name, {name: 1}, {}),), 3, 2, (name,)),
            shares=(Share(name, 0.5),),
        ),
        live=replace(found.live, base_label=name, head_label=name, carriers=(Contribution(name, 1e-3),)),
    )


# --------------------------------------------------------------------------- files, repositories and runs of pytest

ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_rlperf.plugin"}
"""The environment of a pytest that loads this plugin alone: its processes start in half of the time."""

ONE_CALL = ("--rlperf", "--rlperf-max-time=0.000001")
"""The options of a measured run for tests of anything but figures: its only figure is the one worker's checked call."""

TWO_PAIRS = ("-o", "rlperf_pairs=2..2", "--rlperf-max-time=0.3", "--rlperf-findings=growth=off")
"""The options of a live comparison for tests of anything but figures; such short pairs often seem to grow."""

FIRST_CALLS = ("--rlperf", "--rlperf-max-time=0.0001")
"""The same for tests of several workers: all five are set up, in time for little more than a call."""


def write(directory: Path, files: Mapping[str, str]) -> Path:
    """Write files by their paths below a directory, their common indentation removed, and return the directory."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return directory


def source(name: str) -> str:
    """Return a file of `tests/samples/projects`, by its path there."""
    return (Path(__file__).parents[1] / "samples" / "projects" / name).read_text(encoding="utf-8")


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a user's run: without the settings of this one, of git's or of coverage's."""
    removed = ("PYTEST_", "GIT_", "COV_CORE_", "COVERAGE_PROCESS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    return {
        **kept,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **changes,
    }


def git(directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run git in a directory as a made-up author, and return its output."""
    settings = ["user.name=A", "user.email=a@example.org", "commit.gpgsign=false", "init.defaultBranch=main"]
    settings.append("maintenance.auto=false")  # or each commit starts another git
    options = [option for setting in settings for option in ("-c", setting)]
    done = subprocess.run(
        ["git", *options, *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


# --------------------------------------------------------------------------- clocks


class Seconds:
    """A clock of float seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Read the clock."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, or set the clock back."""
        self.now += seconds


def run_document(
    machine: Machine, tests: dict[str, Outcome], compared: Iterable[str], notes: Iterable[str], **others: Any
) -> dict[str, Any]:
    """Return the JSON of a run."""
    return document_of(RunFile(machine, tuple(compared), tuple(notes), tests, **others))


def project(root: Path, *files: str, **changes: Any) -> Project:
    """Return a project with these files of tests, as a run that was started in its root sees it."""
    found = Project(
        rootdir=root,
        directory=root,
        inipath=None,
        args=(),
        path=(str(root), *(entry for entry in sys.path if entry and TESTS not in (Path(entry), *Path(entry).parents))),
        files=tuple(root / file for file in files),
        conftests=(),
        test_patterns=("test_*.py", "*_test.py"),
        also=(),
        baseline_dir=root / "baselines",
        variables=dict(os.environ),
    )
    return replace(found, **changes)


def preparation(project: Project) -> Preparation:
    """Return what makes the sides of a run of ``project``; all that it makes is below ``made``, beside the root."""
    made = project.rootdir.parent / "made"
    made.mkdir(exist_ok=True)
    return Preparation(project, lambda: Path(tempfile.mkdtemp(dir=made)), lambda step: None)


def footprint(files: Iterable[str] = (), functions: Mapping[str, list[int]] | None = None, **changes: Any) -> Footprint:
    """Return what a process has run and read."""
    return replace(Footprint(list(files), children=False, functions=functions or {}), **changes)


def template_settings(**changes: Any) -> wire.SessionSettings:
    """Return the settings of a template that needs none but these."""
    lists: dict[str, Any] = {name: [] for name in ("path", "args", "files", "watched", "packages", "sites")}
    texts = dict.fromkeys(("scratch", "output", "directory", "python", "prefix"), "")
    others = {"number": 0, "markup": False, "reports": False, "share_terminal": False, "environment": {}}
    found = lists | texts | others | changes
    shared = {name: found.pop(name) for name in wire.SharedSettings.__struct_fields__ if name in found}
    return wire.SessionSettings(wire.SharedSettings(**shared), wire.TemplateSettings(**found))
