from pettingzoo.sisl import waterworld_v4


def test_waterworld_step(rlperf_vecenv_step):
    rlperf_vecenv_step(waterworld_v4.parallel_env)


def test_waterworld_episode(rlperf):
    env = waterworld_v4.parallel_env(max_cycles=20)

    def episode():
        env.reset(seed=0)
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})

    rlperf(episode, items=20, unit="env step")
