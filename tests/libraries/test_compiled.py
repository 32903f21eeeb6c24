"""Programs that libraries compile are counted and named, with what has changed since the last ones."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pytest_rlperf.counters.compiled import Programs
from pytest_rlperf.model.measured import Compiled


def inner(value: Any) -> Any:
    return 2 * value


def test_of_numba() -> None:
    """By the types of their inputs; what a function calls is compiled with it, and a cached program is none."""
    numba = pytest.importorskip("numba")
    programs = Programs()
    called = numba.njit(inner)

    def outer(value: Any) -> Any:
        return called(value) + 1

    compiled = numba.njit(outer)
    for value in (1, 2, 1.5):
        compiled(value)
    assert programs.count() == 2
    name = f"{__name__}.{test_of_numba.__name__}.<locals>.outer"
    assert programs.last()[0] == Compiled(name, ("float64",), ("int64",))


def test_of_torch() -> None:
    """With what its guards say where it was compiled before; what the collector runs within is no program of a call."""
    torch = pytest.importorskip("torch")
    usual, note = gc.get_threshold(), lambda phase, _: len(phase)

    def doubled_here(rows: Any) -> Any:
        return rows + rows

    torch._dynamo.reset()
    programs = Programs()
    compiled = torch.compile(doubled_here, backend="eager", dynamic=False)
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        for size in (3, 4):
            compiled(torch.ones(size))
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(note)
    assert programs.count() == 2
    last = next(each for each in programs.last() if each.function == "doubled_here")
    assert "size mismatch" in last.why


def test_of_jax() -> None:
    """By the name of the function, for each shape."""
    jax = pytest.importorskip("jax")

    def tripled_here(rows: Any) -> Any:
        return rows * 3

    compiled, rows = jax.jit(tripled_here), [jax.numpy.ones(size) for size in (3, 4, 4)]
    programs = Programs()
    for each in rows:
        compiled(each).block_until_ready()
    assert programs.count() == 2
    assert "tripled_here" in programs.last()[0].function
