from library import PPO


def test_learn(rlperf):
    agent = PPO()
    rlperf(agent.learn, items=512, unit="env step")
