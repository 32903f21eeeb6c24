"""Whole runs of pytest on a GPU, in a repository of their own, as a user has them.

Live pairs against the commit before have to find a kernel that takes longer; a self-check has to find extra work of the
host's in the reference components, and a run of these has to give their trees. The runs of the kernels are also made on
a virtual GPU in the time of this machine, with `pytest -m slow`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from gpu.bench import WITHIN, Bench, change, percent
from gpu.conftest import CUDA_MARKS, DEVICE, skip_without_cuda
from gpu.devices import Cuda
from gpu.project import KERNEL_S, KERNELS_A_PART, Project, RunError
from pytest_rlperf.model.device import Bound, DeviceFigures, DeviceTimes, Pace
from pytest_rlperf.model.judged import Status, Verdict
from pytest_rlperf.model.measured import Phase, Result
from pytest_rlperf.model.selfcheck import Fitness, Selfcheck, Trial
from pytest_rlperf.report.run_json import selfcheck_document, written

Report = Callable[[str], None]
Document = Mapping[str, Any]

SLOWDOWNS = (0.0, 0.03, 0.05, 0.10)
ESTIMATE_OFF = 0.02
PART_S = KERNELS_A_PART * KERNEL_S
VIRTUAL_HZ = 1.5e9  # of the virtual GPU in real time

TREES = {
    "test_sac_update": {
        "sac_update": None,
        "sac_update/sample": None,
        "sac_update/sample/index": None,
        "sac_update/sample/gather": None,
        "sac_update/sample/convert": "sync",  # it copies pageable memory
        "sac_update/target_q": None,
        **{f"sac_update/{part}": None for part in ("critic", "actor", "alpha", "polyak")},
        **{
            f"sac_update/{part}/{step}": None
            for part in ("critic", "actor")
            for step in ("forward", "backward", "step")
        },
    },
    "test_ppo_collect": {
        "ppo_collect": None,
        "ppo_collect/policy": "sync",  # it needs the actions on the host
        "ppo_collect/env_step": "launch",
        "ppo_collect/store": "sync",
        **dict.fromkeys(("ppo_collect/gae", "ppo_collect/gae/deltas", "ppo_collect/gae/backward_scan"), "launch"),
    },
}
"""The phases of a component, each with its bound, None where that depends on the GPU."""
PACES = {"test_sac_update": "steady", "test_ppo_collect": "latency"}

slowdowns = pytest.mark.parametrize("slowdown", SLOWDOWNS, ids=("A/A", "+3%", "+5%", "+10%"))


def on_cuda(test: Any) -> Any:
    for mark in CUDA_MARKS:
        test = mark(test)
    return test


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("virtual:0", marks=(pytest.mark.slow, pytest.mark.torch)),
        pytest.param(DEVICE, marks=CUDA_MARKS),
    ],
)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return the repository with kernels of known lengths, on either device."""
    return project_on(request.param, tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def reference_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return the repository of which the reference components are measured, on a CUDA device."""
    return project_on(DEVICE, tmp_path_factory.mktemp("references"))


def project_on(device: str, folder: Path) -> Project:
    if device != DEVICE:
        return Project(folder, device, round(VIRTUAL_HZ * KERNEL_S))
    skip_without_cuda()
    return Project(folder, device, Bench(Cuda(device)).cycles(KERNEL_S))


@pytest.fixture(scope="module")
def selfcheck_run(reference_project: Project) -> Document:
    """Compare the reference components with themselves, slowed down by extra work."""
    return reference_project.run("selfcheck", "--rlperf-selfcheck", "test_reference.py")


@pytest.fixture(scope="module")
def reference_run(reference_project: Project) -> Document:
    return reference_project.run("reference", "--rlperf", "test_reference.py")


def test_kernels_have_their_tree(project: Project, report: Report) -> None:
    """The phases of kernels measured by themselves are within 2 % by the device's clock."""
    project.slow_down(0.0, "as it was")
    check_kernels(project.run("kernels", "--rlperf", "test_update.py"), report)


@slowdowns
def test_kernels_that_take_longer(slowdown: float, project: Project, report: Report) -> None:
    """Live pairs with the commit before give the right verdict on longer kernels, within 2 points of the truth."""
    project.slow_down(slowdown, f"{percent(slowdown)} longer")
    document = project.run(f"kernels-{100 * slowdown:g}", "--rlperf-against=HEAD", "test_update.py")
    check_live(document, slowdown, report)


@on_cuda
@slowdowns
def test_components_with_extra_work(slowdown: float, selfcheck_run: Document, report: Report) -> None:
    """A self-check gives the right verdict on SAC and PPO with extra work, within 2 points of the truth."""
    check_selfcheck(selfcheck_run, slowdown, report)


@on_cuda
@pytest.mark.parametrize("test", TREES)
def test_components_have_their_tree(test: str, reference_run: Document, report: Report) -> None:
    """A component has all its phases by the device, the bounds that are known, and the right figure judged."""
    check_tree(reference_run, test, report)


def wanted_of(slowdown: float) -> tuple[str, ...]:
    """Return the right verdicts on a slowdown, the tolerance being 3 %."""
    if slowdown == 0.0:
        return ("SAME",)
    return ("SLOWER", "UNDECIDED") if slowdown <= 0.03 else ("SLOWER",)


def read_verdict(verdict: Document, slowdown: float) -> tuple[str, bool]:
    """Return a verdict in short, and whether it is a right one with an estimate near the truth."""
    estimate = verdict["estimate"]
    if estimate is None:
        return f"{verdict['status']} ({verdict['reason']['message']})", False
    slower = estimate["ratio"] - 1
    is_near = abs(slower - slowdown) <= ESTIMATE_OFF
    return f"{verdict['status']} {change(slower)}", is_near and verdict["status"] in wanted_of(slowdown)


def check_live(document: Document, slowdown: float, report: Report) -> None:
    """Check the verdict of a live run on its one test."""
    (outcome,) = document["tests"].values()
    found, is_right = read_verdict(outcome["verdict"], slowdown)
    device = outcome["result"]["workers"][0]["device"]
    report(f"{found}, on {'the host' if device is None else device['device']}")
    assert device is not None
    assert is_right


def check_kernels(document: Document, report: Report) -> None:
    """Check that the phases of kernels are as long as these, by the device's clock."""
    (outcome,) = document["tests"].values()
    lengths_s = {"update": 2 * PART_S, "update/critic": PART_S, "update/actor": PART_S}
    phases = {phase["path"]: phase["on_device"] for phase in outcome["result"]["phases"]}
    missing = [path for path in lengths_s if phases.get(path) is None or phases[path]["span_s"] is None]
    if missing:
        report(f"no times of {', '.join(missing)}")
    assert not missing
    worst = max((phases[path]["span_s"] / length_s - 1 for path, length_s in lengths_s.items()), key=abs)
    problems = worker_problems(outcome, "latency")
    report("; ".join([f"{change(worst)} at the worst of {len(lengths_s)}", *problems]))
    assert not problems
    assert abs(worst) <= WITHIN


def check_selfcheck(document: Document, slowdown: float, report: Report) -> None:
    """Check a self-check's verdicts on one slowdown, in all tests."""
    found, are_right = [], []
    for key, check in document["tests"].items():
        (trial,) = (trial for trial in check["trials"] if abs(trial["slowdown"] - slowdown) < 1e-6)
        verdict, is_right = read_verdict(trial["verdict"], slowdown)
        on_device = all(worker["device"] is not None for worker in check["result"]["workers"])
        found.append(f"{name_of(key)} {verdict}{'' if on_device else ', on the host'}")
        are_right.append(is_right and on_device)
    report("; ".join(found))
    assert all(are_right)


def check_tree(document: Document, test: str, report: Report) -> None:
    """Check that a component has its phases by the device's clock, and both its paces."""
    (outcome,) = (outcome for key, outcome in document["tests"].items() if name_of(key) == test)
    problems = tree_problems(outcome, TREES[test]) or worker_problems(outcome, PACES[test])
    report("; ".join(problems) or tree_in_short(outcome))
    assert not problems


def tree_problems(outcome: Document, wanted: Mapping[str, str | None]) -> list[str]:
    """Return the phases that are missing, not timed by the device, or bound by something else."""
    phases = {phase["path"]: phase for phase in outcome["result"]["phases"]}
    if phases.keys() != wanted.keys():
        differing = ", ".join(sorted(phases.keys() ^ wanted.keys()))
        return [f"{len(phases)}, not the same: {differing}"]
    timed = {path: phase["on_device"] for path, phase in phases.items() if phase["on_device"] is not None}
    untimed = [path for path in wanted if path not in timed]
    problems = [f"no times by a device: {', '.join(untimed)}"] if untimed else []
    return problems + [
        f"{path} {times['bound']}-bound" for path, times in timed.items() if wanted[path] not in (None, times["bound"])
    ]


def worker_problems(outcome: Document, pace: str) -> list[str]:
    status, reason = outcome["verdict"]["status"], outcome["verdict"]["reason"]["message"]
    if status in ("INVALID", "ERROR"):
        return [f"{status}: {reason}"]
    devices = [worker["device"] for worker in outcome["result"]["workers"]]
    if None in devices:
        return ["measured on the host"]
    found = [f"{other} judged" for other in {device["gated"] for device in devices} - {pace}]
    if any(None in (device["latency_s"], device["steady_s"]) for device in devices):
        found.append("no figure at one of the paces")
    return found


def tree_in_short(outcome: Document) -> str:
    device = outcome["result"]["workers"][0]["device"]
    latency, steady = (f"{1e3 * device[pace]:.2f} ms" for pace in ("latency_s", "steady_s"))
    whole = outcome["result"]["phases"][0]["on_device"]
    notes = "".join(f"; {note}" for note in outcome["result"]["notes"])
    return f"so, on {device['device']}: latency {latency}, steady {steady}, {whole['bound']}-bound{notes}"


def name_of(key: str) -> str:
    return key.rpartition("::")[2]


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


def result_of(
    test: str, bounds: dict[str, Bound], spans_s: dict[str, float] | None, device: DeviceFigures | None
) -> Result:
    """Return the result of one test, its phases with the given bounds."""
    phases = tuple(
        Phase(path, 1.0, 1e-3, 1e-3, "cuda:0", replace(TIMES, bound=bound, span_s=(spans_s or {}).get(path, 1e-3)))
        for path, bound in bounds.items()
    )
    workers = (builders.worker(device=device),) * 5
    return builders.result(f"test_it.py::{test}", workers=workers, phases=phases, traced_call_s=1e-3)


def run_of(
    test: str,
    bounds: dict[str, Bound],
    spans_s: dict[str, float] | None = None,
    device: DeviceFigures | None = FIGURES,
    verdict: Verdict | None = None,
) -> Any:
    result = result_of(test, bounds, spans_s, device)
    outcome = builders.outcome(result, verdict or builders.verdict(Status.NEW))
    return json.loads(written(builders.run_document(builders.MACHINE, {result.nodeid: outcome}, (), ())))


def selfcheck_of(slowdown: float, verdict: Verdict, device: DeviceFigures | None = FIGURES) -> Any:
    """Return a self-check as JSON has it, the second of its two slowdowns with the given verdict."""
    result = result_of("test_sac_update", {}, None, device)
    other = builders.verdict(Status.SAME, 1.0)
    checked = Selfcheck(result, (Trial(slowdown + 0.2, other, (), 1.0), Trial(slowdown, verdict, (), 1.0)))
    return json.loads(written(selfcheck_document(builders.MACHINE, {result.nodeid: checked}, Fitness(0.03, True, 0))))


def bounds_of(test: str) -> dict[str, Bound]:
    return {path: Bound(bound or "device") for path, bound in TREES[test].items()}


def failure_of(check: Callable[..., None], *arguments: Any) -> str:
    found: list[str] = []
    with pytest.raises(AssertionError):
        check(*arguments, found.append)
    return found[-1]


@pytest.mark.parametrize(("test", "pace"), [("test_sac_update", Pace.STEADY), ("test_ppo_collect", Pace.LATENCY)])
def test_the_right_tree_passes(test: str, pace: Pace) -> None:
    """All phases by the device, known bounds and the right pace pass."""
    found: list[str] = []
    check_tree(run_of(test, bounds_of(test), device=replace(FIGURES, gated=pace)), test, found.append)
    assert found == ["so, on cuda:0: latency 2.00 ms, steady 1.00 ms, device-bound"]


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
        ({"verdict": builders.verdict(Status.INVALID)}, "INVALID: why"),
    ],
)
def test_a_wrong_tree_fails(changed: dict[str, Any], found: str) -> None:
    """Other phases or bounds, the host, another pace, a missing figure and a worthless measurement fail."""
    test = "test_sac_update"
    assert found in failure_of(check_tree, run_of(test, **({"bounds": bounds_of(test)} | changed)), test)


