"""A pytest plugin for bias.py: it shortens pairs, and brings back what biased them, one suspect at a time."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.run.endpoints import PairDriver
from pytest_rlperf.run.schedule import Steps
from pytest_rlperf.run.test import OpenTest
from pytest_rlperf.sides import prepare

VARIANT, SECONDS = "BIAS_VARIANT", "BIAS_SECONDS"


def exchange_trees(patch: pytest.MonkeyPatch) -> None:
    """Exchange the sides' trees: today's is the base's, and the commit's is the head's."""
    against = prepare.Preparation.against

    def exchanged(preparation: prepare.Preparation, spec: str) -> Sides:
        sides = against(preparation, spec)
        return replace(sides, base=sides.head, head=sides.base)

    patch.setattr(prepare.Preparation, "against", exchanged)


def shorten_pairs(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let pairs take slices for so many seconds, beside the time in which they warm up."""
    ask = OpenTest.ask
    warm_s: dict[PairDriver, float] = {}

    def asked(test: OpenTest, driver: PairDriver, order: wire.Order[Any], limit_s: float | None = None) -> Steps[Any]:
        if isinstance(order, wire.TakePair):
            order = msgspec.structs.replace(order, share_s=min(order.share_s, warm_s[driver] + seconds))
        answer = yield from ask(test, driver, order, limit_s)
        if isinstance(answer, wire.Warmed):
            warm_s[driver] = answer.base.warm_up_s + answer.head.warm_up_s
        return answer

    patch.setattr(OpenTest, "ask", asked)


SUSPECTS = {"trees": exchange_trees}


def pytest_configure() -> None:
    """Change the product in the run's own process, and have its workers do without this plugin."""
    os.environ.pop("PYTEST_PLUGINS")
    patch = pytest.MonkeyPatch()
    shorten_pairs(patch, float(os.environ.pop(SECONDS)))
    for suspect in os.environ.pop(VARIANT).split("+"):
        if suspect in SUSPECTS:
            SUSPECTS[suspect](patch)
