"""Phases from PyTorch's own events: optimizer steps, backward and forward passes, and other libraries' ranges."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.timers.scope import Scope, decorate

MARK = "rlperf edge"  # a range that counters put among a profiler's events, and that is not a phase


def before_steps(hook: Callable[[Any], None]) -> Undo:
    """Call ``hook`` with the optimizer before every optimizer step."""
    from torch.optim import optimizer

    undo: Undo = optimizer.register_optimizer_step_pre_hook(lambda optimizer, *_: hook(optimizer)).remove
    return undo


def after_steps(hook: Callable[[Any], None]) -> Undo:
    """Call ``hook`` with the optimizer after every optimizer step; PyTorch has no hook for a failed step."""
    from torch.optim import optimizer

    undo: Undo = optimizer.register_optimizer_step_post_hook(lambda optimizer, *_: hook(optimizer)).remove
    return undo


class OptimizerSteps:
    """Times every optimizer's step as ``step``."""

    def attach(self) -> Undo:
        """Time steps from now on, by PyTorch's hooks for all optimizers."""
        step = hierarchical_timer("step")
        hooks = ((before_steps, partial(_enter, step)), (after_steps, partial(_leave, step)))
        return together(attach(hook) for attach, hook in hooks)


class Backward:
    """Times backward passes: ``Tensor.backward``, ``torch.autograd.backward`` and ``torch.autograd.grad``.

    ``before`` is called as each pass begins, ahead of its phase.
    """

    def __init__(self, before: Callable[..., None] | None = None) -> None:
        self._before = before

    def attach(self) -> Undo:
        """Time the passes from now on; code that imported such a function by name goes on calling the plain one."""
        import torch

        # Tensor.backward looks torch.autograd.backward up when it is called.
        return together(
            put(torch.autograd, name, self._around(getattr(torch.autograd, name))) for name in ("backward", "grad")
        )

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        timed = decorate(function, Scope("backward"))
        return timed if self._before is None else preceded(timed, self._before)


def preceded(function: Callable[..., Any], before: Callable[..., None]) -> Callable[..., Any]:
    """Return ``function`` with ``before`` called first, with the same positional arguments."""

    @wraps(function)
    def announced(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        return function(*args, **kwargs)

    return announced


class Forward:
    """Times the forward passes of modules, each under its name; of nested modules, all that are named."""

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules

    def attach(self) -> Undo:
        """Time the passes from now on, by the modules' own hooks; a failing pass ends its phase, too."""
        return together(self._hooks())

    def _hooks(self) -> Iterator[Undo]:
        for name, module in self._modules.items():
            timer = hierarchical_timer(name)
            yield module.register_forward_pre_hook(partial(_enter, timer)).remove
            yield module.register_forward_hook(partial(_leave, timer), always_call=True).remove


def _enter(timer: Any, *_: object) -> None:
    timer.__enter__()


def _leave(timer: Any, *_: object) -> None:
    timer.__exit__(None, None, None)


# Stand-ins have the names of their originals.
_MLAGENTS = ("mlagents_envs.timers", "pytest_rlperf.compat.mlagents")
_SAMPLE_FACTORY = ("sample_factory.utils.timing", "pytest_rlperf.compat.sample_factory")


class Ranges:
    """Makes phases of other libraries' ranges, in any code, if those libraries are loaded.

    Ranges are the scopes of ML-Agents' and Sample Factory's timers, ``torch.profiler.record_function``, and NVTX ranges
    that are pushed through torch. TorchRL has ranges, which its ``set_profiling_enabled`` switches; if its environment
    variable has armed them, they are on while this is attached. PyTorch's own ranges around optimizers are left out.
    """

    def attach(self) -> Undo:
        """Follow the ranges from now on; they go on timing for themselves."""
        return together(self._watch())

    def _watch(self) -> Iterator[Undo]:
        for name in _MLAGENTS:
            if (stack := getattr(sys.modules.get(name), "TimerStack", None)) is not None:
                yield from follow(stack, "push", "pop")
        for name in _SAMPLE_FACTORY:
            if (context := getattr(sys.modules.get(name), "TimingContext", None)) is not None:
                yield from follow_context(context, lambda scope: phase_name(scope._key))
        torch = sys.modules.get("torch")
        if torch is not None:
            yield from self._switch_torchrl()
            yield from follow_context(torch.autograd.profiler.record_function, _range_name)
            yield from follow(torch.cuda.nvtx, "range_push", "range_pop")

    def _switch_torchrl(self) -> Iterator[Undo]:
        """Switch TorchRL's ranges on, if that is allowed."""
        torchrl = sys.modules.get("torchrl._utils")
        if torchrl is not None and getattr(torchrl, "_PROFILING_ALLOWED", False):
            yield partial(torchrl.set_profiling_enabled, bool(torchrl._PROFILING_ENABLED))
            torchrl.set_profiling_enabled(True)


def follow(owner: Any, push: str, pop: str) -> Iterator[Undo]:
    """Make a phase of the time from each ``push``, whose last argument is the phase's name, to its ``pop``.

    Yield functions that undo it. A ``push`` that raises begins no phase. Every thread has its own open phases.
    """
    original_push, original_pop = getattr(owner, push), getattr(owner, pop)
    local = threading.local()

    @wraps(original_push)
    def pushed(*args: Any, **kwargs: Any) -> Any:
        done = original_push(*args, **kwargs)
        name = phase_name((*args, *kwargs.values())[-1])
        local.__dict__.setdefault("names", []).append(name)
        hierarchical_timer(name).__enter__()
        return done

    @wraps(original_pop)
    def popped(*args: Any, **kwargs: Any) -> Any:
        names = local.__dict__.get("names")
        if names:
            hierarchical_timer(names.pop()).__exit__(None, None, None)
        return original_pop(*args, **kwargs)

    yield put(owner, push, pushed)
    yield put(owner, pop, popped)


def follow_context(context: Any, name_of: Callable[[Any], str | None]) -> Iterator[Undo]:
    """Make a phase of each use of a class of context managers, unless the use has no name.

    Yield functions that undo it.
    """
    enter, leave = context.__enter__, context.__exit__

    def followed_enter(self: Any) -> Any:
        done = enter(self)
        name = name_of(self)
        if name is not None:
            hierarchical_timer(name).__enter__()
        return done

    def followed_exit(self: Any, *error: Any) -> Any:
        name = name_of(self)
        if name is not None:
            hierarchical_timer(name).__exit__(None, None, None)
        return leave(self, *error)

    yield put(context, "__enter__", followed_enter)
    yield put(context, "__exit__", followed_exit)


def phase_name(name: object) -> str:
    """Return the phase's name for another library's range, without slashes, which join paths."""
    return str(name).replace("/", "|") or "(unnamed)"


def arm_ranges(environment: dict[str, str]) -> None:
    """Arm TorchRL's ranges in a process that starts with this environment, unless its variable is set."""
    environment.setdefault("TORCHRL_PROFILING", "1")


def quieten_ranges() -> None:
    """Let TorchRL make ranges only while they are attached, as each takes time."""
    torchrl = sys.modules.get("torchrl._utils")
    if torchrl is not None and getattr(torchrl, "_PROFILING_ENABLED", False):
        torchrl.set_profiling_enabled(False)


def _range_name(record: Any) -> str | None:
    name = str(record.name)
    return None if name.startswith(("Optimizer.", MARK)) else phase_name(name)
