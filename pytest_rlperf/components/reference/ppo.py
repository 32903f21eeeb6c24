"""Proximal policy optimisation: collection into preallocated rollouts, the clipped update, and environments for it.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; equation numbers refer to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from pytest_rlperf.components.reference.gae import compute_gae
from pytest_rlperf.components.reference.sac import mlp
from pytest_rlperf.timers import hierarchical_timer

Array32 = NDArray[np.float32]

SYNTHETIC_ID = "rlperf/Synthetic-v0"
"""The name :class:`SyntheticEnv` has for ``gymnasium.make`` once this module is imported."""


def make_vec_env(env_id: str, num_envs: int) -> SyncVectorEnv:
    """Return ``num_envs`` copies of ``gymnasium.make(env_id)`` stepped one after another in this process.

    The next step resets an episode that ended (NEXT_STEP autoreset). ``reset(seed=...)`` seeds the envs.
    """
    return SyncVectorEnv([partial(gymnasium.make, env_id)] * num_envs)


class SyntheticEnv(gymnasium.Env[Array32, Array32]):
    """A cheap continuous task with the sizes of MuJoCo's HalfCheetah: float32 observations and actions in [-1, 1].

    The state drifts through a fixed random network driven by the action, with no randomness but the start state. The
    reward is the state's first coordinate less the cost of the action, so a policy can be better or worse. Episodes
    are truncated after ``episode_steps`` steps and never terminate.
    """

    def __init__(self, obs_dim: int = 17, act_dim: int = 6, episode_steps: int = 1000) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (obs_dim,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (act_dim,), np.float32)
        self.episode_steps = episode_steps
        weights = np.random.default_rng(0).normal(size=(obs_dim, obs_dim + act_dim)) / np.sqrt(obs_dim + act_dim)
        self._weights = weights.astype(np.float32)
        self._state = np.zeros(obs_dim, dtype=np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Start an episode near the origin; the seed decides where."""
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-0.1, 0.1, self._state.shape).astype(np.float32)
        self._steps = 0
        return self._state, {}

    def step(self, action: Array32) -> tuple[Array32, float, bool, bool, dict[str, Any]]:
        """Advance by one step; an action outside the box acts as the nearest one inside."""
        action = np.clip(action, -1.0, 1.0, dtype=np.float32)
        drive = np.tanh(self._weights @ np.concatenate((self._state, action)))
        # A new array each step: the previous observation may still be held by the caller.
        self._state = np.float32(0.9) * self._state + np.float32(0.1) * drive
        self._steps += 1
        reward = float(self._state[0]) - 0.1 * float(action @ action)
        return self._state, reward, False, self._steps >= self.episode_steps, {}


gymnasium.register(id=SYNTHETIC_ID, entry_point=f"{__name__}:SyntheticEnv")
gymnasium.register(id="rlperf/SyntheticShort-v0", entry_point=f"{__name__}:SyntheticEnv", kwargs={"episode_steps": 10})


VectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]

_POLICY = hierarchical_timer("policy")
_ENV_STEP = hierarchical_timer("env_step")
_STORE = hierarchical_timer("store")
_GAE = hierarchical_timer("gae")
_GATHER = hierarchical_timer("gather")
_FORWARD = hierarchical_timer("forward")
_BACKWARD = hierarchical_timer("backward")
_STEP = hierarchical_timer("step")

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_CLIP = 0.2
_VALUE_WEIGHT = 0.5
_MAX_GRAD_NORM = 0.5


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments, time first. The collector's own arrays: its next ``collect`` overwrites them.

    ``obs`` is (T, N, obs_dim). ``actions`` is int64 (T, N), or float32 (T, N, act_dim) as the policy drew them, before
    clipping to the box. The rest are (T, N), float32 or bool. ``dones`` is true where the episode ended with the
    transition, ``terminated`` where it did not end only by truncation. ``valid`` is false in rows where the environment
    only reset (NEXT_STEP autoreset): there the action was ignored, reward and advantage are 0, the return is the value.
    """

    obs: Array32
    actions: NDArray[Any]
    log_probs: Array32
    rewards: Array32
    values: Array32
    dones: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    advantages: Array32
    returns: Array32


class PPOLosses(NamedTuple):
    """The means over an update's minibatches: detached scalar tensors."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor


