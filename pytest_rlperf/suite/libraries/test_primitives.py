"""What rollouts and updates are made of: storing transitions, a policy's calls, and the KL divergence of tokens.

A library has the tests of what it has by itself; the reference of the KL divergence and of conversions is PyTorch.
"""

import os
from typing import Any

import numpy as np
import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # rlox starts its threads with its first work

each_size = pytest.mark.parametrize("num_envs", [8])  # observations of a policy's call
each_shape = pytest.mark.parametrize(("sequences", "tokens"), [(32, 2048)])


# --------------------------------------------------------------------------- storing transitions


def test_reference_replay_push(rlperf: Measure) -> None:
    """One transition, over the oldest one of a full buffer."""
    _measure_reference_push(rlperf, 1)


@pytest.mark.parametrize("transitions", [8])
def test_reference_replay_push_batch(rlperf: Measure, transitions: int) -> None:
    """The transitions of a step of several envs."""
    _measure_reference_push(rlperf, transitions)


def _measure_reference_push(rlperf: Measure, transitions: int) -> None:
    from pytest_rlperf.components.reference.sac import ReplayBuffer

    buffer = ReplayBuffer(work.IN_BUFFER, work.OBS_DIM, work.ACT_DIM)
    buffer.add(*work.random_transitions(work.IN_BUFFER))
    new = work.random_transitions(transitions)
    rlperf(lambda: buffer.add(*new), items=transitions, unit="transition")


def test_sb3_replay_push(rlperf: Measure) -> None:
    """One transition, over the oldest one of a full buffer."""
    from pytest_rlperf.suite.libraries.test_sb3 import sb3_replay

    buffer = sb3_replay(work.IN_BUFFER)
    obs, actions, rewards, next_obs, terminated = work.random_transitions(1)
    rlperf(lambda: buffer.add(obs, next_obs, actions, rewards, terminated, [{}]), unit="transition")


def test_rlox_replay_push(rlperf: Measure) -> None:
    """One transition, over the oldest one of a full buffer."""
    from pytest_rlperf.suite.libraries.test_rlox import rlox_replay

    buffer = rlox_replay(work.IN_BUFFER)
    obs, actions, _, next_obs, _ = (column[0] for column in work.random_transitions(1))
    rlperf(lambda: buffer.push(obs, actions, 1.0, False, False, next_obs), unit="transition")


@pytest.mark.parametrize("transitions", [8])
def test_rlox_replay_push_batch(rlperf: Measure, transitions: int) -> None:
    """The transitions of a step of several envs."""
    from pytest_rlperf.suite.libraries.test_rlox import rlox_columns, rlox_replay

    buffer = rlox_replay(work.IN_BUFFER)
    new = rlox_columns(transitions)
    rlperf(lambda: buffer.push_batch(*new), items=transitions, unit="transition")


# --------------------------------------------------------------------------- the KL divergence of tokens


def _log_probs(sequences: int, tokens: int) -> Any:
    """Return log-probabilities of a policy and of its initial version."""
    return np.random.default_rng(0).normal(-2.0, 0.3, (2, sequences, tokens)).astype(np.float32)


def _check_kl(log_probs: Any) -> Any:
    """Return a check of each sequence's estimate against a float64 computation (Schulman 2020, k3)."""
    policy, first = log_probs.astype(np.float64)
    ratio = first - policy
    expected = np.sum(np.exp(ratio) - ratio - 1, axis=1)
    return lambda output: np.testing.assert_allclose(np.asarray(output), expected, rtol=1e-3)


@each_shape
def test_reference_token_kl(rlperf: Measure, sequences: int, tokens: int) -> None:
    """One estimate for each sequence."""
    import torch

    log_probs = _log_probs(sequences, tokens)
    policy, first = torch.from_numpy(log_probs)

    def estimate() -> Any:
        ratio = first - policy
        return (ratio.exp() - ratio - 1).sum(dim=1)

    rlperf(estimate, items=sequences * tokens, unit="token", check=_check_kl(log_probs))


@each_shape
def test_rlox_token_kl(rlperf: Measure, sequences: int, tokens: int) -> None:
    """One estimate for each sequence."""
    from rlox import compute_batch_token_kl_schulman_f32

    log_probs = _log_probs(sequences, tokens)
    policy, first = log_probs.reshape(2, -1)
    rlperf(
        lambda: compute_batch_token_kl_schulman_f32(first, policy, tokens),  # it divides the first by the second
        items=sequences * tokens,
        unit="token",
        check=_check_kl(log_probs),
    )


