"""Sample Factory: GAE, and a function with the scopes of its `Timing` as phases."""

import torch
from sample_factory.algo.utils.rl_utils import gae_advantages
from sample_factory.algo.utils.running_mean_std import RunningMeanStdInPlace
from sample_factory.utils.timing import Timing


def test_gae(rlperf_gae):
    rlperf_gae(gae_advantages, n_steps=32, n_envs=64)


def test_prepare(rlperf):
    timing = Timing("learner")
    observations, normalizer = torch.randn(2048, 8), RunningMeanStdInPlace((8,))

    def prepare():
        with timing.add_time("prepare"):
            with timing.add_time("clone"):
                batch = observations.clone()
            with timing.add_time("normalize"):
                normalizer(batch)

    rlperf(prepare, items=2048, unit="transition")
