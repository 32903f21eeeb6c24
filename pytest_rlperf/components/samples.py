"""Equal work to compare libraries at: the sizes, the transitions, and the builders that a library has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OBS_DIM, ACT_DIM = 17, 6  # HalfCheetah's
BATCH_SIZE = 256
IN_BUFFER = 100_000  # transitions in the buffer that the suite samples
IN_AGENT = 10_000  # transitions in the buffer of its SAC agent


class Transitions(NamedTuple):
    """Rows of float32, and whether the episode terminated with each."""

    obs: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_obs: NDArray[np.float32]
    terminated: NDArray[np.bool_]


def random_transitions(count: int) -> Transitions:
    """Return ``count`` random transitions, the same ones every time."""
    import numpy as np

    generator = np.random.default_rng(0)
    return Transitions(
        obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        actions=generator.uniform(-1, 1, size=(count, ACT_DIM)).astype(np.float32),
        rewards=generator.normal(size=count).astype(np.float32),
        next_obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        terminated=generator.random(count) < 0.01,
    )


@dataclass(frozen=True)
class Samples:
    """The builders of a library's components, as far as it has such; each returns what a fixture measures.

    The ``native`` ones step the library's own CartPole, all others the reference's ``SyntheticEnv``, as
    ``gymnasium.make`` makes it. Work is equal: buffers hold the same transitions, networks have two hidden layers, of
    256 for SAC and of 64 for PPO, everything is float32, and a rollout comes with its advantages.

    ``vecenv(num_envs)`` returns a vector env, or a function that steps one; ``replay(transitions)`` a buffer full of
    random transitions, or a function that samples it; ``gae(n_steps, n_envs)`` the library's function, or a buffer that
    has it; ``sac(transitions)`` an agent with such a buffer, or a function that does one update; and
    ``ppo(num_envs, n_steps)`` an agent, or a function that collects one rollout.
    """

    vecenv: Callable[[int], Any] | None = None
    native_vecenv: Callable[[int], Any] | None = None
    replay: Callable[[int], Any] | None = None
    gae: Callable[[int, int], Any] | None = None
    sac: Callable[[int], Any] | None = None
    ppo: Callable[[int, int], Any] | None = None
    native_ppo: Callable[[int, int], Any] | None = None


NO_SAMPLES = Samples()
