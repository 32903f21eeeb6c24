from library import Agent


def test_update(rlperf):
    rlperf(Agent().update, unit="update")