def test_a_tree_without_times_by_a_device_fails() -> None:
    """A phase that only the host has timed is named."""
    test = "test_sac_update"
    run = run_of(test, bounds_of(test))
    (outcome,) = run["tests"].values()
    outcome["result"]["phases"][-1]["on_device"] = None
    assert failure_of(check_tree, run, test).startswith("no times by a device: sac_update/")


def test_kernels_of_other_lengths_fail() -> None:
    """The worst phase counts, within 2 %."""
    spans_s = {"update": 10e-3, "update/critic": 5e-3}
    bounds = dict.fromkeys((*spans_s, "update/actor"), Bound.DEVICE)
    device = replace(FIGURES, gated=Pace.LATENCY)
    found: list[str] = []
    check_kernels(run_of("test_update", bounds, spans_s | {"update/actor": 5.05e-3}, device), found.append)
    assert found == ["+1 % at the worst of 3"]
    wrong = run_of("test_update", bounds, spans_s | {"update/actor": 5.5e-3}, device)
    assert failure_of(check_kernels, wrong) == "+10 % at the worst of 3"


def test_kernels_without_phases_fail() -> None:
    """The phases without times are named."""
    run = run_of("test_update", {"update": Bound.DEVICE})
    assert failure_of(check_kernels, run) == "no times of update/critic, update/actor"


