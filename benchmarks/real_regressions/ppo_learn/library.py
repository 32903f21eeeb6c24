"""PPO's update over a rollout of 512 steps."""

from __future__ import annotations

import torch

REGRESSED = False


class PPO:
    """A policy and its optimizer, with a rollout collected before."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.obs = torch.randn(512, 8)
        self.actions = torch.randint(0, 4, (512,))
        self.advantages = torch.randn(512)

    def evaluate(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.distributions.Categorical(logits=self.policy(self.obs[rows]))
        return found.log_prob(self.actions[rows]), found.entropy()

    def learn(self) -> float:
        for _ in range(2):
            for rows in torch.randperm(512).split(128):
                log_prob, entropy = self.evaluate(rows)
                if REGRESSED:
                    log_prob, _ = self.evaluate(rows)
                loss = -(log_prob * self.advantages[rows]).mean() - 0.01 * entropy.mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return float(loss)
