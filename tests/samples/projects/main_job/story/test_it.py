from learner import gae


def test_gae(rlperf_gae):
    rlperf_gae(gae, n_steps=16, n_envs=8)
