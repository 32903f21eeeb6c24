"""Whole runs of pytest on a GPU, in a repository of their own, as a user has them.

Live pairs against the commit before have to find a kernel that takes longer; a self-check has to find extra work of the
host's in the reference components, and a run of these has to give their trees. The runs of the kernels are also made on
a virtual GPU in the time of this machine, with `pytest -m slow`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu.bench import WITHIN, Bench, change, percent
from gpu.conftest import CUDA_MARKS, DEVICE, skip_without_cuda
from gpu.devices import Cuda
from gpu.project import KERNEL_S, KERNELS_A_PART, Project

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
    return reference_project.run("selfcheck", "--rlperf:check-machine", "test_reference.py")


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
    compared = ("--rlperf-against=HEAD", "-o", "rlperf_reach=off")  # a remark alone is measured, too
    document = project.run(f"kernels-{100 * slowdown:g}", *compared, "test_update.py")
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


def wanted_of(slowdown: float, slower: float) -> tuple[str, ...]:
    """Return the right verdicts on a slowdown that was found to be ``slower``, the tolerance being 3 %.

    Of a slowdown that is the tolerance itself, the kernels may really have a little more or less.
    """
    if slowdown == 0.0:
        return ("SAME",)
    if slowdown > 0.03:
        return ("SLOWER",)
    return ("UNDECIDED", "SLOWER" if slower > 0.03 else "SAME")


def read_verdict(verdict: Document, slowdown: float) -> tuple[str, bool]:
    """Return a verdict in short, and whether it is a right one with an estimate near the truth."""
    estimate = verdict["estimate"]
    if estimate is None:
        return f"{verdict['status']} ({verdict['reason']['message']})", False
    slower = estimate["ratio"] - 1
    is_near = abs(slower - slowdown) <= ESTIMATE_OFF
    return f"{verdict['status']} {change(slower)}", is_near and verdict["status"] in wanted_of(slowdown, slower)


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
