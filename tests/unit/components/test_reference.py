from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_rlperf.components.reference.gae import compute_gae, gae_float64

if TYPE_CHECKING:
    from pytest_rlperf.components.reference.sac import ReplayBuffer

ppo: Any
sac: Any

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def torch_with_one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip tests marked `torch` where a library is missing, and give the others one thread and the old number back."""
    if request.node.get_closest_marker("torch") is None:
        yield
        return
    global ppo, sac
    torch = pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    from pytest_rlperf.components.reference import ppo, sac

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trajectories(seed: int, n_steps: int, n_envs: int, done_rate: float) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, n_steps, n_envs))
    return rewards, values, (rng.random((n_steps, n_envs)) < done_rate).astype(np.float64), rng.normal(size=n_envs)


def gae_as_a_sum(rewards: Array, values: Array, dones: Array, last_values: Array, gamma: float, lam: float) -> Array:
    """Return the advantages as eq. 16 states them: the sum of (gamma lam)^l delta_t+l up to the episode's end."""
    next_values = np.vstack((values[1:], last_values))
    deltas = rewards + gamma * next_values * (1 - dones) - values
    advantages = np.zeros_like(rewards)
    for t, env in np.ndindex(*rewards.shape):
        for later in range(t, len(rewards)):
            advantages[t, env] += (gamma * lam) ** (later - t) * deltas[later, env]
            if dones[later, env]:
                break
    return advantages


shapes = {
    "seed": st.integers(0, 2**32 - 1),
    "n_steps": st.integers(1, 24),
    "n_envs": st.integers(1, 5),
    "done_rate": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "gamma": st.floats(0.0, 1.0),
    "lam": st.floats(0.0, 1.0),
}


