import sys
from pytest_rlperf.timers import recording, hierarchical_timer
from pytest_rlperf.probes.attach import attached
from pytest_rlperf.probes.torch import quieten_ranges
from pytest_rlperf.probes import standing_probes
import torch
from torchrl import _utils
from torchrl.envs import GymEnv

env = GymEnv("Pendulum-v1", device="cpu")
quieten_ranges()
assert not _utils._PROFILING_ENABLED
with recording() as quiet:
    env.rollout(3)
with attached(standing_probes()), recording() as tree:
    assert _utils._PROFILING_ENABLED is (sys.argv[1] == "1")
    with hierarchical_timer("rollout"):
        env.rollout(3)
assert not _utils._PROFILING_ENABLED
print([phase.path for phase in quiet.phases(1)])
print([(phase.path, phase.count) for phase in tree.phases(1)])
