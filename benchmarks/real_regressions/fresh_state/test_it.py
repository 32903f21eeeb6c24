from library import Env


def test_step(rlperf):
    env = Env()
    rlperf(env.step, unit="env step", phases={"state": "state"})