# --------------------------------------------------------------------------- a policy's calls


def _observations(num_envs: int) -> Any:
    return work.random_transitions(num_envs).obs


def _measure_policy(rlperf: Measure, call: Any, num_envs: int) -> None:
    """Measure a call that returns a number for each observation as its last output, without gradients."""
    import torch

    def without_gradients() -> Any:
        with torch.no_grad():
            return call()

    def check(output: Any) -> None:
        numbers = output[-1] if isinstance(output, tuple) else output
        assert numbers.numel() == num_envs
        assert bool(numbers.isfinite().all())

    rlperf(without_gradients, items=num_envs, unit="observation", check=check)


@each_size
def test_sb3_policy_act(rlperf: Measure, num_envs: int) -> None:
    """Actions and their log-probabilities."""
    import torch

    from pytest_rlperf.suite.libraries.test_sb3 import sb3_ppo

    policy, obs = sb3_ppo(num_envs, 128).policy, torch.from_numpy(_observations(num_envs))

    def act() -> Any:
        distribution = policy.get_distribution(obs)
        actions = distribution.get_actions()
        return actions, distribution.log_prob(actions)

    _measure_policy(rlperf, act, num_envs)


@each_size
def test_rlox_policy_act(rlperf: Measure, num_envs: int) -> None:
    """Actions and their log-probabilities."""
    import torch
    from rlox import ContinuousPolicy

    policy, obs = ContinuousPolicy(work.OBS_DIM, work.ACT_DIM), torch.from_numpy(_observations(num_envs))
    _measure_policy(rlperf, lambda: policy.get_action_and_logprob(obs), num_envs)


@each_size
def test_reference_policy_value(rlperf: Measure, num_envs: int) -> None:
    """Values."""
    import torch

    from pytest_rlperf.suite.libraries.test_reference import reference_ppo

    model, obs = reference_ppo(num_envs, 128).model, torch.from_numpy(_observations(num_envs))
    _measure_policy(rlperf, lambda: model.value(obs).squeeze(-1), num_envs)


@each_size
def test_sb3_policy_value(rlperf: Measure, num_envs: int) -> None:
    """Values."""
    import torch

    from pytest_rlperf.suite.libraries.test_sb3 import sb3_ppo

    policy, obs = sb3_ppo(num_envs, 128).policy, torch.from_numpy(_observations(num_envs))
    _measure_policy(rlperf, lambda: policy.predict_values(obs), num_envs)


@each_size
def test_rlox_policy_value(rlperf: Measure, num_envs: int) -> None:
    """Values."""
    import torch
    from rlox import ContinuousPolicy

    policy, obs = ContinuousPolicy(work.OBS_DIM, work.ACT_DIM), torch.from_numpy(_observations(num_envs))
    _measure_policy(rlperf, lambda: policy.get_value(obs), num_envs)


@each_size
def test_reference_policy_convert(rlperf: Measure, num_envs: int) -> None:
    """Observations to a tensor, and a tensor of actions back."""
    import torch

    obs, actions = _observations(num_envs), torch.zeros(num_envs, work.ACT_DIM)
    rlperf(lambda: (torch.from_numpy(obs), actions.numpy()), items=num_envs, unit="observation")


@each_size
def test_sb3_policy_convert(rlperf: Measure, num_envs: int) -> None:
    """Observations to a tensor, and a tensor of actions back."""
    import torch
    from stable_baselines3.common.utils import obs_as_tensor

    obs, actions, device = _observations(num_envs), torch.zeros(num_envs, work.ACT_DIM), torch.device("cpu")
    rlperf(lambda: (obs_as_tensor(obs, device), actions.cpu().numpy()), items=num_envs, unit="observation")


@each_size
def test_rlox_policy_convert(rlperf: Measure, num_envs: int) -> None:
    """Observations to a tensor, and a tensor of actions back, as rlox's collector converts them."""
    import torch

    obs, actions = _observations(num_envs), torch.zeros(num_envs, work.ACT_DIM)
    rlperf(
        lambda: (torch.as_tensor(obs, dtype=torch.float32, device="cpu"), actions.cpu().numpy()),
        items=num_envs,
        unit="observation",
    )
