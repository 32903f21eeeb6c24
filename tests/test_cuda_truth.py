"""What is checked on a GPU: each check on the virtual one, and on virtual ones that have the defect it is to find."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from virtual_gpu import VirtualGPU

from pytest_rlperf.devices import driving
from pytest_rlperf.model import (
    Bound,
    DeviceFigures,
    DeviceTimes,
    Estimate,
    Figures,
    Fitness,
    Machine,
    Outcome,
    Pace,
    Phase,
    Reason,
    Result,
    Selfcheck,
    Status,
    Trial,
    Verdict,
    WorkerRecord,
)
from pytest_rlperf.report.run_json import run_document, selfcheck_document, written

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    """Return one of the scripts, which are no modules of the package and import each other."""
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


truth, devices, checks, runs = (load(f"cuda_truth{part}") for part in ("", "_devices", "_checks", "_runs"))


def row(name: str, gpu: VirtualGPU) -> Any:
    """Return one check's line of the table."""
    device = devices.Virtual(gpu)
    with driving(*device.drivers):
        return truth.row_of(name, lambda: checks.CHECKS[name](device))


# --------------------------------------------------------------------------- the command


def test_all_that_needs_no_gpu_is_as_expected_on_the_virtual_one(capsys: pytest.CaptureFixture[str]) -> None:
    """One command, one table, exit code 0; what needs a GPU says so."""
    assert truth.main(["--virtual"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("the virtual GPU, in virtual time")
    assert lines[3:5] == ["| check | expected | found | met |", "| --- | --- | --- | --- |"]
    met = {line.split(" | ")[0][2:]: line.split(" | ")[-1][:-2] for line in lines[5:]}
    assert met == dict.fromkeys(checks.CHECKS, "yes") | dict.fromkeys(
        (*runs.KERNEL_RUNS, *runs.REFERENCE_RUNS), "not possible"
    )


def test_what_is_not_as_expected_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of several is enough, and the others are in the table all the same."""
    monkeypatch.setattr(truth, "open_gpu", lambda virtual: devices.Virtual(VirtualGPU(drift=0.05)))
    assert truth.main(["--virtual", "--only", "known lengths", "--only", "conditions"]) == 1
    lines = capsys.readouterr().out.splitlines()[5:]
    assert [line.rpartition(" | ")[2] for line in lines] == ["no |", "yes |"]


def test_without_a_gpu_nothing_is_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is another one, and the text says why and what can be done."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert truth.main([]) == 2
    assert capsys.readouterr().err.startswith("nothing was checked: PyTorch ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--virtual", "--only", "nothing of the kind"], "no check has any of nothing of the kind in its name"),
        (["--live"], "--live goes with --virtual"),
        (["--virtual", "--out", str(BENCHMARKS)], "is not empty: name a new folder"),
    ],
)
def test_misuse_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be meant ends at once."""
    with pytest.raises(SystemExit):
        truth.main(arguments)
    assert said in capsys.readouterr().err


def test_a_check_that_fails_is_a_line_of_the_table() -> None:
    """Whatever a GPU's library raises, the other checks are made."""
    gpu = VirtualGPU()
    gpu.lose()
    name = "graph"
    found = truth.row_of(name, lambda: gpu.launch(1.0))
    assert found == (name, "", "RuntimeError: CUDA error: device virtual:0 is lost", "no")


# --------------------------------------------------------------------------- defects


class Waits(VirtualGPU):
    """A GPU that is waited for at every launch, as with CUDA_LAUNCH_BLOCKING=1."""

    def launch(self, seconds: float, stream: int | None = None, name: str = "") -> None:
        """Launch, and wait."""
        super().launch(seconds, stream, name)
        if not self.is_capturing():
            self.synchronize()


class CountsNoWaits(VirtualGPU):
    """A GPU whose library has another word for a wait than the one that is listened for."""

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Count nothing."""
        yield lambda: 0

    def counts(self) -> dict[str, int]:
        """Count all but waits."""
        return super().counts() | {"syncs": 0}


class AllPinned(VirtualGPU):
    """A GPU that takes pageable memory for pinned memory."""

    def copy_to_device(self, size_bytes: int, *, pinned: bool) -> None:
        """Copy as if it were pinned."""
        super().copy_to_device(size_bytes, pinned=True)


class OneStream(VirtualGPU):
    """A GPU that tells one stream for all, and does their work one after the other."""

    def stream(self) -> Hashable:
        """Return the default."""
        return 0

    @contextmanager
    def use(self, stream: int) -> Iterator[None]:
        """Stay on the default."""
        yield


class Captures(VirtualGPU):
    """A GPU whose library does not tell that it captures."""

    def is_capturing(self) -> bool:
        """Deny it."""
        return False


class CompilesUnseen(VirtualGPU):
    """A GPU whose compiler nobody counts."""

    def compile(self, seconds: float) -> None:
        """Compile."""
        self.host(seconds)


@pytest.mark.parametrize(
    ("name", "gpu", "found"),
    [
        ("phases of known lengths", VirtualGPU(drift=0.05), "+5.1"),
        ("phases of known lengths", VirtualGPU(drift=-0.03), "-3"),
        ("unsynced timing (negative control)", Waits(), "100.04 % of it"),
        ("a call's latency and steady pace", VirtualGPU(launch_s=1e-3), "latency +"),
        ("host spin, device sleep", Waits(), "sleep: host 100.1 %, device 100.1 %, launch-bound"),
        (".item()", CountsNoWaits(), "in step launch-bound, waits: 0"),
        ("pinned and pageable copies", AllPinned(), "pageable to device: device-bound, copies_to_device 1, copies_to_"),
        ("side stream", OneStream(), "main: +0"),
        ("work that no edge sees", OneStream(), "0.0 ms, not noted"),
        ("graph", Captures(), "DeviceClockError"),
        ("torch.compile, shape change", CompilesUnseen(), "compiled: 0; slices retaken before: 0, then: 0"),
        ("recording 100 phases", VirtualGPU(event_s=200e-6), "µs of the host's a phase"),
    ],
)
def test_each_check_finds_its_defect(name: str, gpu: VirtualGPU, found: str) -> None:
    """A check that could not fail would show nothing."""
    made = row(name, gpu)
    assert (made.met, found in made.found) == ("no", True), made


def test_what_one_phase_costs_hides_no_more_than_it_costs() -> None:
    """Slow events are no matter for one phase of 20 ms: the table tells how many are."""
    gpu = VirtualGPU(event_s=100e-6)
    assert row("recording 1 phase", gpu).met == "yes"


def test_conditions_that_nobody_tells_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What helps is said instead."""
    monkeypatch.setattr(VirtualGPU, "conditions", lambda self: None)
    monkeypatch.setattr(devices.VirtualLibrary, "missing", "pip install it")
    found = row("conditions", VirtualGPU())
    assert (found.found, found.met) == ("pip install it", "not possible")


# --------------------------------------------------------------------------- runs of pytest, as their JSON tells them

TIMES = DeviceTimes(
    span_s=10e-3,
    self_s=0.0,
    stream="main",
    lag_in_s=0.0,
    lag_out_s=0.0,
    bound=Bound.LAUNCH,
    is_synced=False,
    peak_bytes=None,
    allocations=None,
)
FIGURES = DeviceFigures(
    device="cuda:0",
    gated=Pace.STEADY,
    latency_s=2e-3,
    steady_s=1e-3,
    cycles=None,
    peak_bytes=0,
    allocations=0.0,
    flags={},
    conditions=None,
    retaken=0,
    notes=(),
)
MACHINE = Machine("Linux", "x86_64", "a CPU", 2, "3.11", 1)


def verdict(status: Status, ratio: float | None) -> Verdict:
    """Return a verdict with an estimate, or without one."""
    estimate = None if ratio is None else Estimate(ratio, ratio - 0.01, ratio + 0.01, 0.99, ratio - 0.02, ratio + 0.02)
    return Verdict(status, Reason("why", "because"), estimate, None, suspect=False, gated=True, accepted=False)


def result_of(
    test: str, bounds: dict[str, Bound], spans_s: dict[str, float] | None, device: DeviceFigures | None
) -> Result:
    """Return the result of one test, its phases bound by what is given."""
    one = Figures(1e-3, 1.0, 1.0)
    worker = WorkerRecord(one, one, False, False, 1.0, 10, 100, 1.0, 0.0, 0, 1, 0, device)
    phases = tuple(
        Phase(path, 1.0, 1e-3, 1e-3, "cuda:0", replace(TIMES, bound=bound, span_s=(spans_s or {}).get(path, 1e-3)))
        for path, bound in bounds.items()
    )
    return Result(f"test_it.py::{test}", "component", "call", 1.0, (worker,) * 5, phases, 1e-3, ())


def document(
    test: str,
    bounds: dict[str, Bound],
    spans_s: dict[str, float] | None = None,
    device: DeviceFigures | None = FIGURES,
    said: Verdict | None = None,
) -> dict[str, Any]:
    """Return a run of one test as JSON has it."""
    result = result_of(test, bounds, spans_s, device)
    outcome = Outcome(result, None, None, said or verdict(Status.NEW, None), 1.0)
    read: dict[str, Any] = json.loads(written(run_document(MACHINE, {result.nodeid: outcome}, (), ())))
    return read


def bounds_of(test: str) -> dict[str, Bound]:
    """Return the phases of a component as they are to be."""
    return {path: Bound(bound or "device") for path, bound in runs.TREES[test].items()}


@pytest.mark.parametrize(("test", "pace"), [("test_sac_update", Pace.STEADY), ("test_ppo_collect", Pace.LATENCY)])
def test_trees_are_read(test: str, pace: Pace) -> None:
    """All phases by the device, known bounds, the right pace: met."""
    found = runs.read_tree(document(test, bounds_of(test), device=replace(FIGURES, gated=pace)), test)
    assert (found.met, found.found) == (True, "so, on cuda:0: latency 2.00 ms, steady 1.00 ms, device-bound")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"bounds": {"sac_update": Bound.DEVICE}}, "1, not the same: sac_update/actor, "),
        (
            {"bounds": bounds_of("test_sac_update") | {"sac_update/sample/convert": Bound.LAUNCH}},
            "convert launch-bound",
        ),
        ({"device": None}, "measured on the host"),
        ({"device": replace(FIGURES, gated=Pace.LATENCY)}, "latency judged"),
        ({"device": replace(FIGURES, latency_s=None)}, "no figure at one of the paces"),
        ({"said": verdict(Status.INVALID, None)}, "INVALID: because"),
    ],
)
def test_trees_that_are_not_as_expected_are_said(changed: dict[str, Any], found: str) -> None:
    """Other phases, other bounds, the host, another pace, a figure that is missing, a worthless measurement."""
    test = "test_sac_update"
    made = runs.read_tree(document(test, **({"bounds": bounds_of(test)} | changed)), test)
    assert not made.met
    assert found in made.found


