"""Sample Factory's GAE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch


class SampleFactoryGae:
    """Calls ``gae_advantages`` on tensors of shape (n_envs, n_steps), values and validity with one column more.

    All steps are valid. The function is TorchScript, which compiles it in its first calls: the check's and the
    warm-up's.
    """

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        arrays = rollout["rewards"], rollout["ends"] > 0, np.vstack([rollout["values"], rollout["last_values"]])
        rewards, dones, values = (torch.from_numpy(np.ascontiguousarray(array.T)) for array in arrays)
        valids = torch.ones_like(values, dtype=torch.bool)
        self.call = partial(function, rewards, dones, values, valids, rollout["gamma"], rollout["lam"])

    def advantages(self, output: Any) -> Any:
        """Return the advantages."""
        return output.T
