"""A first test of Sample Factory's GAE, which does not install beside the suite's other libraries."""

from pytest_rlperf import Measure


def test_sample_factory_gae(rlperf_gae: Measure) -> None:
    """Advantages of a rollout."""
    from sample_factory.algo.utils.rl_utils import gae_advantages

    rlperf_gae(gae_advantages)
