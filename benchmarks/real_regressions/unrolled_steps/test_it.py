from library import Critic


def test_update(rlperf_sac_update):
    critic = Critic(gradient_steps=64)
    rlperf_sac_update(lambda: critic.update(256))
