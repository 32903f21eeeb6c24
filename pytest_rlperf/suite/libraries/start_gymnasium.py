"""A first test of gymnasium's vector envs, which the suite measures as the reference's."""

from pytest_rlperf import Measure


def test_gymnasium_step(rlperf_vecenv_step: Measure) -> None:
    """One step of every env."""
    import gymnasium

    rlperf_vecenv_step(lambda: gymnasium.make_vec("CartPole-v1", num_envs=8))
