"""CleanRL, and scripts like it: functions of the scripts, imported, and a whole script with few steps."""

import runpy
from pathlib import Path

from cleanrl import ppo
from cleanrl import sac_continuous_action as sac

PPO = Path(__file__).parent / "cleanrl" / "ppo.py"


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: ppo.make_envs("CartPole-v1", num_envs=8))


def test_gae(rlperf_gae):
    rlperf_gae(ppo.compute_gae, n_steps=128, n_envs=8, backend="torch")


def test_collect(rlperf_ppo_collect):
    envs = ppo.make_envs("CartPole-v1", num_envs=8)
    rlperf_ppo_collect(ppo.make_collect(ppo.Agent(envs), envs, num_steps=128), items=128 * 8)
    envs.close()


def test_ppo_update(rlperf_ppo_update):
    envs = ppo.make_envs("CartPole-v1", num_envs=8)
    agent = ppo.Agent(envs)
    rollout, update = ppo.make_collect(agent, envs, num_steps=128)(), ppo.make_update(agent)
    rlperf_ppo_update(lambda: update(*rollout))
    envs.close()


def filled_buffer(size):
    rb = sac.ReplayBuffer(size, obs_dim=3, act_dim=1)
    for step in range(size):
        rb.add([0.1, 0.2, 0.3], [0.5], [0.2, 0.3, 0.4], 1.0, step % 200 == 199)
    return rb


def test_sample(rlperf_replay_sample):
    rb = filled_buffer(10_000)
    rlperf_replay_sample(lambda: rb.sample(256), batch_size=256)


def test_sac(rlperf_sac_update):
    actor = sac.Actor(3, 1)
    rlperf_sac_update(sac.make_update(actor, filled_buffer(10_000), batch_size=256, obs_dim=3, act_dim=1))


def test_script(rlperf, monkeypatch):
    """The whole script, with so few steps that its loop runs twice; nothing is imported from it."""
    monkeypatch.setattr("sys.argv", ["ppo.py", "--total-timesteps=2048"])

    def run():
        runpy.run_path(str(PPO), run_name="__main__")

    rlperf(run, items=2048, unit="env step")
