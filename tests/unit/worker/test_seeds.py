"""The seeds of the global generators."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pytest_rlperf.worker.seeds import Seeds

pytestmark = pytest.mark.torch


def test_pytorch_is_seeded_again_only_if_it_may_have_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its seeds takes a millisecond or two, and there is one for each file that is collected."""
    import torch

    seeds, seed = Seeds(0), Mock(wraps=torch.manual_seed)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", seed)
    try:
        seeds.begin_imports()
        drawn = torch.rand(3)
        seeds.begin_imports()
        assert seed.call_count == 2
        seeds.begin_imports()
        assert seed.call_count == 2, "nothing was drawn in between"
        assert torch.equal(torch.rand(3), drawn)
        seeds.begin(7)
        assert seed.call_args.args == (7,)
        drawn = torch.rand(3)
        seeds.begin_imports()
        seeds.begin(7)
        assert torch.equal(torch.rand(3), drawn)
        seeds.begin(8)
        made = seed.call_count
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        seeds.begin(8)
        assert seed.call_count == made + 1, "the device has a generator of its own"
    finally:
        torch.set_rng_state(before)
