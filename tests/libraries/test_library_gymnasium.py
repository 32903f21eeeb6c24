from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]
pytest.importorskip("gymnasium")

import gymnasium as gym  # noqa: E402 - where it is installed
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Short(gym.Env[Any, Any]):
    """Has episodes of so many steps, and goes on ending where it is not reset."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length = length
        self.n_steps = self.n_resets = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_resets += 1
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        self.at += 1
        return np.zeros(2, np.float32), 1.0, self.at >= self.length, False, {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 3, 1000])
def test_every_mode_is_checked_and_counted(mode: AutoresetMode, length: int) -> None:
    """Also episodes of one step, and such as do not end while they are checked, are what their mode says."""
    env = SyncVectorEnv([lambda: Short(length)] * 3, autoreset_mode=mode)
    workload = vecenv_workload(env)
    workload.check()
    inner: list[Any] = list(env.envs)
    resets = [one.n_resets for one in inner]
    # The last call of a check is counted, as a call that is not measured is.
    assert workload.processed(1) == 3 * (mode is not AutoresetMode.NEXT_STEP or length == 1000 or inner[0].at != 0)
    for calls in (1, 2, 7):
        before = sum(one.n_steps for one in inner)
        for _ in range(calls):
            workload.call()
        assert workload.processed(calls) == sum(one.n_steps for one in inner) - before
    assert (resets == [one.n_resets for one in inner]) == (length == 1000)


class NeverReset(SyncVectorEnv):
    """Says that it resets, and goes on stepping envs that have ended."""

    def step(self, actions: Any) -> Any:
        results = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        obs, rewards, terminated, truncated, _ = (np.array(part) for part in zip(*results, strict=True))
        return obs, rewards, terminated, truncated, {}


@pytest.mark.parametrize("mode", MODES[:2])
def test_an_env_that_is_not_reset(mode: AutoresetMode) -> None:
    """Steps after an episode's end are none, however fast they are."""
    workload = vecenv_workload(NeverReset([Short] * 3, autoreset_mode=mode))
    which = "second" if mode is AutoresetMode.NEXT_STEP else "first"
    says = rf"env 0 ended its episode in two steps in a row: under autoreset mode {mode.value} .* reset by the {which}"
    with pytest.raises(ComponentError, match=says):
        workload.check()
