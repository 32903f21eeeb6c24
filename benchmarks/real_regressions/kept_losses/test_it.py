from library import Agent


def test_update(rlperf_sac_update):
    rlperf_sac_update(Agent().update)
