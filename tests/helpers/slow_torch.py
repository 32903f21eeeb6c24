"""Parts of PyTorch that take known times."""

from __future__ import annotations

from typing import Any

import torch

from pytest_rlperf.timers import FakeClock


class Slow(torch.nn.Module):
    """A linear layer whose forward and backward passes take known times."""

    def __init__(self, clock: FakeClock, forward_s: float = 1, backward_s: float = 0, inputs: int = 2) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(inputs, 2)
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def forward(self, *inputs: Any) -> Any:
        self.clock.advance(self.forward_s)
        out = self.layer(torch.cat(inputs, -1))
        if out.requires_grad:
            out.register_hook(lambda grad: self.clock.advance(self.backward_s))
        return out


class SlowStep(torch.optim.SGD):
    def __init__(self, parameters: Any, clock: FakeClock, step_s: float, lr: float = 1e-2) -> None:
        super().__init__(parameters, lr=lr)
        self.clock, self.step_s = clock, step_s

    def _init_group(self, *arguments: Any) -> Any:
        self.clock.advance(self.step_s)  # within the step
        return super()._init_group(*arguments)  # type: ignore[no-untyped-call]
