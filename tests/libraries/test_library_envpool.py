from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from library_checks import assert_counts
from wording import Wording

from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload

envpool: Any = pytest.importorskip("envpool")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision")]


def make(env_type: str = "gymnasium", num_envs: int = 6, **config: Any) -> Any:
    """Return a pool of CartPole, which pays 1 for a step and 0 for a reset, with episodes of five steps at most."""
    config = {"num_envs": num_envs, "seed": 3, "max_episode_steps": 5, **config}
    return envpool.make("CartPole-v1", env_type=env_type, **config)


class Watched:
    """Puts itself in the place of a pool's ``recv``, and adds up the rewards, which are its real steps."""

    def __init__(self, pool: Any) -> None:
        self.n_steps = self.n_resets = 0
        self._recv = pool.recv
        pool.recv = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        received = self._recv(*args, **kwargs)
        if len(received) != 2:  # which is a reset's
            self.n_steps += int(received[1].sum())
            self.n_resets += int((received[1] == 0).sum())
        return received


def test_real_steps_of_a_pool() -> None:
    """The call after an episode's end is no step, and a slice may lie between the two."""
    pool = make()
    workload = vecenv_workload(pool)
    assert workload.items == 6.0
    watched = Watched(pool)
    assert_counts(workload, lambda: watched.n_steps)
    assert watched.n_resets > 0


def test_continuous_actions_are_drawn_as_the_pool_takes_them() -> None:
    """No call converts an action: all are of the pool's dtype, within its bounds, and not all the same."""
    pool = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=3, seed=3)
    taken: list[Any] = []
    send = pool._send

    def watched(arrays: list[Any]) -> None:
        taken.append(arrays[-1])
        send(arrays)

    pool._send = watched
    vecenv_workload(pool).check()
    assert {array.dtype for array in taken} == {np.dtype(np.float32)}
    assert {array.shape for array in taken} == {(3, 1)}
    assert np.ptp(np.concatenate(taken)) > 1


def broken(change: Callable[[int, Any], Any]) -> Workload:
    """Return the workload of a pool whose answers are changed; ``change`` is given how many there were before."""
    pool = make()
    recv, received = pool.recv, []

    def changed(*args: Any, **kwargs: Any) -> Any:
        received.append(recv(*args, **kwargs))
        return change(len(received) - 1, received[-1])

    pool.recv = changed
    return vecenv_workload(pool)


def of_half(_: int, received: Any) -> Any:
    *arrays, info = received
    return *(array[::2] for array in arrays), {name: info[name][::2] for name in ("env_id", "elapsed_step")}


def with_narrow_observations(_: int, received: Any) -> Any:
    return received[0][1:], *received[1:]


@pytest.mark.parametrize("change", [of_half, with_narrow_observations])
def test_a_pool_that_is_wrong(change: Callable[[int, Any], Any], wording: Wording) -> None:
    """Lost envs are told with what was expected."""
    with wording.raises(ComponentError):
        broken(change).check()
