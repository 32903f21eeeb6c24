from __future__ import annotations

from typing import Any

import pytest
from library_checks import harvested

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.thunk import thunk_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import standing_probes
from pytest_rlperf.probes.attach import attached
from pytest_rlperf.timers import recording

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch")
rl_utils: Any = pytest.importorskip("sample_factory.algo.utils.rl_utils")

from sample_factory.utils.timing import Timing  # noqa: E402 - where it is installed


@pytest.mark.parametrize("n_envs", [1, 5])
def test_gae(n_envs: int) -> None:
    """The function computes the reference's advantages, of one env and of several."""
    workload = gae_workload(rl_utils.gae_advantages, 32, n_envs, "numpy")
    workload.check()
    assert (workload.items, workload.unit) == (32.0 * n_envs, "transition")
    assert list(harvested(workload, 3)) == ["gae"]


def test_no_conversion_of_gae_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are made once, beforehand, and a call leaves them as they were."""
    workload = gae_workload(rl_utils.gae_advantages, 16, 2, "torch")
    first: Any = workload.call()
    monkeypatch.setattr(torch, "from_numpy", None)
    for _ in range(5):
        assert torch.equal(workload.call(), first)


def test_wrong_gae_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of that name with another discount is no GAE of what it was given."""
    gae_advantages = rl_utils.gae_advantages

    def wrong(*arguments: Any) -> Any:
        return gae_advantages(*arguments[:-1], 0.5)

    monkeypatch.setattr(rl_utils, "gae_advantages", wrong)
    with pytest.raises(ComponentError, match="float64"):
        gae_workload(wrong, 64, 3, "torch").check()
    monkeypatch.setattr(rl_utils, "gae_advantages", lambda *arguments: gae_advantages(*arguments)[:, 1:])
    with pytest.raises(ComponentError, match=r"shape \(63, 3\), expected \(64, 3\)"):
        gae_workload(rl_utils.gae_advantages, 64, 3, "torch").check()


def test_its_timers_are_phases() -> None:
    """Scopes of Sample Factory's own timers make phases of a thunk, and go on timing for themselves."""
    timing = Timing("learner")

    def train() -> None:
        with timing.add_time("train"), timing.timeit("losses"):
            pass

    workload = thunk_workload(train, items=1, unit="call", setup=None, check=None)
    with attached(standing_probes()), recording() as recorded:
        workload.call()
        workload.call()
    assert [(phase.path, phase.count) for phase in recorded.phases(2)] == [("train", 1.0), ("train/losses", 1.0)]
    assert "train" in timing
