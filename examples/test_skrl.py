"""skrl: a wrapped env, memory, GAE and SAC; functions for a rollout and for acting."""

import gymnasium as gym
import pytest
import torch
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.ppo.ppo import compute_gae
from skrl.agents.torch.sac import SAC
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

from pytest_rlperf.timers import hierarchical_timer

QUIET = {"write_interval": 0, "checkpoint_interval": 0}  # no TensorBoard files, nothing tracked


def model(make, env, inputs, output):
    network = [{"name": "net", "input": inputs, "layers": [64, 64], "activations": "relu"}]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    made = make(**spaces, device=env.device, network=network, output=output)
    made.init_state_dict()
    return made


@pytest.fixture
def env():
    env = wrap_env(gym.make_vec("Pendulum-v1", num_envs=8), verbose=False)
    yield env
    env.close()


def memory_for(env, size):
    return RandomMemory(memory_size=size, num_envs=env.num_envs, device=env.device)


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: wrap_env(gym.make_vec("CartPole-v1", num_envs=8), verbose=False))


def test_gae(rlperf_gae):
    rlperf_gae(compute_gae, n_steps=128, n_envs=8)


@pytest.fixture
def sac(env):
    critics = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    joined = "concatenate([OBSERVATIONS, ACTIONS])"
    models = {name: model(deterministic_model, env, joined, "ONE") for name in critics}
    models["policy"] = model(gaussian_model, env, "OBSERVATIONS", "ACTIONS")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    config = {"batch_size": 64, "experiment": QUIET}
    agent = SAC(models=models, memory=memory_for(env, 200), **spaces, device=env.device, cfg=config)
    agent.init()
    for _ in range(100):
        agent.memory.add_samples(
            observations=torch.randn(8, 3),
            actions=torch.rand(8, 1),
            rewards=torch.randn(8, 1),
            next_observations=torch.randn(8, 3),
            terminated=torch.zeros(8, 1, dtype=torch.bool),
        )
    return agent


def test_sample(rlperf_replay_sample, sac):
    rlperf_replay_sample(sac.memory, batch_size=64)


def test_sac(rlperf_sac_update, sac):
    rlperf_sac_update(sac, batch_size=64)


def test_collect(rlperf_ppo_collect, env):
    models = {
        "policy": model(gaussian_model, env, "OBSERVATIONS", "ACTIONS"),
        "value": model(deterministic_model, env, "OBSERVATIONS", "ONE"),
    }
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    memory = memory_for(env, 32)
    config = {"rollouts": 32, "experiment": QUIET}
    agent = PPO(models=models, memory=memory, **spaces, device=env.device, cfg=config)
    agent.init()
    agent.enable_training_mode(True)  # or it records nothing
    last = {"observations": env.reset()[0], "states": None}

    @torch.no_grad()
    def collect():
        for timestep in range(32):
            times = {"timestep": timestep, "timesteps": 32}
            with hierarchical_timer("policy"):
                actions, _ = agent.act(last["observations"], None, **times)
            with hierarchical_timer("env_step"):
                observations, rewards, terminated, truncated, infos = env.step(actions)
            with hierarchical_timer("store"):
                moved = {"next_observations": observations, "next_states": None, "rewards": rewards, "infos": infos}
                ends = {"terminated": terminated, "truncated": truncated}
                agent.record_transition(**last, actions=actions, **moved, **ends, **times)
            last["observations"] = observations
        with hierarchical_timer("gae"):
            values, _ = agent.value.act(last, role="value")
            stored = {
                name: memory.get_tensor_by_name(name) for name in ("rewards", "values", "terminated", "truncated")
            }
            return compute_gae(**stored, last_values=values, discount_factor=0.99, lambda_coefficient=0.95)

    rlperf_ppo_collect(collect, items=32 * env.num_envs)


def test_acting(rlperf, sac, env):
    observations, _ = env.reset()

    def act_and_step():
        with torch.no_grad():
            actions, _ = sac.act(observations, None, timestep=0, timesteps=1)
            return env.step(actions)

    rlperf(act_and_step, items=env.num_envs, unit="env step")
