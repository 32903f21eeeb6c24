"""The multilayer perceptrons of the reference agents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn


def mlp(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator, last_gain: float = 1.0
) -> nn.Sequential:
    """Return linear layers of these sizes with ``activation`` between them, none after the last.

    Weights are orthogonal (Saxe et al. 2014), with gain sqrt(2) and ``last_gain`` in the last layer; biases are zero.
    They come from ``generator``, on the CPU, so that a seed gives the same network on every device.
    """
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(n_in, n_out)
        nn.init.orthogonal_(layer.weight, last_gain if i == last else math.sqrt(2.0), generator)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
        if i < last:
            layers.append(activation())
    return nn.Sequential(*layers)
