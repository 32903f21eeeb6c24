"""Checks of what a test gives a fixture, made before anything is built from it: sizes, and functions' parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from pytest_rlperf.errors import ComponentError


def check_count(name: str, value: Any) -> None:
    """Raise ComponentError unless ``value`` is a whole number of at least one."""
    __tracebackhide__ = True
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ComponentError(f"{name}={value!r}: expected a whole number of at least 1")


def check_items(value: Any) -> None:
    """Raise ComponentError unless ``value`` can be the number of items that one call processes."""
    __tracebackhide__ = True
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ComponentError(f"items={value!r}: one call processes a positive number of items")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None of a built-in that has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether ``function`` can be called with ``arguments``, as far as its signature shows."""
    return _refusal(signature_of(function), arguments) is None


def check_takes(call: str, function: Callable[..., Any], arguments: tuple[Any, ...], instead: str) -> None:
    """Raise ComponentError where ``function`` has a signature that does not take ``arguments``.

    ``call`` describes the call that the fixture makes, and ``instead`` what the test can give in place of the function.
    """
    __tracebackhide__ = True
    signature = signature_of(function)
    refusal = _refusal(signature, arguments)
    if signature is None or refusal is None:
        return
    name = getattr(function, "__qualname__", type(function).__qualname__)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    parameters = signature.replace(parameters=bare, return_annotation=signature.empty)
    raise ComponentError(f"{call}, but {name}{parameters} does not take that ({refusal}): {instead}")


def _refusal(signature: inspect.Signature | None, arguments: tuple[Any, ...]) -> str | None:
    """Return why a signature does not take arguments, None where it does or there is no signature."""
    if signature is None:
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return None