def test_trees_without_times_by_a_device_are_said() -> None:
    """A phase that only the host has timed is named."""
    test = "test_sac_update"
    read = document(test, bounds_of(test))
    (outcome,) = read["tests"].values()
    outcome["result"]["phases"][-1]["on_device"] = None
    assert runs.read_tree(read, test).found.startswith("no times by a device: sac_update/")


@pytest.mark.parametrize(("actor_s", "met"), [(5.05e-3, True), (5.5e-3, False)])
def test_kernels_are_as_long_as_they_are(actor_s: float, met: bool) -> None:
    """The worst phase counts."""
    spans_s = {"update": 10e-3, "update/critic": 5e-3, "update/actor": actor_s}
    device = replace(FIGURES, gated=Pace.LATENCY)
    found = runs.read_kernels(document("test_update", dict.fromkeys(spans_s, Bound.DEVICE), spans_s, device))
    assert found.met is met
    assert f"{actor_s / 5e-5 - 100:+.3g} % at the worst of 3" in found.found


def test_kernels_without_phases_are_said() -> None:
    """What is missing is named."""
    found = runs.read_kernels(document("test_update", {"update": Bound.DEVICE}))
    assert (found.met, found.found) == (False, "no times of update/critic, update/actor")


SAID = [
    (0.0, Status.SAME, 1.001, True),
    (0.0, Status.SLOWER, 1.04, False),
    (0.0, Status.UNDECIDED, 1.01, False),
    (0.03, Status.UNDECIDED, 1.027, True),
    (0.03, Status.SAME, 1.012, False),
    (0.05, Status.SLOWER, 1.052, True),
    (0.05, Status.UNDECIDED, 1.048, False),
    (0.10, Status.SLOWER, 1.13, False),
    (0.10, Status.INVALID, None, False),
]