@settings(deadline=None)
@given(**shapes)
def test_gae_is_the_sum_of_the_paper(
    seed: int, n_steps: int, n_envs: int, done_rate: float, gamma: float, lam: float
) -> None:
    """Both versions equal eq. 16 written out as a sum, and their returns are advantage plus value."""
    arrays = trajectories(seed, n_steps, n_envs, done_rate)
    expected = gae_as_a_sum(*arrays, gamma, lam)
    for gae in (compute_gae, gae_float64):
        advantages, returns = gae(*arrays, gamma, lam)
        np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(returns, expected + arrays[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gae", [compute_gae, gae_float64])
def test_gae_refuses_shapes_that_would_broadcast(gae: Any) -> None:
    """Shapes that do not belong together, no steps, and integer rewards are errors that show what was given."""
    rewards, values, dones, last_values = trajectories(seed=5, n_steps=6, n_envs=2, done_rate=0.3)
    with pytest.raises(ValueError, match=r"got \(6, 1\)"):
        gae(rewards, values[:, :1], dones, last_values)
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        gae(rewards, values, dones, last_values[None])
    with pytest.raises(ValueError, match=r"float64 \(0, 2\)"):
        gae(rewards[:0], values[:0], dones[:0], last_values)
    with pytest.raises(ValueError, match="int64"):
        gae(rewards.astype(np.int64), values, dones, last_values)


def test_the_package_and_gae_need_no_torch() -> None:
    """Computing GAE loads neither PyTorch nor gymnasium."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['gymnasium'] = None\n"
        "import numpy as np\n"
        "from pytest_rlperf.components.reference.gae import compute_gae\n"
        "a = np.ones((3, 2)); compute_gae(a, a, a, a[0])\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.torch
@pytest.mark.filterwarnings("error")
def test_synthetic_env_keeps_gymnasiums_contract() -> None:
    """Gymnasium's own checker finds nothing to warn of in the environment made by its id."""
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    from pytest_rlperf.components.reference.ppo import SYNTHETIC_ID

    env = gymnasium.make(SYNTHETIC_ID, episode_steps=20)
    check_env(env.unwrapped, skip_render_check=True)


def add_numbered(buffer: ReplayBuffer, first: int, n: int) -> None:
    """Add transitions first, first + 1, ... with every column saying which transition it belongs to."""
    number = np.arange(first, first + n, dtype=np.float32)
    buffer.add(
        np.stack((number, -number), axis=1),
        number[:, None] + 0.25,
        2 * number,
        number[:, None] + [1.0, 2.0],
        number % 2,
    )


def sampled_numbers(buffer: ReplayBuffer, batch_size: int) -> Array:
    """Return which transitions were sampled, having checked that every row holds one transition whole."""
    batch = buffer.sample(batch_size)
    number: Array = batch.obs[:, 0].numpy()
    assert [tuple(column.shape) for column in batch] == [
        (batch_size, k) if k else (batch_size,) for k in (2, 1, 0, 2, 0)
    ]
    np.testing.assert_array_equal(batch.obs[:, 1], -number)
    np.testing.assert_array_equal(batch.actions[:, 0], number + 0.25)
    np.testing.assert_array_equal(batch.rewards, 2 * number)
    np.testing.assert_array_equal(batch.next_obs, number[:, None] + [1.0, 2.0])
    np.testing.assert_array_equal(batch.dones, number % 2)
    return number


@pytest.mark.torch
def test_replay_keeps_the_newest_transitions() -> None:
    """After any number of batches the buffer holds exactly the last `capacity` transitions, each in one piece."""
    buffer = sac.ReplayBuffer(capacity=10, obs_dim=2, act_dim=1)
    added = 0
    for n in (4, 4, 4, 10, 1, 7, 0, 9):
        add_numbered(buffer, added, n)
        added += n
        assert len(buffer) == min(added, 10)
        assert set(sampled_numbers(buffer, 400)) == set(range(max(0, added - 10), added))


def small_sac(seed: int = 0, **options: Any) -> Any:
    rng = np.random.default_rng(seed)
    buffer = sac.ReplayBuffer(capacity=64, obs_dim=3, act_dim=2, seed=seed)
    obs, next_obs = rng.normal(size=(2, 64, 3))
    buffer.add(obs, rng.uniform(-1, 1, (64, 2)), rng.normal(size=64), next_obs, rng.random(64) < 0.2)
    return sac.SAC(3, 2, buffer, hidden=16, seed=seed, **options)


@pytest.mark.torch
def test_sac_update_moves_every_parameter() -> None:
    """One update changes actor, both critics, the temperature and the targets, and returns finite, detached losses."""
    import torch

    agent = small_sac()
    modules = {"actor": agent.actor, "critic": agent.critic, "target": agent.target_critic}
    before = {
        f"{name}.{key}": value.clone() for name, module in modules.items() for key, value in module.state_dict().items()
    }
    log_alpha = agent.log_alpha.detach().clone()
    losses = agent.update(32)
    for name, module in modules.items():
        for key, value in module.state_dict().items():
            assert not torch.equal(value, before[f"{name}.{key}"]), f"{name}.{key} did not move"
    assert agent.log_alpha != log_alpha
    for loss in losses:
        assert loss.shape == ()
        assert not loss.requires_grad
        assert torch.isfinite(loss)


@pytest.mark.torch
def test_sac_target_q_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is r + gamma (1 - done) (min(q1, q2) - alpha log pi), with every ingredient known."""
    import torch

    agent = small_sac(gamma=0.5)
    log_probs = torch.tensor([0.5, -1.0, 2.0])
    monkeypatch.setattr(agent.actor, "sample", lambda obs, generator: (obs[:, :2], log_probs))
    monkeypatch.setattr(agent.target_critic, "forward", lambda obs, actions: (actions[:, 0], actions[:, 1]))
    agent.log_alpha.data.fill_(np.log(2.0))
    batch = sac.Batch(
        obs=torch.zeros(3, 3),
        actions=torch.zeros(3, 2),
        rewards=torch.tensor([1.0, 10.0, 100.0]),
        next_obs=torch.tensor([[3.0, 4.0, 0.0], [7.0, 6.0, 0.0], [5.0, 5.0, 0.0]]),
        dones=torch.tensor([0.0, 0.0, 1.0]),
    )
    # 1 + .5 (3 - 2 × .5);  10 + .5 (6 + 2 × 1);  terminated: the reward alone
    torch.testing.assert_close(agent.target_q(batch), torch.tensor([2.0, 14.0, 100.0]))


def counting_envs(lengths: list[int], truncates: bool) -> Any:
    """Return environments whose episodes have these lengths, whose observation counts steps and whose reward is 1."""
    import gymnasium

    class Counting(gymnasium.Env[Array, Any]):
        observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, length: int) -> None:
            self.length = length
            self.steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
            self.steps = 0
            return np.array([0], np.float32), {}

        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            ended = self.steps == self.length
            return np.array([self.steps], np.float32), 1.0, ended and not truncates, ended and truncates, {}

    return gymnasium.vector.SyncVectorEnv([lambda n=n: Counting(n) for n in lengths])  # type: ignore[misc]


def cartpole_ppo(n_envs: int = 4, **options: Any) -> Any:
    return ppo.PPO(ppo.make_vec_env("CartPole-v1", n_envs), **options)


@pytest.mark.torch
def test_ppo_rollout_is_what_the_environments_said() -> None:
    """Stepping fresh environments with the recorded actions gives the recorded observations, rewards and ends."""
    rollout = cartpole_ppo(seed=3).collect(80)
    envs = ppo.make_vec_env("CartPole-v1", 4)
    obs, _ = envs.reset(seed=3)
    for t in range(80):
        np.testing.assert_array_equal(rollout.obs[t], obs)
        obs, rewards, terminated, truncated, _ = envs.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
        np.testing.assert_array_equal(rollout.dones[t], terminated | truncated)


@pytest.mark.torch
@pytest.mark.parametrize("truncates", [True, False], ids=["truncated", "terminated"])
def test_ppo_advantages_at_an_episodes_end(truncates: bool) -> None:
    """A truncated episode is bootstrapped with its final observation's value, a terminated one with 0; none leaks."""
    agent = ppo.PPO(counting_envs([2], truncates), gamma=0.9, lam=0.8)
    rollout = agent.collect(4)  # two steps, the reset row, and the first step of the next episode
    np.testing.assert_array_equal(rollout.obs[:, 0, 0], [0, 1, 2, 0])
    v = rollout.values[:, 0].astype(float)
    assert v[2] != 0
    second = 1 + 0.9 * (v[2] if truncates else 0) - v[1]
    first = 1 + 0.9 * v[1] - v[0] + 0.9 * 0.8 * second
    advantages = rollout.advantages[:, 0].copy()
    returns = rollout.returns[:, 0].copy()
    next_v = float(agent.collect(1).values[0, 0])
    np.testing.assert_allclose(advantages, [first, second, 0, 1 + 0.9 * next_v - v[3]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(returns, advantages + v, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("env_id", ["CartPole-v1", "rlperf/Synthetic-v0"])
def test_ppo_log_probabilities_agree(env_id: str) -> None:
    """The stored values of a rollout equal those of evaluating its actions, and of PyTorch's own distributions."""
    import torch
    from torch.distributions import Categorical, Independent, Normal

    agent = ppo.PPO(ppo.make_vec_env(env_id, 4))
    rollout = agent.collect(16)
    obs, actions = torch.from_numpy(rollout.obs).flatten(0, 1), torch.from_numpy(rollout.actions).flatten(0, 1)
    head = agent.model.policy(obs)
    discrete = agent.model.discrete
    policy: Any = Categorical(logits=head) if discrete else Independent(Normal(head, agent.model.log_std.exp()), 1)
    log_probs, entropies, values = agent.model.evaluate(obs, actions)
    torch.testing.assert_close(log_probs, policy.log_prob(actions))
    torch.testing.assert_close(entropies, policy.entropy())
    torch.testing.assert_close(log_probs, torch.from_numpy(rollout.log_probs).flatten(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values, torch.from_numpy(rollout.values).flatten(), rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_ppo_update_uses_valid_rows_only() -> None:
    """Nonsense in the reset rows does not change an update, and every parameter moves."""
    import torch

    agents = [ppo.PPO(counting_envs([2, 3], truncates=False)) for _ in range(2)]
    rollouts = [agent.collect(24) for agent in agents]
    before = [parameter.clone() for parameter in agents[0].model.parameters()]
    rollouts[1].obs[~rollouts[1].valid] = np.nan
    losses = [agent.update(rollout) for agent, rollout in zip(agents, rollouts, strict=True)]
    assert losses[0] == losses[1]
    assert all(torch.isfinite(loss) for loss in losses[0])
    for parameter, old in zip(agents[0].model.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)


@pytest.mark.torch
def test_ppo_clips_by_hand() -> None:
    """Where the policy has become twice as likely, the objective counts gains as 1.2 of it and losses as 2."""
    import torch

    agent = cartpole_ppo()
    obs, actions = torch.zeros(4, 4), torch.tensor([0, 1, 0, 1])
    log_probs, entropies, values = (tensor.detach() for tensor in agent.model.evaluate(obs, actions))
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])  # standardised: times sqrt(3) / 2, the sample's deviation
    losses = agent._update_minibatch(obs, actions, log_probs - np.log(2.0), advantages, values + 3.0)
    expected = torch.tensor([(2.0 - 1.2) / 2 * np.sqrt(3) / 2, 0.5 * 9.0, float(entropies.mean())])
    torch.testing.assert_close(losses, expected, check_dtype=False)