class ActorCritic(nn.Module):
    """Separate policy and value networks, with two hidden tanh layers each.

    A Discrete action space gets a categorical policy, a Box a diagonal Gaussian with a learned standard deviation
    that does not depend on the state. A Box has one dimension, as the observations have.
    """

    def __init__(
        self,
        obs_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        hidden: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        assert obs_space.shape is not None
        assert action_space.shape is not None
        self.discrete = isinstance(action_space, spaces.Discrete)
        n_out = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        generator = generator or torch.Generator().manual_seed(0)
        self.policy = mlp((obs_space.shape[0], hidden, hidden, n_out), nn.Tanh, generator, last_gain=0.01)
        self.value = mlp((obs_space.shape[0], hidden, hidden, 1), nn.Tanh, generator)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(n_out))

    def act(self, obs: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sampled actions, their log probabilities (N,) and the values (N,) of ``obs`` (N, obs_dim)."""
        head = self.policy(obs)
        if self.discrete:
            log_probs = functional.log_softmax(head, dim=-1)
            actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
            return actions.squeeze(-1), log_probs.gather(-1, actions).squeeze(-1), self.value(obs).squeeze(-1)
        noise = torch.randn(head.shape, generator=generator, device=head.device)
        log_prob = (-0.5 * noise.square() - self.log_std - _HALF_LOG_2PI).sum(dim=-1)
        return head + self.log_std.exp() * noise, log_prob, self.value(obs).squeeze(-1)

    def evaluate(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the log probabilities of ``actions``, the policy's entropies and the values, each (B,)."""
        head = self.policy(obs)
        values = self.value(obs).squeeze(-1)
        if self.discrete:
            log_probs = functional.log_softmax(head, dim=-1)
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
            return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy, values
        noise = (actions - head) * (-self.log_std).exp()
        log_prob = (-0.5 * noise.square() - self.log_std - _HALF_LOG_2PI).sum(dim=-1)
        return log_prob, (self.log_std + _HALF_LOG_2PI + 0.5).sum().expand_as(log_prob), values


class PPO:
    """A PPO agent over a vector environment with NEXT_STEP autoreset: collect rollouts, and update on them."""

    def __init__(
        self,
        envs: VectorEnv,
        hidden: int = 64,
        gamma: float = 0.99,
        lam: float = 0.95,
        seed: int = 0,
        device: str | torch.device = "cpu",
        lr: float = 3e-4,
    ) -> None:
        self.envs = envs
        self.gamma = gamma
        self.lam = lam
        self.seed = seed
        self.device: torch.device = torch.device(device)
        weights = torch.Generator().manual_seed(seed)
        self.model = ActorCritic(envs.single_observation_space, envs.single_action_space, hidden, weights)
        self.model.to(self.device)
        self._parameters = list(self.model.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=lr, eps=1e-5, fused=True)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._ended = np.zeros(envs.num_envs, dtype=np.bool_)
        self._all_obs: Array32 | None = None
        self._rollout: Rollout | None = None

    @torch.no_grad()
    def collect(self, n_steps: int) -> Rollout:
        """Step the environments ``n_steps`` times from where they stand and return what happened, advantages included.

        The first call resets them with the seed. A truncated episode is bootstrapped with the value of its final
        observation, a terminated one with nothing, and no advantage reaches over an episode's end. Under NEXT_STEP,
        the reset row that follows acts on the final observation, so its value is in that row. A reset row gets its own
        value as reward and is marked as done, so its advantage is 0, and the plain recursion of :func:`compute_gae`
        does all of it.
        """
        all_obs, rollout = self._storage(n_steps)
        envs, model, ended = self.envs, self.model, self._ended
        for t in range(n_steps):
            with _POLICY:
                actions, log_probs, values = model.act(self._tensor(all_obs[t]), self._generator)
                drawn = actions.cpu().numpy()
                env_actions = self._for_envs(drawn)
            with _ENV_STEP:
                obs, rewards, terminated, truncated, _ = envs.step(env_actions)
            with _STORE:
                all_obs[t + 1] = obs
                rollout.actions[t] = drawn
                rollout.log_probs[t] = log_probs.cpu().numpy()
                rollout.values[t] = values.cpu().numpy()
                rollout.rewards[t] = rewards
                np.logical_not(ended, out=rollout.valid[t])
                rollout.terminated[t] = terminated
                ended = np.logical_or(terminated, truncated, out=rollout.dones[t])
        self._ended[:] = ended  # a copy: the row it lies in is written again
        with _POLICY:
            last_values = model.value(self._tensor(all_obs[n_steps])).squeeze(-1).cpu().numpy()
        with _GAE:
            rollout.advantages[:], rollout.returns[:] = compute_gae(
                np.where(rollout.valid, rollout.rewards, rollout.values),
                rollout.values,
                rollout.terminated | ~rollout.valid,
                last_values,
                self.gamma,
                self.lam,
            )
        return rollout

    def update(self, rollout: Rollout, epochs: int = 4, minibatches: int = 4) -> PPOLosses:
        """Take ``epochs`` passes over the valid rows, in ``minibatches`` parts each, on the clipped objective (eq. 7).

        Advantages are standardised in each part, so a minibatch needs two valid rows.
        """
        rows = np.flatnonzero(rollout.valid)
        with _GATHER:
            columns = [
                self._tensor(column.reshape(-1, *column.shape[2:])[rows])
                for column in (rollout.obs, rollout.actions, rollout.log_probs, rollout.advantages, rollout.returns)
            ]
        sums = torch.zeros(3, device=self.device)
        for _ in range(epochs):
            with _GATHER:
                order = torch.randperm(len(rows), generator=self._generator, device=self.device)
            for part in order.tensor_split(minibatches):
                with _GATHER:
                    minibatch = [column[part] for column in columns]
                sums += self._update_minibatch(*minibatch)
        return PPOLosses(*(sums / (epochs * minibatches)))

    def _update_minibatch(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> torch.Tensor:
        """Do one gradient step; return the policy's loss, the value's loss and the entropy, (3,)."""
        with _FORWARD:
            log_probs, entropies, values = self.model.evaluate(obs, actions)
            ratio = (log_probs - old_log_probs).exp()
            standardised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP)
            policy_loss = -torch.minimum(ratio * standardised, clipped * standardised).mean()
            value_loss = 0.5 * functional.mse_loss(values, returns)
            loss = policy_loss + _VALUE_WEIGHT * value_loss
        with _BACKWARD:
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
        with _STEP:
            nn.utils.clip_grad_norm_(self._parameters, _MAX_GRAD_NORM)
            self._optimizer.step()
        return torch.stack((policy_loss.detach(), value_loss.detach(), entropies.detach().mean()))

    def _storage(self, n_steps: int) -> tuple[Array32, Rollout]:
        """Return the observations, with one row more than steps, the first filled in, and the rollout over them."""
        first = self.envs.reset(seed=self.seed)[0] if self._all_obs is None else self._all_obs[-1]
        if self._all_obs is None or self._rollout is None or len(self._all_obs) != n_steps + 1:
            self._all_obs = np.empty((n_steps + 1, *first.shape), dtype=np.float32)
            self._rollout = self._new_rollout(self._all_obs[:-1])
        self._all_obs[0] = first
        return self._all_obs, self._rollout

    def _new_rollout(self, obs: Array32) -> Rollout:
        """Return a rollout over ``obs``, (T, N, obs_dim), whose other arrays are not filled yet."""
        steps = obs.shape[:2]
        actions: NDArray[Any] = np.empty((*steps, *(self.envs.single_action_space.shape or ())), dtype=np.float32)
        if self.model.discrete:
            actions = np.empty(steps, dtype=np.int64)
        log_probs, rewards, values, advantages, returns = (np.empty(steps, dtype=np.float32) for _ in range(5))
        dones, terminated, valid = (np.empty(steps, dtype=np.bool_) for _ in range(3))
        return Rollout(obs, actions, log_probs, rewards, values, dones, terminated, valid, advantages, returns)

    def _for_envs(self, drawn: NDArray[Any]) -> NDArray[Any]:
        """Return actions that lie in the environments' action space."""
        space = self.envs.single_action_space
        if isinstance(space, spaces.Box):
            clipped: NDArray[Any] = np.clip(drawn, space.low, space.high)
            return clipped
        return drawn

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)
