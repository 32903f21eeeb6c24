import gymnasium


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync"))
