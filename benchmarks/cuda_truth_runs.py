"""The checks of ``cuda_truth.py`` that take whole runs: pytest in a repository of its own, as a user has it.

A kernel that is known to take longer is told by live pairs against the commit before; the reference components by a
self-check, where what is known is extra work of the host's, and by a run of their own, for their trees.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cuda_truth_bench import WITHIN, Finding, change, percent
from cuda_truth_project import KERNELS_A_PART, files, kernels

KERNEL_S = 0.5e-3
PART_S = KERNELS_A_PART * KERNEL_S
SLOWDOWNS = (0.0, 0.03, 0.05, 0.10)
ESTIMATE_OFF = 0.02
_LIMIT_S = 1800.0  # for one run of pytest, of which none takes a third

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
"""The phases that a component has, each with what its time hangs on, None where that depends on the GPU."""
_PACES = {"test_sac_update": "steady", "test_ppo_collect": "latency"}


class RunError(Exception):
    """A run gave no figures; the text is the end of what it printed."""


class Project:
    """A repository with measured tests on ``device``, whose runs are kept in ``folder``.

    ``cycles`` are those of a kernel of ``KERNEL_S``.
    """

    def __init__(self, folder: Path, device: str, cycles: int) -> None:
        self.folder = folder
        self.device = device
        self._cycles = cycles
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "PYTHONPATH", "RLPERF_", "GIT_"))
        } | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "COLUMNS": "120"}
        for name, text in files(device).items():
            self._write(name, text)
        self.slow_down(0.0, "as it was")
        self._git("init", "-q")
        self._git("add", ".")
        self._git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "first")

    def slow_down(self, share: float, remark: str) -> None:
        """Have the kernels take longer; the remark makes the file another one even where they do not."""
        self._write("kernels.py", kernels(round(self._cycles * (1 + share)), remark))

    def run(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run pytest, and return what it wrote as JSON; both that and what it printed are kept under ``name``."""
        path = self.folder / f"{name}.json"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-v", f"--rlperf-json={path}", *arguments]
        output = self._call(command)
        (self.folder / f"{name}.txt").write_text(output, encoding="utf-8")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tests": {}}
        if not document["tests"]:
            raise RunError(" / ".join(line.strip("= ") for line in output.strip().splitlines()[-3:]))
        return document

    def _call(self, command: Sequence[str]) -> str:
        """Return what a command prints; one that takes too long, or is interrupted, gets time to end its own."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LIMIT_S)
        except BaseException:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            raise
        finally:
            process.kill()
            process.wait()
        return output

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.folder, env=self._environment, check=True)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def status_wanted(slowdown: float) -> tuple[str, ...]:
    """Return what may be said of a slowdown, the tolerance being 3 %."""
    if slowdown == 0.0:
        return ("SAME",)
    return ("SLOWER", "UNDECIDED") if slowdown <= 0.03 else ("SLOWER",)


# ------------------------------------------------------------------ slowdowns


def kernels_that_take_longer(slowdown: float, project: Project) -> Finding:
    """Compare the working tree, whose kernels take longer, with the commit, live."""
    project.slow_down(slowdown, f"{percent(slowdown)} longer")
    document = project.run(f"kernels-{100 * slowdown:g}", "--rlperf-against=HEAD", "test_update.py")
    return read_live(document, slowdown)


def read_live(document: Mapping[str, Any], slowdown: float) -> Finding:
    """Return what a live run said of its one test."""
    (outcome,) = document["tests"].values()
    wanted = status_wanted(slowdown)
    found, met = _verdict(outcome["verdict"], slowdown, wanted)
    device = outcome["result"]["workers"][0]["device"]
    if device is None:
        return Finding(" or ".join(wanted), f"{found}, on the host", False)
    expected = f"{' or '.join(wanted)}, {change(slowdown)} within {percent(ESTIMATE_OFF)}"
    return Finding(expected, f"{found}, on {device['device']}", met)


def _verdict(verdict: Mapping[str, Any], slowdown: float, wanted: Sequence[str]) -> tuple[str, bool]:
    """Return a verdict in short, and whether it is one of those wanted by an estimate that is near the truth."""
    estimate = verdict["estimate"]
    if estimate is None:
        return f"{verdict['status']} ({verdict['reason']['message']})", False
    slower = estimate["ratio"] - 1
    is_near = abs(slower - slowdown) <= ESTIMATE_OFF
    return f"{verdict['status']} {change(slower)}", is_near and verdict["status"] in wanted


def kernels_have_their_tree(project: Project) -> Finding:
    """Measure the kernels by themselves."""
    project.slow_down(0.0, "as it was")
    return read_kernels(project.run("kernels", "--rlperf", "test_update.py"))


def read_kernels(document: Mapping[str, Any]) -> Finding:
    """Return whether the phases of kernels are as long as these, by the device's clock."""
    (outcome,) = document["tests"].values()
    lengths_s = {"update": 2 * PART_S, "update/critic": PART_S, "update/actor": PART_S}
    phases = {phase["path"]: phase["on_device"] for phase in outcome["result"]["phases"]}
    missing = [path for path in lengths_s if phases.get(path) is None or phases[path]["span_s"] is None]
    if missing:
        return Finding(f"{len(lengths_s)} phases by the device", f"no times of {', '.join(missing)}", False)
    worst = max((phases[path]["span_s"] / length_s - 1 for path, length_s in lengths_s.items()), key=abs)
    problems = _worker_problems(outcome, "latency")
    found = "; ".join([f"{change(worst)} at the worst of {len(lengths_s)}", *problems])
    return Finding(f"3 phases by the device, within {percent(WITHIN)}", found, abs(worst) <= WITHIN and not problems)


