"""Soft actor-critic on Pendulum, in one file: the project of the tutorial."""

import argparse
import copy
import random
import time
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def parse_args(args=None):
    """Return the settings of a training run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of the whole run")
    parser.add_argument("--learning-starts", type=int, default=1_000, help="env steps with random actions")
    parser.add_argument("--buffer-size", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--evaluate-every", type=int, default=5_000)
    return parser.parse_args(args)


def set_seed(seed):
    """Seed all generators of random numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class ReplayBuffer:
    """A ring of transitions."""

    def __init__(self, capacity, obs_dim, act_dim):
        self.obs = np.zeros((capacity, obs_dim), np.float32)
        self.next_obs = np.zeros((capacity, obs_dim), np.float32)
        self.actions = np.zeros((capacity, act_dim), np.float32)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.capacity, self.at, self.size = capacity, 0, 0

    def __len__(self):
        return self.size

    def add(self, obs, action, reward, next_obs, done):
        """Store a transition in the place of the oldest."""
        self.obs[self.at], self.next_obs[self.at] = obs, next_obs
        self.actions[self.at], self.rewards[self.at], self.dones[self.at] = action, reward, done
        self.at = (self.at + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size):
        """Return a batch of transitions as tensors."""
        rows = np.random.randint(self.size, size=batch_size)
        fields = self.obs, self.actions, self.rewards, self.next_obs, self.dones
        return tuple(torch.from_numpy(field[rows]) for field in fields)


def mlp(sizes, last=nn.Identity):
    """Return a network with ReLU between its layers."""
    layers = []
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        is_last = place == len(sizes) - 2
        layers += [nn.Linear(inputs, outputs), last() if is_last else nn.ReLU()]
    return nn.Sequential(*layers)


class Actor(nn.Module):
    """A Gaussian policy, squashed into [-1, 1]."""

    def __init__(self, obs_dim, act_dim, hidden=256):
        super().__init__()
        self.body = mlp([obs_dim, hidden, hidden], last=nn.ReLU)
        self.mean = nn.Linear(hidden, act_dim)
        self.log_std = nn.Linear(hidden, act_dim)

    def forward(self, obs):
        """Return the distribution before squashing."""
        features = self.body(obs)
        log_std = self.log_std(features).clamp(LOG_STD_MIN, LOG_STD_MAX)
        return torch.distributions.Normal(self.mean(features), log_std.exp())

    def draw(self, obs):
        """Return actions and their log-probabilities."""
        distribution = self(obs)
        raw = distribution.rsample()
        actions = raw.tanh()
        squash = 2.0 * (np.log(2.0) - raw - functional.softplus(-2.0 * raw))
        return actions, (distribution.log_prob(raw) - squash).sum(-1)


class Critic(nn.Module):
    """The value of an action in a state."""

    def __init__(self, obs_dim, act_dim, hidden=256):
        super().__init__()
        self.body = mlp([obs_dim + act_dim, hidden, hidden, 1])

    def forward(self, obs, actions):
        """Return a value for each row."""
        return self.body(torch.cat([obs, actions], -1)).squeeze(-1)


class SAC:
    """The agent: networks, optimizers, buffer, and the update."""

    def __init__(self, obs_dim, act_dim, buffer, gamma=0.99, tau=0.005, learning_rate=3e-4):
        self.buffer, self.gamma, self.tau = buffer, gamma, tau
        self.actor = Actor(obs_dim, act_dim)
        self.critic_1, self.critic_2 = Critic(obs_dim, act_dim), Critic(obs_dim, act_dim)
        self.target_critic_1 = copy.deepcopy(self.critic_1).requires_grad_(False)
        self.target_critic_2 = copy.deepcopy(self.critic_2).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(act_dim)
        critics = [*self.critic_1.parameters(), *self.critic_2.parameters()]
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=learning_rate)
        self.critic_optimizer = torch.optim.Adam(critics, lr=learning_rate)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=learning_rate)

    @torch.no_grad()
    def act(self, obs, deterministic=False):
        """Return an action for one observation."""
        obs = torch.as_tensor(obs, dtype=torch.float32)
        action = self.actor(obs).mean.tanh() if deterministic else self.actor.draw(obs)[0]
        return action.numpy()

    def update(self, batch_size):
        """Take one gradient step of critics, actor and temperature."""
        obs, actions, rewards, next_obs, dones = self.buffer.sample(batch_size)
        alpha = self.log_alpha.detach().exp()

        critic_loss = self.critic_loss(obs, actions, rewards, next_obs, dones, alpha)
        self.descend(self.critic_optimizer, critic_loss)

        drawn, log_prob = self.actor.draw(obs)
        value = torch.min(self.critic_1(obs, drawn), self.critic_2(obs, drawn))
        actor_loss = (alpha * log_prob - value).mean()
        self.descend(self.actor_optimizer, actor_loss)

        alpha_loss = -(self.log_alpha.exp() * (log_prob.detach() + self.target_entropy)).mean()
        self.descend(self.alpha_optimizer, alpha_loss)

        self.update_targets()
        return critic_loss.item(), actor_loss.item()

    def critic_loss(self, obs, actions, rewards, next_obs, dones, alpha):
        """Return the error of both critics against the targets' value of the next state."""
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.draw(next_obs)
            next_value = torch.min(
                self.target_critic_1(next_obs, next_actions), self.target_critic_2(next_obs, next_actions)
            )
            target = rewards + self.gamma * (1.0 - dones) * (next_value - alpha * next_log_prob)
        losses = (functional.mse_loss(critic(obs, actions), target) for critic in (self.critic_1, self.critic_2))
        return sum(losses)

    def descend(self, optimizer, loss):
        """Take a step of an optimizer."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def update_targets(self):
        """Move the target networks towards the critics."""
        pairs = (self.critic_1, self.target_critic_1), (self.critic_2, self.target_critic_2)
        for critic, target in pairs:
            for new, old in zip(critic.parameters(), target.parameters(), strict=True):
                old.lerp_(new, self.tau)


class RescaleAction(gym.ActionWrapper):
    """Maps [-1, 1] to the bounds of the env's actions."""

    def __init__(self, env):
        super().__init__(env)
        self.low, self.high = env.action_space.low, env.action_space.high
        self.action_space = gym.spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)

    def action(self, action):
        """Return the action in the env's own bounds."""
        return self.low + 0.5 * (action + 1.0) * (self.high - self.low)


def make_env(name="Pendulum-v1"):
    """Return an env whose actions are in [-1, 1]."""
    return RescaleAction(gym.make(name))


def evaluate(agent, env, episodes=5):
    """Return the mean return of the policy without noise."""
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs, deterministic=True))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def train(settings):
    """Train an agent, and return it."""
    set_seed(settings.seed)
    env = make_env(settings.env)
    obs_dim, act_dim = env.observation_space.shape[0], env.action_space.shape[0]
    buffer = ReplayBuffer(settings.buffer_size, obs_dim, act_dim)
    agent = SAC(obs_dim, act_dim, buffer, settings.gamma, settings.tau, settings.learning_rate)

    obs, _ = env.reset(seed=settings.seed)
    start_s = time.perf_counter()
    for step in range(1, settings.steps + 1):
        is_random = step <= settings.learning_starts
        action = env.action_space.sample() if is_random else agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if not is_random:
            agent.update(settings.batch_size)
        if step % settings.evaluate_every == 0:
            speed = step / (time.perf_counter() - start_s)
            print(f"{step} steps, {speed:.0f} a second, return {evaluate(agent, make_env(settings.env)):.0f}")
    env.close()
    return agent


if __name__ == "__main__":
    train(parse_args())
