"""A pytest plugin for bias.py: it shortens pairs, and brings back what biased them, one suspect at a time."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from pytest_rlperf.model.sides import Sides
from pytest_rlperf.pair import turns as pairs
from pytest_rlperf.run import loop
from pytest_rlperf.sides import prepare

VARIANT, SECONDS = "BIAS_VARIANT", "BIAS_SECONDS"


def exchange_trees(patch: pytest.MonkeyPatch) -> None:
    """Have today's tree be base and the commit's be head, in every other respect as before."""
    against = prepare.Preparation.against

    def exchanged(preparation: prepare.Preparation, spec: str) -> Sides:
        sides = against(preparation, spec)
        return replace(sides, base=sides.head, head=sides.base)

    patch.setattr(prepare.Preparation, "against", exchanged)


SUSPECTS = {"trees": exchange_trees}


def pytest_configure() -> None:
    """Change the product in the run's own process, and have its workers do without this plugin."""
    os.environ.pop("PYTEST_PLUGINS")
    patch = pytest.MonkeyPatch()
    patch.setattr(pairs, "PAIR_S", float(os.environ.pop(SECONDS)))
    patch.setattr(loop, "explain", lambda group, outcome, progress: outcome)
    for suspect in os.environ.pop(VARIANT).split("+"):
        if suspect in SUSPECTS:
            SUSPECTS[suspect](patch)
