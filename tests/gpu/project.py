"""A repository with measured tests of a GPU, and runs of pytest in it, as a user has them.

The kernels' lengths are known, and so is how much longer they are than those of the commit before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from builders import git

KERNEL_S = 0.5e-3
KERNELS_A_PART = 10
VIRTUAL_GPU = Path(__file__).parents[1] / "helpers" / "virtual_gpu.py"
_LIMIT_S = 1800.0  # for one run of pytest, of which none takes a third

_CUDA = '''"""The GPU, by PyTorch."""

import torch

held = torch.ones(1, device="cuda:0")
sleep = torch.cuda._sleep
'''

_VIRTUAL = '''"""The virtual GPU, in the time of this machine."""

import time

import torch  # the plugin reads its settings

from pytest_rlperf.timers import FakeClock
from virtual_gpu import VirtualGPU


class RealClock(FakeClock):
    """The host's clock: setting it waits for that moment."""

    @property
    def now_ns(self):
        return time.perf_counter_ns()

    @now_ns.setter
    def now_ns(self, end_ns):
        while (left_ns := end_ns - time.perf_counter_ns()) > 0:
            if left_ns > 4_000_000:
                time.sleep((left_ns - 3_000_000) / 1e9)  # the rest in a loop: sleep() returns late


gpu = VirtualGPU(clock=RealClock())
held = gpu.allocate(4)


def sleep(cycles):
    gpu.launch(cycles / 1.5e9)
'''

DEVICES = {"cuda": _CUDA, "virtual": _VIRTUAL}

_KERNELS = '''"""The code under test: kernels of known lengths; {remark}."""

from device import held, sleep
from pytest_rlperf import hierarchical_timer

CYCLES = {cycles}


def update():
    assert held.device
    with hierarchical_timer("update"):
        for part in ("critic", "actor"):
            with hierarchical_timer(part):
                for _ in range({kernels}):
                    sleep(CYCLES)
'''

TESTS = '''"""Measures a call of kernels, as a GPU takes them."""

import kernels


def test_update(rlperf):
    rlperf(kernels.update, unit="update")
'''

VIRTUAL_CONFTEST = '''"""Makes the virtual GPU known to pytest-rlperf."""

import pytest
from device import gpu

from pytest_rlperf.devices import driving


@pytest.fixture(autouse=True)
def known():
    with driving(gpu):
        yield
'''

REFERENCE_TESTS = '''"""Measures pytest-rlperf's reference components on a device."""

import numpy as np
import pytest

OBS_DIM, ACT_DIM = 17, 6


@pytest.fixture
def sac():
    from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer

    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(10_000, OBS_DIM, ACT_DIM, device="{device}")
    obs, next_obs = rng.normal(size=(2, 10_000, OBS_DIM))
    actions, rewards = rng.uniform(-1, 1, (10_000, ACT_DIM)), rng.normal(size=10_000)
    buffer.add(obs, actions, rewards, next_obs, rng.random(10_000) < 0.01)
    return SAC(OBS_DIM, ACT_DIM, buffer, device="{device}")


@pytest.fixture
def ppo():
    from pytest_rlperf.components.reference.ppo import PPO, make_vec_env

    envs = make_vec_env("CartPole-v1", 8)
    yield PPO(envs, device="{device}")
    envs.close()


def test_sac_update(rlperf_sac_update, sac):
    rlperf_sac_update(sac, batch_size=256)


def test_ppo_collect(rlperf_ppo_collect, ppo):
    rlperf_ppo_collect(ppo, n_steps=128)
'''


def files(device: str) -> dict[str, str]:
    """Return the files of the repository by their names, but for the kernels."""
    kind = device.partition(":")[0]
    found = {
        "pytest.ini": "[pytest]\n",
        ".gitignore": "*.json\n*.txt\n.pytest_cache/\n__pycache__/\n",
        "device.py": DEVICES[kind],
        "test_update.py": TESTS,
        "test_reference.py": REFERENCE_TESTS.format(device=device),
    }
    if kind == "virtual":
        found["conftest.py"] = VIRTUAL_CONFTEST
        found["virtual_gpu.py"] = VIRTUAL_GPU.read_text(encoding="utf-8")
    return found


def kernels(cycles: int, remark: str) -> str:
    return _KERNELS.format(cycles=cycles, remark=remark, kernels=KERNELS_A_PART)


class RunError(AssertionError):
    """A run of pytest without figures; the text is the end of its output."""


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
        for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
            git(folder, *command, env=self._environment)

    def slow_down(self, share: float, remark: str) -> None:
        """Have the kernels take longer; the remark makes the file another one even where they do not."""
        self._write("kernels.py", kernels(round(self._cycles * (1 + share)), remark))

    def run(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run pytest and return its JSON; that and its output are kept under ``name``."""
        path = self.folder / f"{name}.json"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-v", f"--rlperf-json={path}", *arguments]
        output = self._call(command)
        (self.folder / f"{name}.txt").write_text(output, encoding="utf-8")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tests": {}}
        statuses = {test["verdict"]["status"] for test in document["tests"].values() if "verdict" in test}
        if not document["tests"] or statuses == {"ERROR"}:
            raise RunError(" / ".join(line.strip("= ") for line in output.strip().splitlines()[-3:]))
        return document

    def _call(self, command: Sequence[str]) -> str:
        """Return a command's output; one that takes too long, or is interrupted, gets time to end its processes."""
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

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
