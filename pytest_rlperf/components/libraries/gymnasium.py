"""Stepping a gymnasium vector env, whatever its autoreset mode."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from pytest_rlperf.components.arrays import check_observations
from pytest_rlperf.components.stepping import ACTION, ACTIONS, ENV_STEP
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import hierarchical_timer

_CHECKED_STEPS = 100  # at most, in wait for an episode to end
_RESET = hierarchical_timer("reset")


class GymnasiumStepper:
    """Steps ``env`` with actions drawn beforehand, and counts the steps that were no resets.

    Under NEXT_STEP autoreset the call after an episode's end resets that env and ignores its action: no step.
    Under DISABLED the ended envs are reset by a masked reset, part of what stepping on takes.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._seed = seed
        env.action_space.seed(seed)
        self._actions = cycle([env.action_space.sample() for _ in range(ACTIONS)])
        mode = env.metadata.get("autoreset_mode") if env.metadata else None
        # An enum of "NextStep" and the like, or its value. gymnasium 1.0 knows one mode only, and does not name it.
        self.mode = "NextStep" if mode is None else str(getattr(mode, "value", mode))
        self._ended: list[Any] = []
        self._calls = 0
        self._resets_due = 0
        self._copies = True

    def check(self) -> None:
        """Reset, step until an episode has ended, and check what comes back; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.reset(seed=self._seed)
        before: Any = None
        for step in range(_CHECKED_STEPS):
            obs, reward, terminated, truncated, info = self.env.step(next(self._actions))
            check_observations(obs, self.num_envs)
            self._check_shapes(reward=reward, terminated=terminated, truncated=truncated)
            if before is not None:
                self._check_resets(before, terminated, truncated)
            if step == 1:
                # Where the env hands out its own arrays, a reference kept would change with the next step.
                self._copies = np.shares_memory(before[0], terminated) or np.shares_memory(before[1], truncated)
            has_ended = before is not None and bool(before[2].any())
            self._calls, self._ended, self._resets_due = 0, [], int(before[2].sum()) if has_ended else 0
            self._finish_step(terminated, truncated)
            if has_ended:
                return
            before = terminated, truncated, np.logical_or(terminated, truncated), info

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._finish_step(terminated, truncated)

    def count(self) -> float:
        """Return the env steps since this was last asked, resets left out; of a check's, the last call's."""
        calls, self._calls = self._calls, 0
        if self.mode != "NextStep":
            return float(calls * self.num_envs)
        ended = [int(np.count_nonzero(np.logical_or(*pair))) for pair in self._ended]
        self._ended.clear()
        if not ended:
            return 0.0
        resets = self._resets_due + sum(ended[:-1])
        self._resets_due = ended[-1]
        return float(calls * self.num_envs - resets)

    def _check_shapes(self, **arrays: Any) -> None:
        __tracebackhide__ = True
        for name, array in arrays.items():
            shape = tuple(np.shape(array))
            if shape != (self.num_envs,):
                raise ComponentError(
                    f"step() returned {name} of shape {shape}; a vector env of {self.num_envs} envs returns "
                    f"({self.num_envs},)"
                )

    def _check_resets(self, before: Any, terminated: Any, truncated: Any) -> None:
        """Check that no env ended twice in a row without the reset that its mode says lies between.

        An episode of one step may end twice in a row under SAME_STEP, where the info has the observation it ended with.
        """
        __tracebackhide__ = True
        *_, ended, info = before
        again = np.flatnonzero(np.logical_and(ended, np.logical_or(terminated, truncated)))
        if self.mode == "Disabled" or not again.size:
            return
        if self.mode == "SameStep" and ("final_obs" in info or "final_observation" in info):
            return
        raise ComponentError(
            f"env {again[0]} ended its episode in two steps in a row: under autoreset mode {self.mode} it has to be "
            f"reset by {'the second' if self.mode == 'NextStep' else 'the first'} of them"
        )

    def _finish_step(self, terminated: Any, truncated: Any) -> None:
        """Keep what counting needs, and reset where the env does not do so itself."""
        self._calls += 1
        if self.mode == "NextStep":
            pair = (terminated.copy(), truncated.copy()) if self._copies else (terminated, truncated)
            self._ended.append(pair)
        elif self.mode == "Disabled":
            ended = np.logical_or(terminated, truncated)
            if ended.any():
                with _RESET:
                    self.env.reset(options={"reset_mask": ended})
