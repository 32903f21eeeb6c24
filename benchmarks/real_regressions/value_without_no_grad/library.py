"""A PPO collector, which keeps its values for the update."""

from __future__ import annotations

import contextlib

import torch

REGRESSED = False


class Collector:
    """A policy with a value network, in an env that is a matrix."""

    def __init__(self) -> None:
        self.value = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
        self.statistics: list[torch.Tensor] = []
        self.state = torch.zeros(8, 16)

    def collect(self, n_steps: int = 32) -> dict[str, torch.Tensor]:
        values, observations = [], []
        with contextlib.nullcontext() if REGRESSED else torch.no_grad():
            for _ in range(n_steps):
                self.state = torch.tanh(self.state.detach() + 0.1)
                observations.append(self.state)
                values.append(self.value(self.state).squeeze(-1))
            self.statistics.append(torch.stack(values).mean())
        return {"obs": torch.stack(observations), "values": torch.stack(values)}