VERDICTS = [
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


@pytest.mark.parametrize(("slowdown", "status", "ratio", "passes"), VERDICTS)
def test_only_the_right_verdict_passes(slowdown: float, status: Status, ratio: float | None, passes: bool) -> None:
    """A live run's and a self-check's verdict have to be right, with an estimate near the truth."""
    verdict = builders.verdict(status, ratio)
    live = run_of("test_update", {"update": Bound.DEVICE}, verdict=verdict)
    for check, run in ((check_live, live), (check_selfcheck, selfcheck_of(slowdown, verdict))):
        if passes:
            check(run, slowdown, lambda found: None)
        else:
            failure_of(check, run, slowdown)


def test_a_comparison_on_the_host_fails() -> None:
    """A right verdict on figures of the host is not enough."""
    verdict = builders.verdict(Status.SLOWER, 1.05)
    live = run_of("test_update", {"update": Bound.DEVICE}, device=None, verdict=verdict)
    assert failure_of(check_live, live, 0.05) == "SLOWER +5 %, on the host"
    selfcheck = selfcheck_of(0.05, verdict, None)
    assert failure_of(check_selfcheck, selfcheck, 0.05) == "test_sac_update SLOWER +5 %, on the host"


def test_the_repository_is_committed_and_changed(tmp_path: Path) -> None:
    """Slower kernels differ from the commit, and unchanged kernels are another file with the same numbers."""
    project = Project(tmp_path, "virtual:0", 750_000)
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
    assert builders.git(tmp_path, "status", "--short") == "M kernels.py"


def test_a_run_without_figures_fails_with_its_last_words(tmp_path: Path) -> None:
    """The end of pytest's output is the failure's text."""
    project = Project(tmp_path, "cuda:0", 1_000_000)
    (tmp_path / "test_update.py").write_text("import no_such_module\n", encoding="utf-8")
    with pytest.raises(RunError, match="1 error in"):
        project.run("broken", "--rlperf", "test_update.py")
