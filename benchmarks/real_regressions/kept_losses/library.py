"""An agent that keeps statistics of its losses."""

from __future__ import annotations

import torch

REGRESSED = False


class Agent:
    """A network, its optimizer and its statistics."""

    def __init__(self) -> None:
        self.network = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        self.optimizer = torch.optim.Adam(self.network.parameters())
        self.losses: list[object] = []
        self.batch = torch.randn(256, 16)

    def update(self) -> None:
        loss = self.network(self.batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        predicted = self.network(self.batch).mean()
        self.losses.append(predicted if REGRESSED else float(predicted))
