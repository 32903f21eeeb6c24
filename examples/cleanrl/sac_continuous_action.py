"""SAC in one file, in CleanRL's style: the parts of its loop are functions, which tests import."""

import argparse

import gymnasium as gym
import torch
from torch import nn
from torch.nn import functional


class ReplayBuffer:
    def __init__(self, size, obs_dim, act_dim):
        self.observations, self.next_observations = torch.zeros(size, obs_dim), torch.zeros(size, obs_dim)
        self.actions, self.rewards, self.dones = torch.zeros(size, act_dim), torch.zeros(size), torch.zeros(size)
        self.pos = self.stored = 0

    def add(self, *transition):
        for field, value in zip(self.fields(), transition, strict=True):
            field[self.pos] = torch.as_tensor(value)
        self.pos = (self.pos + 1) % len(self.rewards)
        self.stored = min(self.stored + 1, len(self.rewards))

    def fields(self):
        return self.observations, self.actions, self.next_observations, self.rewards, self.dones

    def sample(self, batch_size):
        rows = torch.randint(self.stored, (batch_size,))
        return tuple(field[rows] for field in self.fields())


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs_dim, 64), nn.ReLU())
        self.fc_mean, self.fc_logstd = nn.Linear(64, act_dim), nn.Linear(64, act_dim)

    def get_action(self, x):
        features = self.fc(x)
        normal = torch.distributions.Normal(self.fc_mean(features), self.fc_logstd(features).clamp(-5, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        return action, (normal.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(1, keepdim=True)


def soft_q_network(obs_dim, act_dim):
    return nn.Sequential(nn.Linear(obs_dim + act_dim, 64), nn.ReLU(), nn.Linear(64, 1))


def make_update(actor, rb, batch_size, obs_dim, act_dim):
    qf1, qf2, qf1_target, qf2_target = (soft_q_network(obs_dim, act_dim) for _ in range(4))
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    args = parser.parse_args()
    env = gym.make("Pendulum-v1")
    actor, rb = Actor(3, 1), ReplayBuffer(args.total_timesteps, 3, 1)
    update = make_update(actor, rb, 256, 3, 1)
    obs, _ = env.reset(seed=1)
    for global_step in range(args.total_timesteps):
        with torch.no_grad():
            action = 2.0 * actor.get_action(torch.as_tensor(obs)[None])[0][0].numpy()
        next_obs, reward, termination, truncation, _ = env.step(action)
        rb.add(obs, action, next_obs, reward, termination)
        obs = env.reset()[0] if termination or truncation else next_obs
        if global_step >= args.learning_starts:
            update()
    env.close()
