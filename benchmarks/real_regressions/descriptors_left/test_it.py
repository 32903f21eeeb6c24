from library import World


def test_step(rlperf):
    world = World()
    world.reset()
    rlperf(lambda: world.step(1), unit="env step")


def test_short_episode(rlperf):
    def episode():
        with World() as world:
            world.reset()
            for _ in range(10):
                world.step(1)

    rlperf(episode, items=10, unit="env step")
