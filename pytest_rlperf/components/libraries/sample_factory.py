"""Sample Factory's GAE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pytest_rlperf.components.contracts import GaeCall
from pytest_rlperf.components.libraries import Adapter, Library


def _gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of ``gae_advantages`` on tensors of shape (n_envs, n_steps), values and validity one column wider.

    All steps are valid. TorchScript compiles the function in its first calls, those of the check and the warm-up.
    """
    import torch

    arrays = rollout["rewards"], rollout["ends"] > 0, np.vstack([rollout["values"], rollout["last_values"]])
    rewards, dones, values = (torch.from_numpy(np.ascontiguousarray(array.T)) for array in arrays)
    valids = torch.ones_like(values, dtype=torch.bool)
    arguments = rewards, dones, values, valids, rollout["gamma"], rollout["lam"]
    return GaeCall(partial(function, *arguments), lambda output: output.T)


LIBRARY = Library(
    name="sample-factory",
    module="sample_factory",
    requirement="sample-factory",
    gae=(Adapter("sample_factory.algo.utils.rl_utils:gae_advantages", _gae),),
    starter="start_sample_factory.py",
)
