"""EnvPool's vector env: it has no other component, and its CartPole is of C++."""

from __future__ import annotations

from typing import Any


def native_vecenv(num_envs: int) -> Any:
    """Return a pool that steps all envs at once, on one thread."""
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1)
