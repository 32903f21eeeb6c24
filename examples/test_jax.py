"""JAX, in the style of gymnax and PureJaxRL: each component is a zero-argument function that calls a compiled one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def reset(key):
    return jax.random.uniform(key, (2,), minval=-0.05, maxval=0.05)


def step(key, state, action):
    """Step a cart, and begin anew where it has left the track."""
    place, speed = state
    speed = speed + 0.02 * (2.0 * action - 1.0)
    state = jnp.array([place + 0.02 * speed, speed])
    done = jnp.abs(state[0]) > 1.0
    return jnp.where(done, reset(key), state), 1.0 - done, done


@pytest.fixture
def vector_step():
    step_all = jax.jit(jax.vmap(step))
    keys, states = jax.random.split(jax.random.key(0), 256), jnp.zeros((256, 2))
    actions = jax.random.bernoulli(jax.random.key(1), shape=(256,)).astype(jnp.float32)

    def step_once():
        nonlocal states
        states, rewards, dones = step_all(keys, states, actions)
        return rewards, dones

    return step_once


def test_step(rlperf_vecenv_step, vector_step):
    rlperf_vecenv_step(vector_step, num_envs=256)


AGENTS = "tagger", "runner_0", "runner_1"


def step_agents(key, places, actions):
    """Step an env of many agents, as JaxMARL's are: states, actions and rewards are mappings from agents."""
    places = {agent: places[agent] + 0.1 * actions[agent] for agent in AGENTS}
    distances = {agent: jnp.linalg.norm(places[agent] - places["tagger"]) for agent in AGENTS[1:]}
    done = jnp.min(jnp.stack([*distances.values()])) < 0.5
    rewards = {"tagger": done.astype(float), **distances}
    return jax.tree.map(lambda place: jnp.where(done, jax.random.uniform(key, (2,)), place), places), rewards, done


def test_step_of_many_agents(rlperf_vecenv_step):
    step_all = jax.jit(jax.vmap(step_agents))
    keys = jax.random.split(jax.random.key(0), 64)
    places = {agent: jax.random.uniform(jax.random.key(index), (64, 2)) for index, agent in enumerate(AGENTS)}
    actions = {agent: jnp.ones((64, 2)) for agent in AGENTS}

    def step_once():
        nonlocal places
        places, rewards, dones = step_all(keys, places, actions)
        return rewards, dones

    rlperf_vecenv_step(step_once, num_envs=64)


@jax.jit
def sample(key, buffer):
    rows = jax.random.randint(key, (256,), 0, len(buffer["reward"]))
    return jax.tree.map(lambda field: field[rows], buffer)


def test_sample(rlperf_replay_sample):
    buffer = {"obs": jnp.zeros((10_000, 3)), "action": jnp.zeros((10_000, 1)), "reward": jnp.zeros(10_000)}
    key = jax.random.key(0)
    rlperf_replay_sample(lambda: sample(key, buffer), batch_size=256)


@jax.jit
def compute_gae(rewards, values, dones, last_values, gamma, lam):
    def back(carry, now):
        following, next_value = carry
        reward, value, done = now
        delta = reward + gamma * next_value * (1.0 - done) - value
        advantage = delta + gamma * lam * (1.0 - done) * following
        return (advantage, value), advantage

    first = jnp.zeros_like(last_values), last_values
    return jax.lax.scan(back, first, (rewards, values, dones), reverse=True)[1]


def test_gae(rlperf_gae):
    rlperf_gae(compute_gae, n_steps=128, n_envs=64)


def loss(params, obs, target):
    return jnp.mean((jnp.tanh(obs @ params["w1"]) @ params["w2"] - target) ** 2)


def make_update():
    def gradient_step(params, obs, target):
        value, gradients = jax.value_and_grad(loss)(params, obs, target)
        return jax.tree.map(lambda param, gradient: param - 1e-3 * gradient, params, gradients), value

    gradient_step = jax.jit(gradient_step, donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"w1": jax.random.normal(keys[0], (17, 64)), "w2": jax.random.normal(keys[1], (64, 1))}
    obs, target = jax.random.normal(keys[2], (256, 17)), jnp.ones((256, 1))

    def update():
        nonlocal params
        params, value = gradient_step(params, obs, target)
        return value

    return update


def test_update(rlperf_sac_update):
    rlperf_sac_update(make_update())


@jax.jit
def rollout(key, states):
    def step_all(states, key):
        keys = jax.random.split(key, 64)
        actions = jax.vmap(lambda key: jax.random.bernoulli(key).astype(jnp.float32))(keys)
        next_states, rewards, dones = jax.vmap(step)(keys, states, actions)
        return next_states, {"obs": states, "actions": actions, "rewards": rewards, "dones": dones}

    return jax.lax.scan(step_all, states, jax.random.split(key, 128))


def test_collect(rlperf_ppo_collect):
    key, states = jax.random.key(0), jnp.zeros((64, 2))
    rlperf_ppo_collect(lambda: rollout(key, states), items=128 * 64)


def test_train(rlperf):
    key, states = jax.random.key(0), jnp.zeros((64, 2))

    def check(trained):
        assert np.isfinite(trained[1]["rewards"]).all()

    rlperf(lambda: rollout(key, states), items=128 * 64, unit="env step", check=check)
