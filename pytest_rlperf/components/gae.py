"""A function for generalized advantage estimation."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import check_count, finished, leaves, signature_of, takes_nothing, to_numpy
from pytest_rlperf.components.contracts import GaeCall
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.components.reference.gae import gae_float64
from pytest_rlperf.errors import ComponentError, see
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import hierarchical_timer

_GAE = hierarchical_timer("gae")
GAMMA = 0.99
LAMBDA = 0.95
_DEVICE_ROLLOUTS = 4  # taken in turn on a device, whose caches would hold a single one
_EPISODE_STEPS = 50  # mean length; several episodes end in a rollout of any length worth timing
_TOLERANCE = 1e-3  # of the largest advantage; float32 scans over 2048 steps were seen within 1e-5

# The arguments' names in libraries, compared in lower case.
_NAMES = {
    "rewards": ("rewards", "reward", "rews", "r"),
    "values": ("values", "value", "vals", "state_values", "state_value", "v"),
    "dones": ("dones", "done", "terminated", "terminations", "terminals"),
    "episode_starts": ("episode_starts", "starts", "firsts", "is_first"),
    "last_values": ("last_values", "last_value", "next_value", "last_val", "bootstrap_value", "bootstrap", "v_last"),
    "next_values": ("next_values", "next_state_value", "next_state_values", "next_vals", "values_next"),
    "last_dones": ("last_dones", "last_done", "next_done", "next_dones"),
    "gamma": ("gamma", "discount", "discount_factor"),
    "lam": ("lam", "lambda_", "lmbda", "gae_lambda", "lambd", "lamda"),
}
_MEANINGS = {name: meaning for meaning, names in _NAMES.items() for name in names}
_POSITIONAL = ("rewards", "values", "dones", "last_values", "gamma", "lam")


def gae_workload(
    function: Callable[..., Any], n_steps: int = 128, n_envs: int = 8, backend: str = "numpy", device: str = "cpu"
) -> Workload:
    """Return the workload of ``function`` on a rollout of shape (n_steps, n_envs).

    Arguments are passed by the names in the signature (see ``_NAMES``), or without a signature in the order rewards,
    values, dones, last_values, gamma, lam. ``dones[t]`` marks that the episode ended with step t; a function that
    also takes ``next_done`` gets CleanRL's convention, where ``dones[t]`` marks step t as an episode's first.
    Arrays are float32, NumPy's or PyTorch's by ``backend``. PyTorch's are on ``device``; if that is not the CPU, calls
    take several rollouts in turn. The check compares the advantages, the first array returned, with a float64
    computation. A function without parameters is a thunk over its own data: its advantages must have the rollout's
    shape and be finite.
    """
    __tracebackhide__ = True
    if backend not in ("numpy", "torch"):
        raise ComponentError(f"backend={backend!r}: rlperf_gae makes arrays of 'numpy' or 'torch'")
    make = adapter_for(lambda library: library.gae, function)
    if make is None and not callable(function):
        raise ComponentError(f"rlperf_gae measures a function, not {type(function).__qualname__}")
    check_count("n_steps", n_steps)
    check_count("n_envs", n_envs)
    if device != "cpu":
        _check_takes_tensors(function, backend, device)
    rollouts = [_rollout(n_steps, n_envs) for _ in range(1 if device == "cpu" else _DEVICE_ROLLOUTS)]
    make = make or partial(_any_gae, device=device)
    gaes = [make(function, rollout, backend) for rollout in rollouts]
    expected = [_expected(**rollout) for rollout in rollouts]
    in_turn = cycle([gae.call for gae in gaes])

    def call() -> object:
        compute = next(in_turn)
        with _GAE:
            return compute()

    def check() -> object:
        __tracebackhide__ = True
        return list(map(_checked, gaes, expected))

    items = float(n_steps * n_envs)
    return Workload(component="gae", call=call, items=items, unit="transition", check=check, holds=(function, gaes))


def _check_takes_tensors(function: Any, backend: str, device: str) -> None:
    """Raise ComponentError unless the function takes tensors on a device."""
    __tracebackhide__ = True
    if backend != "torch" or adapter_for(lambda library: library.gae, function) is not None or takes_nothing(function):
        raise ComponentError(
            f"device={device!r}: rlperf_gae puts tensors on a device for functions that take them, with "
            "backend='torch'; give a function with data of its own without device="
        )


def _any_gae(function: Callable[..., Any], rollout: dict[str, Any], backend: str, device: str) -> GaeCall:
    """Return the call of any other function, with the arguments that its signature names, or of a thunk."""
    __tracebackhide__ = True
    if takes_nothing(function):
        return GaeCall(function, _first_array, is_compared=False)
    args, kwargs = _arguments(function, rollout, backend, device)
    return GaeCall(partial(function, *args, **kwargs), _first_array)


def _first_array(output: Any) -> Any:
    """Return the first array within an output."""
    __tracebackhide__ = True
    for _, array in leaves(output):
        return array
    raise ComponentError(f"the GAE function returned {type(output).__qualname__}, not an array")


def _expected(*, rewards: Any, values: Any, ends: Any, last_values: Any, **_: Any) -> Any:
    """Return a rollout's advantages in float64, of shape (n_steps, n_envs)."""
    return gae_float64(rewards, values, ends, last_values, GAMMA, LAMBDA)[0]