@pytest.mark.parametrize(("slowdown", "status", "ratio", "met"), SAID)
def test_what_is_said_of_slowdowns_is_judged(slowdown: float, status: Status, ratio: float | None, met: bool) -> None:
    """A verdict has to be the right one, by an estimate that is near the truth; live, and in a self-check."""
    said = verdict(status, ratio)
    assert runs.read_live(document("test_update", {"update": Bound.DEVICE}, said=said), slowdown).met is met
    assert runs.read_selfcheck(selfcheck(slowdown, said), slowdown).met is met


def selfcheck(slowdown: float, said: Verdict, device: DeviceFigures | None = FIGURES) -> dict[str, Any]:
    """Return a self-check as JSON has it, in which one slowdown of two is told by what is said."""
    result = result_of("test_sac_update", {}, None, device)
    trials = (Trial(slowdown + 0.2, verdict(Status.SAME, 1.0), (), 1.0), Trial(slowdown, said, (), 1.0))
    fitness = Fitness(0.03, True, 0, ())
    checked = {result.nodeid: Selfcheck(result, trials)}
    read: dict[str, Any] = json.loads(written(selfcheck_document(MACHINE, checked, fitness)))
    return read


def test_a_comparison_on_the_host_is_none_of_the_device() -> None:
    """A right verdict is not enough."""
    said = verdict(Status.SLOWER, 1.05)
    found = runs.read_live(document("test_update", {"update": Bound.DEVICE}, device=None, said=said), 0.05)
    assert (found.met, found.found) == (False, "SLOWER +5 %, on the host")
    checked = runs.read_selfcheck(selfcheck(0.05, said, None), 0.05)
    assert (checked.met, checked.found) == (False, "test_sac_update SLOWER +5 %, on the host")


