import json, sys
import numpy as np, torch
from pytest_rlperf.components.reference.gae import compute_gae
from pytest_rlperf.components.reference.ppo import PPO, make_vec_env
from pytest_rlperf.components.reference.sac import ReplayBuffer, SAC
from pytest_rlperf.components.libraries import environments
from pytest_rlperf.counters import tally

seed = int(sys.argv[1])
torch.set_num_threads(1)
generator = np.random.default_rng(seed)
buffer = ReplayBuffer(64, 5, 2)
rows, actions = (generator.normal(size=(64, size)).astype(np.float32) for size in (5, 2))
buffer.add(rows, actions, rows[:, 0], rows, rows[:, 0] > 1.0)
agent = SAC(5, 2, buffer, hidden=8, seed=seed)
envs, rolled = make_vec_env("rlperf/Synthetic-v0", 2), make_vec_env("rlperf/Synthetic-v0", 2)
envs.reset(seed=seed)
moves = envs.action_space.sample()
collector = PPO(rolled, hidden=8, seed=seed)
column = rows[:32].T.copy()
calls = [
    lambda: agent.update(8),
    lambda: buffer.sample(8),
    lambda: envs.step(moves),
    lambda: collector.collect(4),
    lambda: compute_gae(column, column, column > 1.0, column[0], 0.99, 0.95),
]
found = []
for call in calls:
    call()
    counted = tally(call, setup=None, probes=(), repetitions=2)
    assert not counted.notes, counted.notes
    found += [sorted([each.path, each.name, each.value] for each in counts) for counts in counted.repetitions]
print(json.dumps(found))
