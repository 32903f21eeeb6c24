"""Any callable as a workload: the contract everything else is a convenience over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_rlperf.components.checks import check_items, check_takes, finished, has_run
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload


def thunk_workload(
    fn: Callable[[], Any],
    *,
    items: float = 1,
    unit: str = "call",
    setup: Callable[[], Any] | None = None,
    check: Callable[[Any], Any] | None = None,
) -> Workload:
    """Return ``fn`` as a workload; ComponentError where it cannot be called or counted."""
    __tracebackhide__ = True
    if not callable(fn):
        raise ComponentError(f"rlperf(fn) measures a callable, not {type(fn).__qualname__}: rlperf(lambda: …)")
    for name, function in (("setup", setup), ("check", check)):
        if function is not None and not callable(function):
            raise ComponentError(f"{name}={function!r}: a callable, not {type(function).__qualname__}")
    check_takes("rlperf calls fn without arguments", fn, (), "rlperf(lambda: fn(…))")
    if check is not None:
        check_takes("check is called with what fn returned", check, (None,), "check=lambda output: …")
    if not isinstance(unit, str):
        raise ComponentError(f"unit={unit!r}: what is counted, as text")
    check_items(items)

    def run_check() -> object:
        __tracebackhide__ = True
        if setup is not None:
            has_run(setup(), "setup()")
        output = finished(fn(), "fn()")
        if check is not None:
            has_run(check(output), "check(output)")
        return output

    return Workload(
        component="callable",
        call=fn,
        items=float(items),
        unit=unit,
        check=run_check,
        setup=setup,
        holds=(fn,) if setup is None else (fn, setup),
    )