class References:
    """The runs of the reference components, each made once for all that is read from it."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @cached_property
    def selfcheck(self) -> dict[str, Any]:
        """Compare the components with themselves, slowed down by extra work."""
        known = " ".join(f"{100 * slowdown:g}%" for slowdown in SLOWDOWNS if slowdown)
        return self._project.run(
            "selfcheck", "--rlperf-selfcheck", "-o", f"rlperf_slowdowns={known}", "test_reference.py"
        )

    @cached_property
    def plain(self) -> dict[str, Any]:
        """Measure the components."""
        return self._project.run("reference", "--rlperf", "test_reference.py")


def components_with_extra_work(slowdown: float, references: References) -> Finding:
    """Look up what a self-check said of extra work."""
    return read_selfcheck(references.selfcheck, slowdown)


def read_selfcheck(document: Mapping[str, Any], slowdown: float) -> Finding:
    """Return what a self-check said of one slowdown, in all tests."""
    wanted = status_wanted(slowdown)
    found, are_met = [], []
    for key, check in document["tests"].items():
        (trial,) = (trial for trial in check["trials"] if abs(trial["slowdown"] - slowdown) < 1e-6)
        told, met = _verdict(trial["verdict"], slowdown, wanted)
        on_device = all(worker["device"] is not None for worker in check["result"]["workers"])
        found.append(f"{_test(key)} {told}{'' if on_device else ', on the host'}")
        are_met.append(met and on_device)
    return Finding(
        f"{' or '.join(wanted)}, {change(slowdown)} within {percent(ESTIMATE_OFF)}", "; ".join(found), all(are_met)
    )


# ------------------------------------------------------------------ trees


def component_has_its_tree(test: str, references: References) -> Finding:
    """Look up a component's phases."""
    return read_tree(references.plain, test)


def read_tree(document: Mapping[str, Any], test: str) -> Finding:
    """Return whether a component has its phases, by the device's clock, and both its paces."""
    (outcome,) = (outcome for key, outcome in document["tests"].items() if _test(key) == test)
    wanted = TREES[test]
    phases = {phase["path"]: phase for phase in outcome["result"]["phases"]}
    if phases.keys() != wanted.keys():
        differing = ", ".join(sorted(phases.keys() ^ wanted.keys()))
        return Finding(f"{len(wanted)} phases", f"{len(phases)}, not the same: {differing}", False)
    timed = {path: phase["on_device"] for path, phase in phases.items() if phase["on_device"] is not None}
    untimed = [path for path in wanted if path not in timed]
    problems = [f"no times by a device: {', '.join(untimed)}"] if untimed else []
    problems += [
        f"{path} {times['bound']}-bound" for path, times in timed.items() if wanted[path] not in (None, times["bound"])
    ]
    problems += _worker_problems(outcome, _PACES[test])
    expected = f"{len(wanted)} phases by the device, the bounds that are known, {_PACES[test]} judged"
    return Finding(expected, "; ".join(problems) or _told(outcome), not problems)


def _worker_problems(outcome: Mapping[str, Any], pace: str) -> list[str]:
    """Return what is wrong with a result's figures on a device."""
    if outcome["verdict"]["status"] == "INVALID":
        return [f"INVALID: {outcome['verdict']['reason']['message']}"]
    devices = [worker["device"] for worker in outcome["result"]["workers"]]
    if None in devices:
        return ["measured on the host"]
    found = [f"{other} judged" for other in {device["gated"] for device in devices} - {pace}]
    if any(None in (device["latency_s"], device["steady_s"]) for device in devices):
        found.append("no figure at one of the paces")
    return found


def _told(outcome: Mapping[str, Any]) -> str:
    device = outcome["result"]["workers"][0]["device"]
    latency, steady = (f"{1e3 * device[pace]:.2f} ms" for pace in ("latency_s", "steady_s"))
    whole = outcome["result"]["phases"][0]["on_device"]
    notes = f"; {'; '.join(outcome['result']['notes'])}" if outcome["result"]["notes"] else ""
    return f"so, on {device['device']}: latency {latency}, steady {steady}, {whole['bound']}-bound{notes}"


def _test(key: str) -> str:
    return key.rpartition("::")[2]


# ------------------------------------------------------------------ all of them


def _named(slowdown: float, what: str) -> str:
    return f"{what}: {change(slowdown) if slowdown else 'A/A'}"


KERNEL_RUNS: dict[str, Callable[[Project], Finding]] = {
    "kernels and their tree": kernels_have_their_tree,
    **{
        _named(slowdown, "kernels that take longer"): partial(kernels_that_take_longer, slowdown)
        for slowdown in SLOWDOWNS
    },
}
REFERENCE_RUNS: dict[str, Callable[[References], Finding]] = {
    **{
        _named(slowdown, "SAC and PPO with extra work"): partial(components_with_extra_work, slowdown)
        for slowdown in SLOWDOWNS
    },
    "SAC update and its tree": partial(component_has_its_tree, "test_sac_update"),
    "PPO collection and its tree": partial(component_has_its_tree, "test_ppo_collect"),
}
