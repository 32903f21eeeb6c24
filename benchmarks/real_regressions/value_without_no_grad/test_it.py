from library import Collector


def test_collect(rlperf_ppo_collect):
    rlperf_ppo_collect(Collector(), n_steps=32, items=256)
