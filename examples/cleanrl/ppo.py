"""PPO in one file, in CleanRL's style: the parts of its loop are functions, which tests import."""

import argparse

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


def make_envs(env_id, num_envs):
    mode = gym.vector.AutoresetMode.SAME_STEP
    return gym.vector.SyncVectorEnv([make_env(env_id)] * num_envs, autoreset_mode=mode)


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(envs.single_observation_space.shape[0], 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, int(envs.single_action_space.n)), nn.Linear(64, 1)

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x)
        probs = torch.distributions.Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), self.critic(hidden).view(-1)


def compute_gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    advantages = torch.zeros_like(rewards)
    following, value_then, goes_on = torch.zeros_like(next_value), next_value, 1.0 - next_done
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * goes_on * value_then - values[t]
        following = advantages[t] = delta + gamma * gae_lambda * goes_on * following
        value_then, goes_on = values[t], 1.0 - dones[t]
    return advantages


def make_collect(agent, envs, num_steps):
    shape = num_steps, envs.num_envs
    obs = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    next_obs, next_done = torch.as_tensor(envs.reset(seed=1)[0]), torch.zeros(envs.num_envs)

    def collect():
        nonlocal next_obs, next_done
        for step in range(num_steps):
            with hierarchical_timer("store"):
                obs[step], dones[step] = next_obs, next_done
            with torch.no_grad(), hierarchical_timer("policy"):
                action, logprob, value = agent.get_action_and_value(next_obs)
            with hierarchical_timer("store"):
                values[step], actions[step], logprobs[step] = value, action, logprob
            with hierarchical_timer("env_step"):
                observation, reward, terminations, truncations, _ = envs.step(action.numpy())
            with hierarchical_timer("store"):
                rewards[step] = torch.as_tensor(reward)
                next_obs = torch.as_tensor(observation)
                next_done = torch.as_tensor(np.logical_or(terminations, truncations)).float()
        with torch.no_grad(), hierarchical_timer("gae"):
            next_value = agent.get_action_and_value(next_obs)[2]
            advantages = compute_gae(rewards, values, dones, next_value, next_done, 0.99, 0.95)
        fields = actions, logprobs, advantages, advantages + values
        return obs.flatten(0, 1), *(field.flatten() for field in fields)

    return collect


def make_update(agent, epochs=4, minibatch_size=256):
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4)

    def update(b_obs, b_actions, b_logprobs, b_advantages, b_returns):
        for _ in range(epochs):
            for mb in torch.randperm(len(b_obs)).split(minibatch_size):
                _, newlogprob, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                pg_losses = -b_advantages[mb] * ratio, -b_advantages[mb] * ratio.clamp(0.8, 1.2)
                v_loss = functional.mse_loss(newvalue, b_returns[mb])
                optimizer.zero_grad()
                (torch.max(*pg_losses).mean() + 0.5 * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    return update


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=500_000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128)
    args = parser.parse_args()
    envs = make_envs("CartPole-v1", args.num_envs)
    agent = Agent(envs)
    collect, update = make_collect(agent, envs, args.num_steps), make_update(agent)
    for _ in range(args.total_timesteps // (args.num_envs * args.num_steps)):
        update(*collect())
    envs.close()
