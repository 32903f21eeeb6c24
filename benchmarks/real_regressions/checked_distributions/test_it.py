import gymnasium
import pytest
import torch
from skrl.memories.torch import RandomMemory
from skrl.utils.model_instantiators.torch import gaussian_model


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def policy():
    network = [{"name": "net", "input": "STATES", "layers": [64, 64], "activations": "elu"}]
    box = gymnasium.spaces.Box(-1, 1, (8,))
    return gaussian_model(box, box, "cpu", initial_log_std=0.0, network=network, output="ACTIONS")


def test_act(rlperf, policy):
    states = torch.randn(64, 8)

    @torch.no_grad()
    def act():
        return policy.act({"states": states}, role="policy")[0]

    rlperf(act, items=64, unit="observation")


def test_log_prob(rlperf, policy):
    batch = {"states": torch.randn(512, 8), "taken_actions": torch.rand(512, 8)}
    rlperf(lambda: policy.act(batch, role="policy")[1].sum().backward(), items=512, unit="transition")


def test_memory_sample(rlperf_replay_sample):
    memory = RandomMemory(memory_size=1_000, num_envs=8, device="cpu")
    memory.create_tensor("states", size=8, dtype=torch.float32)
    memory.create_tensor("rewards", size=1, dtype=torch.float32)
    for _ in range(1_000):
        memory.add_samples(states=torch.randn(8, 8), rewards=torch.randn(8, 1))
    rlperf_replay_sample(lambda: memory.sample(["states", "rewards"], batch_size=256)[0], batch_size=256)
