"""The steps of PyTorch's optimizers, each told once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from pytest_rlperf.probes.attach import Undo

_DEEPEST = 16  # frames between an optimizer's step and that of its base class


def before_steps(hook: Callable[[Any], None]) -> Undo:
    """Have ``hook`` called with the optimizer before every step of any."""
    from torch.optim import optimizer

    undo: Undo = optimizer.register_optimizer_step_pre_hook(_outermost(hook)).remove
    return undo


def after_steps(hook: Callable[[Any], None]) -> Undo:
    """Have ``hook`` called with the optimizer after every step of any; PyTorch does not tell of one that failed."""
    from torch.optim import optimizer

    undo: Undo = optimizer.register_optimizer_step_post_hook(_outermost(hook)).remove
    return undo


def _outermost(hook: Callable[[Any], None]) -> Callable[..., None]:
    """Return a hook that is called for a step, and not again for the step of a base class that is part of it.

    PyTorch has hooks on the step of every class that an optimizer was ever made of, so where one calls its base's,
    whether they are called twice depends on what the process did before.
    """
    from torch.optim import Optimizer

    wrapper = _code_within(Optimizer.profile_hook_step, "wrapper")

    def told(optimizer: Any, *_: object) -> None:
        if _steps_open(optimizer, wrapper) <= 1:
            hook(optimizer)

    return told


def _steps_open(optimizer: object, wrapper: CodeType | None) -> int:
    """Return how many of PyTorch's wrappers around steps of ``optimizer`` are being run."""
    found = 0
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code is wrapper:
            found += frame.f_locals["args"][0] is optimizer
        frame = frame.f_back
    return found


def _code_within(function: Callable[..., Any], name: str) -> CodeType | None:
    """Return the code of a function that another one makes, None where PyTorch has it otherwise."""
    constants = function.__code__.co_consts
    return next((const for const in constants if isinstance(const, CodeType) and const.co_name == name), None)
