from library import Env


def test_step_with_resets(rlperf):
    env = Env()

    def episode():
        for _ in range(10):
            env.step()

    rlperf(episode, items=10, unit="env step", phases={"reset": env.reset})
