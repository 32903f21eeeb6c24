"""CleanRL, and scripts like it: each component is a copy of the script's lines, in a zero-argument function."""

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pytest_rlperf.timers import hierarchical_timer


def make_env(env_id):
    def thunk():
        return gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))

    return thunk


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: gym.vector.SyncVectorEnv([make_env("CartPole-v1")] * 8))


class ReplayBuffer:
    def __init__(self, size):
        self.observations, self.actions = torch.randn(size, 3), torch.rand(size, 1) * 2 - 1
        self.next_observations, self.rewards = torch.randn(size, 3), torch.randn(size)
        self.dones = (torch.rand(size) < 0.01).float()

    def sample(self, batch_size):
        rows = torch.randint(len(self.rewards), (batch_size,))
        fields = self.observations, self.actions, self.next_observations, self.rewards, self.dones
        return tuple(field[rows] for field in fields)


def test_sample(rlperf_replay_sample):
    rb = ReplayBuffer(10_000)
    rlperf_replay_sample(lambda: rb.sample(256), batch_size=256)


def compute_gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    advantages = torch.zeros_like(rewards)
    following, value_then, goes_on = torch.zeros_like(next_value), next_value, 1.0 - next_done
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * goes_on * value_then - values[t]
        following = advantages[t] = delta + gamma * gae_lambda * goes_on * following
        value_then, goes_on = values[t], 1.0 - dones[t]
    return advantages


def test_gae(rlperf_gae):
    rlperf_gae(compute_gae, n_steps=128, n_envs=8, backend="torch")


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(3, 64), nn.ReLU())
        self.fc_mean, self.fc_logstd = nn.Linear(64, 1), nn.Linear(64, 1)

    def get_action(self, x):
        features = self.fc(x)
        normal = torch.distributions.Normal(self.fc_mean(features), self.fc_logstd(features).clamp(-5, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        return action, (normal.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(1, keepdim=True)


def soft_q_network():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))


def make_sac_update(batch_size):
    rb = ReplayBuffer(10_000)
    actor, qf1, qf2 = Actor(), soft_q_network(), soft_q_network()
    qf1_target, qf2_target = soft_q_network(), soft_q_network()
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)

    def update():
        obs, actions, next_obs, rewards, dones = rb.sample(batch_size)
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            next_actions, next_log_pi = actor.get_action(next_obs)
            next_inputs = torch.cat([next_obs, next_actions], 1)
            next_q = torch.min(qf1_target(next_inputs), qf2_target(next_inputs)) - alpha * next_log_pi
            next_q_value = rewards + (1 - dones) * 0.99 * next_q.view(-1)
        inputs = torch.cat([obs, actions], 1)
        q_losses = [functional.mse_loss(qf(inputs).view(-1), next_q_value) for qf in (qf1, qf2)]
        q_optimizer.zero_grad()
        (q_losses[0] + q_losses[1]).backward()
        q_optimizer.step()

        pi, log_pi = actor.get_action(obs)
        pi_inputs = torch.cat([obs, pi], 1)
        actor_loss = (alpha * log_pi - torch.min(qf1(pi_inputs), qf2(pi_inputs))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = (-log_alpha.exp() * (log_pi.detach() - 1.0)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()

        for qf, target in ((qf1, qf1_target), (qf2, qf2_target)):
            for param, target_param in zip(qf.parameters(), target.parameters(), strict=True):
                target_param.data.copy_(0.005 * param.data + 0.995 * target_param.data)

    return update


def test_sac(rlperf_sac_update):
    rlperf_sac_update(make_sac_update(batch_size=256))


def make_collect(envs, num_steps):
    shape = num_steps, envs.num_envs
    agent = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))  # two logits and the value
    obs, dones, values, rewards = torch.zeros(*shape, 4), torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    actions, logprobs = torch.zeros(shape), torch.zeros(shape)
    next_obs, next_done = torch.as_tensor(envs.reset(seed=1)[0]), torch.zeros(envs.num_envs)

    def collect():
        nonlocal next_obs, next_done
        for step in range(num_steps):
            with hierarchical_timer("store"):
                obs[step], dones[step] = next_obs, next_done
            with torch.no_grad(), hierarchical_timer("policy"):
                logits, value = agent(next_obs).split([2, 1], dim=1)
                probs = torch.distributions.Categorical(logits=logits)
                action = probs.sample()
            with hierarchical_timer("store"):
                values[step], actions[step], logprobs[step] = value.view(-1), action, probs.log_prob(action)
            with hierarchical_timer("env_step"):
                observation, reward, terminations, truncations, _ = envs.step(action.numpy())
            with hierarchical_timer("store"):
                rewards[step] = torch.as_tensor(reward)
                next_obs = torch.as_tensor(observation)
                next_done = torch.as_tensor(np.logical_or(terminations, truncations)).float()
        with torch.no_grad(), hierarchical_timer("gae"):
            next_value = agent(next_obs)[:, 2]
            return compute_gae(rewards, values, dones, next_value, next_done, 0.99, 0.95)

    return collect


def test_collect(rlperf_ppo_collect):
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([make_env("CartPole-v1")] * 8, autoreset_mode=mode)
    rlperf_ppo_collect(make_collect(envs, num_steps=128), items=128 * 8)
    envs.close()


def make_ppo_update(rows, epochs=4, minibatch_size=256):
    agent = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))  # two logits and the value
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4)
    b_obs, b_actions, b_logprobs = torch.rand(rows, 4), torch.randint(2, (rows,)), torch.full((rows,), -0.69)
    b_advantages, b_returns = torch.randn(rows), torch.randn(rows)

    def update():
        for _ in range(epochs):
            for mb in torch.randperm(rows).split(minibatch_size):
                logits, value = agent(b_obs[mb]).split([2, 1], dim=1)
                newlogprob = torch.distributions.Categorical(logits=logits).log_prob(b_actions[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                pg_losses = -b_advantages[mb] * ratio, -b_advantages[mb] * ratio.clamp(0.8, 1.2)
                v_loss = functional.mse_loss(value.view(-1), b_returns[mb])
                optimizer.zero_grad()
                (torch.max(*pg_losses).mean() + 0.5 * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    return update


def test_ppo_update(rlperf_ppo_update):
    rlperf_ppo_update(make_ppo_update(rows=1024))
