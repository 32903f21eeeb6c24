"""Putting something else in the place of an object's attributes for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_replacing = threading.RLock()  # several threads may replace the same function


class StandIn:
    """Takes the place of an attribute, until :func:`put_back`; AttributeError or TypeError where it cannot.

    It has the attributes of what it stands for, and its class when asked. Probes that are put on it stay on it. Copies
    and pickles are of what it stands for.
    """

    def __init__(self, owner: object, name: str) -> None:
        with _replacing:
            is_own = name in getattr(owner, "__dict__", ())
            vars(self).update(_owner=owner, _name=name, _original=getattr(owner, name), _is_own=is_own)
            setattr(owner, name, self)

    @property
    def __class__(self) -> Any:
        return vars(self)["_original"].__class__

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError("what stands for another object has that one's class")

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_original"], name)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Probe):
            vars(self)[name] = value
        else:
            setattr(vars(self)["_original"], name, value)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        own = vars(self)
        # A method goes with its object: the copy's is another one's.
        return (_itself, (own["_original"],)) if own["_is_own"] else (getattr, (own["_owner"], own["_name"]))


class Probe(StandIn):
    """Stands for a callable: each call is ``call(original, args, kwargs)``."""

    def __init__(self, owner: object, name: str, call: Call) -> None:
        vars(self)["_call"] = call
        super().__init__(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``call``."""
        own = vars(self)
        return own["_call"](own["_original"], args, kwargs)


def put_back(stand_in: StandIn) -> None:
    """Put back what there was; what somebody else has put there since stays."""
    own = vars(stand_in)
    owner, name, original = own["_owner"], own["_name"], own["_original"]
    with _replacing:
        now = getattr(owner, name, None)
        if now is stand_in and own["_is_own"]:
            setattr(owner, name, original)
        elif now is stand_in:
            delattr(owner, name)
        while isinstance(now, Probe):  # somebody else's, over this one
            above = vars(now)
            if above["_original"] is stand_in:
                above.update(_original=original, _is_own=own["_is_own"])
            now = above["_original"]


def _itself(value: object) -> object:
    return value
