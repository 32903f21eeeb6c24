"""Soft actor-critic with twin critics and a learned temperature, the replay buffer it samples, and its networks.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; equation numbers refer to it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn import functional

from pytest_rlperf.timers import hierarchical_timer

_INDEX = hierarchical_timer("index")
_GATHER = hierarchical_timer("gather")
_CONVERT = hierarchical_timer("convert")


class Batch(NamedTuple):
    """B transitions, float32: obs and next_obs (B, obs_dim), actions (B, act_dim), rewards and dones (B,).

    ``dones`` is 1 if the episode terminated, so that there is no value after it.
    """

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    dones: torch.Tensor


class ReplayBuffer:
    """The last ``capacity`` transitions; sampling is uniform with replacement and follows ``seed``."""

    def __init__(
        self, capacity: int, obs_dim: int, act_dim: int, seed: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        self.capacity = capacity
        self.device: torch.device = torch.device(device)
        self._obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self._actions = np.zeros((capacity, act_dim), dtype=np.float32)
        self._rewards = np.zeros(capacity, dtype=np.float32)
        self._next_obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self._dones = np.zeros(capacity, dtype=np.float32)
        self._columns = (self._obs, self._actions, self._rewards, self._next_obs, self._dones)
        self._rng = np.random.default_rng(seed)
        self._next_row = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self, obs: ArrayLike, actions: ArrayLike, rewards: ArrayLike, next_obs: ArrayLike, dones: ArrayLike
    ) -> None:
        """Store N transitions, arrays of shape (N, ...), over the oldest ones if the buffer is full."""
        new = [np.asarray(column) for column in (obs, actions, rewards, next_obs, dones)]
        n = len(new[0])
        first = min(n, self.capacity - self._next_row)  # how many fit before the end of the ring
        for column, stored in zip(new, self._columns, strict=True):
            stored[self._next_row : self._next_row + first] = column[:first]
            stored[: n - first] = column[first:]
        self._next_row = (self._next_row + n) % self.capacity
        self._size = min(self._size + n, self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` stored transitions, drawn with replacement, in tensors of their own on the device."""
        with _INDEX:
            rows = self._rng.integers(self._size, size=batch_size)
        with _GATHER:
            columns = [column.take(rows, axis=0) for column in self._columns]
        with _CONVERT:
            return Batch(*[self._tensor(column) for column in columns])

    def _tensor(self, column: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(column).to(self.device)


def mlp(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator, last_gain: float = 1.0
) -> nn.Sequential:
    """Return linear layers of these sizes with ``activation`` between them, none after the last.

    Weights are orthogonal (Saxe et al. 2014), with gain sqrt(2) and ``last_gain`` in the last layer; biases are zero.
    They come from ``generator``, on the CPU, so that a seed gives the same network on every device.
    """
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(n_in, n_out)
        nn.init.orthogonal_(layer.weight, last_gain if i == last else math.sqrt(2.0), generator)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
        if i < last:
            layers.append(activation())
    return nn.Sequential(*layers)


_SAMPLE = hierarchical_timer("sample")
_TARGET_Q = hierarchical_timer("target_q")
_CRITIC = hierarchical_timer("critic")
_ACTOR = hierarchical_timer("actor")
_ALPHA = hierarchical_timer("alpha")
_POLYAK = hierarchical_timer("polyak")
_FORWARD = hierarchical_timer("forward")
_BACKWARD = hierarchical_timer("backward")
_STEP = hierarchical_timer("step")

_LOG_STD_RANGE = (-20.0, 2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class SACLosses(NamedTuple):
    """The losses of one update: detached scalar tensors on the agent's device, which nothing has waited for."""

    critic: torch.Tensor
    actor: torch.Tensor
    alpha: torch.Tensor


class SquashedGaussianActor(nn.Module):
    """A diagonal Gaussian whose mean and log standard deviation come from one network, squashed by tanh."""

    def __init__(self, obs_dim: int, act_dim: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.net = mlp((obs_dim, hidden, hidden, 2 * act_dim), nn.ReLU, generator, last_gain=0.01)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the log standard deviation before squashing, each (B, act_dim)."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(*_LOG_STD_RANGE)

    def sample(self, obs: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return reparametrised actions in [-1, 1], (B, act_dim), and their log probabilities, (B,) (appendix C)."""
        mean, log_std = self(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        raw = mean + log_std.exp() * noise
        # log(1 - tanh(u)^2) in a form that does not run into log(0) for large |u|
        log_slope = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
        log_probs = (-0.5 * noise.square() - log_std - _HALF_LOG_2PI - log_slope).sum(dim=-1)
        return raw.tanh(), log_probs


class TwinCritic(nn.Module):
    """Two separate Q-functions, against the overestimation of one."""

    def __init__(self, obs_dim: int, act_dim: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (obs_dim + act_dim, hidden, hidden, 1)
        self.q1 = mlp(sizes, nn.ReLU, generator)
        self.q2 = mlp(sizes, nn.ReLU, generator)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both estimates, each (B,)."""
        both = torch.cat((obs, actions), dim=-1)
        return self.q1(both).squeeze(-1), self.q2(both).squeeze(-1)


class SAC:
    """A SAC agent that updates on samples of ``buffer``.

    ``log_alpha`` starts at 0 and is driven to an entropy of -act_dim. Actions are in [-1, 1]; the caller scales them
    to an environment's bounds. ``buffer`` must give its batches on ``device``.
    """

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        buffer: ReplayBuffer,
        hidden: int = 256,
        lr: float = 3e-4,
        gamma: float = 0.99,
        tau: float = 0.005,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device: torch.device = torch.device(device)
        self.buffer = buffer
        self.gamma = gamma
        self.tau = tau
        self.target_entropy = -float(act_dim)
        weights = torch.Generator().manual_seed(seed)
        self.actor = SquashedGaussianActor(obs_dim, act_dim, hidden, weights).to(self.device)
        self.critic = TwinCritic(obs_dim, act_dim, hidden, weights).to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        # Lists made once: walking a module's parameters is slow.
        self._actor_parameters: list[torch.Tensor] = list(self.actor.parameters())
        self._critic_parameters: list[torch.Tensor] = list(self.critic.parameters())
        self._target_parameters: list[torch.Tensor] = list(self.target_critic.parameters())
        self._actor_optimizer = torch.optim.Adam(self._actor_parameters, lr=lr, fused=True)
        self._critic_optimizer = torch.optim.Adam(self._critic_parameters, lr=lr, fused=True)
        self._alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=lr, fused=True)

    @torch.no_grad()
    def target_q(self, batch: Batch) -> torch.Tensor:
        """Return the critics' target for ``batch``, (B,): r + gamma (1 - done) (min Q' - alpha log pi) (eqs. 3, 5)."""
        next_actions, next_log_probs = self.actor.sample(batch.next_obs, self._generator)
        next_q = torch.minimum(*self.target_critic(batch.next_obs, next_actions))
        next_v = next_q - self.log_alpha.exp() * next_log_probs
        return batch.rewards + self.gamma * (1.0 - batch.dones) * next_v

    def update(self, batch_size: int) -> SACLosses:
        """Do a gradient step on critics, actor and temperature from one batch, then move the target critics by tau."""
        with _SAMPLE:
            batch = self.buffer.sample(batch_size)
        with _TARGET_Q:
            target = self.target_q(batch)
        with _CRITIC:
            critic_loss = self._update_critic(batch, target)
        with _ACTOR:
            actor_loss, log_probs = self._update_actor(batch)
        with _ALPHA:
            alpha_loss = self._update_alpha(log_probs)
        with _POLYAK, torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, self._critic_parameters, self.tau)
        return SACLosses(critic_loss, actor_loss, alpha_loss)

    def _update_critic(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        """Lower the squared Bellman error of both critics (eq. 5)."""
        with _FORWARD:
            q1, q2 = self.critic(batch.obs, batch.actions)
            loss = 0.5 * (functional.mse_loss(q1, target) + functional.mse_loss(q2, target))
        with _BACKWARD:
            self._critic_optimizer.zero_grad()
            torch.autograd.backward(loss)
        with _STEP:
            self._critic_optimizer.step()
        return loss.detach()

    def _update_actor(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise the entropy-regularised value of the policy's own actions (eq. 9); return also their log pi, (B,)."""
        with _FORWARD:
            actions, log_probs = self.actor.sample(batch.obs, self._generator)
            q = torch.minimum(*self.critic(batch.obs, actions))
            loss = (self.log_alpha.detach().exp() * log_probs - q).mean()
        with _BACKWARD:
            self._actor_optimizer.zero_grad()
            # The gradient passes through the critics, but their gradients are neither computed nor kept.
            torch.autograd.backward(loss, inputs=self._actor_parameters)
        with _STEP:
            self._actor_optimizer.step()
        return loss.detach(), log_probs.detach()

    def _update_alpha(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Move the temperature so that the policy's entropy nears its target (eq. 18)."""
        loss = -self.log_alpha.exp() * (log_probs.mean() + self.target_entropy)
        self._alpha_optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._alpha_optimizer.step()
        return loss.detach()