# --------------------------------------------------------------------------- the repository that pytest is run in


def test_the_repository_is_committed_and_changed(tmp_path: Path) -> None:
    """What is slowed down differs from the commit; unchanged kernels are another file with the same numbers."""
    project = runs.Project(tmp_path, "virtual:0", 750_000)
    first = (tmp_path / "kernels.py").read_text(encoding="utf-8")
    for name in ("kernels.py", "device.py", "conftest.py", "test_update.py", "test_reference.py"):
        compile((tmp_path / name).read_text(encoding="utf-8"), name, "exec")
    project.slow_down(0.0, "0 % longer")
    same = (tmp_path / "kernels.py").read_text(encoding="utf-8")
    project.slow_down(0.1, "10 % longer")
    slower = (tmp_path / "kernels.py").read_text(encoding="utf-8")
    assert first != same
    assert ["CYCLES = 750000" in text for text in (first, same, slower)] == [True, True, False]
    assert "CYCLES = 825000" in slower
    status = subprocess.run(["git", "status", "--short"], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    assert status.stdout == " M kernels.py\n"


def test_a_run_without_figures_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    """What pytest printed last says why."""
    project = runs.Project(tmp_path, "cuda:0", 1_000_000)
    (tmp_path / "test_update.py").write_text("import no_such_module\n", encoding="utf-8")
    with pytest.raises(runs.RunError, match="1 error in"):
        project.run("broken", "--rlperf", "test_update.py")


@pytest.mark.slow
@pytest.mark.torch
def test_kernels_on_the_virtual_gpu_in_real_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of pytest measure the virtual GPU by its own clock, and find 10 % more."""
    only = ["--only", "kernels and their tree", "--only", "kernels that take longer: +10"]
    assert truth.main(["--virtual", "--live", *only, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("| yes |") == 2
