"""Generalized advantage estimation on NumPy arrays, and the float64 standard that it is checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pytest_rlperf.timers import hierarchical_timer

if TYPE_CHECKING:
    from numpy.typing import NDArray

FloatArray: TypeAlias = "NDArray[np.floating[Any]]"
"""Float32 or float64."""

_DELTAS = hierarchical_timer("deltas")
_BACKWARD_SCAN = hierarchical_timer("backward_scan")


def compute_gae(
    rewards: FloatArray,
    values: FloatArray,
    dones: NDArray[Any],
    last_values: FloatArray,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[FloatArray, FloatArray]:
    """Return advantages and returns (advantage + value), both (T, N) and of the rewards' dtype.

    ``rewards``, ``values`` and ``dones`` are (T, N); ``dones[t]`` is 1 if the episode ended with step t's transition.
    ``last_values`` is (N,), the value of the state after the last step. ValueError if shapes disagree or rewards are
    not floating point. Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation", eq. 16, evaluated from the last step backwards.
    """
    _check(rewards, values, dones, last_values)
    with _DELTAS:
        dtype = rewards.dtype
        values = values.astype(dtype, copy=False)
        discounts = gamma * (1 - dones.astype(dtype, copy=False))
        advantages = np.empty_like(rewards)
        # The temporal-difference errors go where the advantages will be: the scan then works in place.
        np.multiply(discounts[:-1], values[1:], out=advantages[:-1])
        np.multiply(discounts[-1:], last_values, out=advantages[-1:], casting="same_kind")
        advantages += rewards
        advantages -= values
        discounts *= lam
    with _BACKWARD_SCAN:
        following = np.zeros_like(advantages[0])
        carried = np.empty_like(following)
        for discount, advantage in zip(discounts[::-1], advantages[::-1], strict=True):
            np.multiply(discount, following, out=carried)
            np.add(advantage, carried, out=advantage)
            following = advantage
    return advantages, advantages + values


def gae_float64(
    rewards: FloatArray,
    values: FloatArray,
    dones: NDArray[Any],
    last_values: FloatArray,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the advantages and returns of :func:`compute_gae` in float64, one scalar at a time: a standard, not fast.

    It takes another way on purpose: the lambda-return G_t = r_t + gamma ((1 - lam) V(s_t+1) + lam G_t+1). The
    advantage is the lambda-return less V(s_t) (Sutton and Barto 2018, section 12.1).
    """
    _check(rewards, values, dones, last_values)
    n_steps, n_envs = rewards.shape
    advantages = np.empty((n_steps, n_envs), dtype=np.float64)
    returns = np.empty((n_steps, n_envs), dtype=np.float64)
    for env in range(n_envs):
        next_value = next_return = float(last_values[env])
        for t in reversed(range(n_steps)):
            lambda_return = float(rewards[t, env])
            if not dones[t, env]:
                lambda_return += gamma * ((1.0 - lam) * next_value + lam * next_return)
            next_value, next_return = float(values[t, env]), lambda_return
            advantages[t, env] = lambda_return - next_value
            returns[t, env] = lambda_return
    return advantages, returns


def _check(rewards: FloatArray, values: FloatArray, dones: NDArray[Any], last_values: FloatArray) -> None:
    """Refuse arrays that do not belong together; broadcasting would hide the mistake."""
    if rewards.ndim != 2 or not len(rewards) or rewards.dtype.kind != "f":
        raise ValueError(f"rewards must be floats of shape (T, N), T >= 1: got {rewards.dtype} {rewards.shape}")
    if values.shape != rewards.shape or dones.shape != rewards.shape or last_values.shape != rewards.shape[1:]:
        raise ValueError(
            f"with rewards {rewards.shape}, values and dones must have the same shape and last_values "
            f"{rewards.shape[1:]}: got {values.shape}, {dones.shape} and {last_values.shape}"
        )
