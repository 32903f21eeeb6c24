import gymnasium
import numpy as np
import pytest


class Painted(gymnasium.Env):
    """An env that renders frames of the size of a small video, without a display."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    @property
    def metadata(self):
        return {"render_modes": ["rgb_array"], "render_fps": 30}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(4, np.float32), 0.0, self.steps == 20, False, {}

    def render(self):
        return np.full((128, 160, 3), self.steps % 256, np.uint8)


@pytest.fixture
def env(tmp_path):
    made = gymnasium.wrappers.RecordVideo(Painted(), str(tmp_path), episode_trigger=lambda episode: True)
    yield made
    made.close()


def test_episode(rlperf, env):
    def episode():
        env.reset()
        while not env.step(0)[2]:
            pass

    rlperf(episode, items=20, unit="env step")
