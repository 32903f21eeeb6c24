"""Whether what a test points at can be called as its fixture would call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_rlperf.errors import ComponentError


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether ``function`` takes ``arguments``; what does not tell its parameters is believed."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def check_takes(call: str, function: Callable[..., Any], arguments: tuple[Any, ...], instead: str) -> None:
    """Raise ComponentError unless ``function`` takes ``arguments``, which is what ``call`` says in words.

    ``instead`` is what to write. What does not tell its parameters is believed.
    """
    __tracebackhide__ = True
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        takes = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise ComponentError(f"{call}, but {name}{takes} does not take that ({error}): {instead}") from None