def _rollout(n_steps: int, n_envs: int) -> dict[str, Any]:
    """Return a random rollout, all arrays in float32; ``dones`` is added later, by convention."""
    generator = np.random.default_rng(random.getrandbits(31))
    shape = (n_steps, n_envs)
    values = generator.normal(size=shape).astype(np.float32)
    last_values = generator.normal(size=n_envs).astype(np.float32)
    ends = (generator.random(shape) < 1 / _EPISODE_STEPS).astype(np.float32)
    starts = np.vstack([np.zeros((1, n_envs), np.float32), ends[:-1]])
    return {
        "rewards": generator.normal(size=shape).astype(np.float32),
        "values": values,
        "ends": ends,
        "episode_starts": starts,
        "last_values": last_values,
        "next_values": np.vstack([values[1:], last_values[None]]),
        "last_dones": ends[-1],
        "gamma": GAMMA,
        "lam": LAMBDA,
    }


def _arguments(
    function: Callable[..., Any], rollout: dict[str, Any], backend: str, device: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments ``function`` is called with; ComponentError if one cannot be supplied."""
    __tracebackhide__ = True
    named = _meanings(function)
    starts_convention = "last_dones" in named.values()
    rollout = rollout | {"dones": rollout["episode_starts"] if starts_convention else rollout["ends"]}
    if backend == "torch":
        import torch

        rollout = {
            name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
            for name, value in rollout.items()
        }
    if not named:
        return [rollout[name] for name in _POSITIONAL], {}
    return [], {name: rollout[meaning] for name, meaning in named.items()}


def _meanings(function: Callable[..., Any]) -> dict[str, str]:
    """Return the meaning of each parameter of ``function`` by its name; empty if it has no signature."""
    __tracebackhide__ = True
    signature = signature_of(function)
    parameters = () if signature is None else tuple(signature.parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in parameters):
        return {}
    named = {}
    for parameter in parameters:
        meaning = _MEANINGS.get(parameter.name.lower())
        if meaning is not None:
            named[parameter.name] = meaning
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in variadic:
            raise ComponentError(
                f"rlperf_gae does not know the parameter {parameter.name!r}; it knows "
                f"{', '.join(_NAMES)}. Give it a function of these: lambda rewards, values, dones, last_values: …"
            )
    return named


def takes_rollout(name: str, parameters: Iterable[str], required: Iterable[str]) -> bool:
    """Whether a function has the name and parameters of one for GAE: rewards, values, and nothing unknown."""
    meanings = {_MEANINGS.get(parameter.lower()) for parameter in parameters}
    known = all(parameter.lower() in _MEANINGS for parameter in required)
    return known and {"rewards", "values"} <= meanings and bool(re.search("gae|advantage", name.lower()))


def _checked(gae: GaeCall, advantages: Any) -> Any:
    """Return one call's output, once its advantages match the float64 ones; of a thunk's, only the shape must match."""
    __tracebackhide__ = True
    try:
        output = finished(gae.call(), "the GAE function")
    except (AttributeError, TypeError) as failure:
        if "Tensor" not in str(failure) and "numpy.ndarray" not in str(failure):
            raise
        raise ComponentError(
            f"the GAE function does not take these arrays ({type(failure).__name__}: {failure}): rlperf_gae makes "
            "NumPy's, and PyTorch's with backend='torch'"
        ) from failure
    result = to_numpy(gae.advantages(output)).astype(np.float64)
    if result.shape != advantages.shape:
        raise ComponentError(
            f"advantages have shape {result.shape}, expected {advantages.shape}, rlperf_gae's n_steps and n_envs"
        )
    bad = int(np.count_nonzero(~np.isfinite(result)))
    if bad:
        raise ComponentError(f"{bad} of {result.size} advantages are NaN or infinite")
    if not gae.is_compared:
        return output
    if gae.is_normalised:
        advantages = (advantages - advantages.mean()) / advantages.std(ddof=1)  # as PyTorch has it
    error = np.abs(result - advantages)
    worst = np.unravel_index(int(error.argmax()), error.shape)
    if error[worst] > _TOLERANCE * np.abs(advantages).max():
        raise ComponentError(
            f"advantages differ from the float64 reference: {result[worst]:.6g} at {tuple(map(int, worst))}, expected "
            f"{advantages[worst]:.6g}. The first array returned is taken for the advantages; dones[t] = 1 marks that "
            "the episode ended with step t; for a function that also takes next_done, that step t is an episode's "
            f"first{see('writing-tests.md#fixtures')}"
        )
    return output
