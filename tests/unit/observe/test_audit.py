"""One audit hook for everything that watches a process, as none can be removed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_rlperf.observe.audit import listen


def test_one_hook_serves_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hears the events that it asked for until it ends, and another's error is its own."""
    added: list[Any] = []
    heard: list[tuple[object, ...]] = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr("pytest_rlperf.observe.audit._LISTENERS", {})

    def fail(_: tuple[object, ...]) -> None:
        raise ValueError

    ends = [
        listen(["open", "import"], lambda arguments: heard.append(("first", *arguments))),
        listen(["open"], fail),
        listen(["open"], lambda arguments: heard.append(("second", *arguments))),
    ]
    (tell,) = added
    tell("open", (1,))
    tell("import", (2,))
    tell("exec", (3,))
    for end in ends:
        end()
        tell("open", (4,))
    assert heard == [("first", 1), ("second", 1), ("first", 2), ("second", 4), ("second", 4)]
    listen(["open"], fail)()
    assert added == [tell]
