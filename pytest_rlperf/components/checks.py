"""Checks of what a test gives a fixture and of what its calls return, without importing a library.

They find any library's arrays in a value, convert them to NumPy's, and check sizes and functions' parameters. They
refuse returned objects that stand for work still to be done, such as coroutines, futures and lazy arrays. These are
recognised by their classes, and no code of a proxy runs. JAX's arrays are allowed: the measuring code waits for them
(see ``devices``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from numbers import Integral, Real
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from pytest_rlperf.devices import devices_of, is_driven
from pytest_rlperf.errors import ComponentError, see
from pytest_rlperf.model.measured import OutputPart

# --------------------------------------------------------------------------- arrays


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of an object; None if it has none, or if reading it raises anything."""
    # Not only AttributeError: a mapping with its keys for attributes raises KeyError, a remote proxy anything.
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def members(value: Any) -> Mapping[str, Any]:
    """Return the attributes that an object itself holds, by name; none if it keeps them elsewhere."""
    held = attribute(value, "__dict__")
    return held if isinstance(held, Mapping) else {}


def leaves(value: Any, path: str = "", *, plain: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield every array within tuples, mappings, dataclasses and the like, with its path.

    With ``plain``, yield numbers and strings as well.
    """
    if attribute(value, "__class__") is None:
        return  # a weak proxy of a freed object: even reading its class raises
    is_array = attribute(value, "shape") is not None and attribute(value, "dtype") is not None
    if is_array or (plain and isinstance(value, (bool, int, float, str))):
        yield path or "output", value
    elif isinstance(value, Mapping) or (callable(attribute(value, "keys")) and hasattr(type(value), "__getitem__")):
        for key in value.keys():  # noqa: SIM118 - TensorDict iterates over rows, not keys
            yield from leaves(value[key], f"{path}[{key!r}]", plain=plain)
    elif isinstance(attribute(value, "_fields"), tuple):
        for name in value._fields:
            yield from leaves(getattr(value, name), f"{path}.{name}".lstrip("."), plain=plain)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from leaves(member, f"{path}[{index}]", plain=plain)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}".lstrip("."), plain=plain)


def arrays_in(value: Any) -> list[tuple[str, Any]]:
    """Return every array of a batch or rollout with its path, or else those in the object's attributes."""
    found = list(leaves(value))
    if not found and not callable(value):
        found = [leaf for name, member in members(value).items() for leaf in leaves(member, name)]
    return found


NO_ARRAYS = "the plugin looks for arrays of NumPy, PyTorch and the like in tuples, lists, mappings and attributes"


def to_numpy(array: Any) -> Any:
    """Return a NumPy view or copy of a NumPy or PyTorch array, as float32 if NumPy lacks its type."""
    import numpy as np

    if callable(attribute(array, "detach")):
        array = array.detach().cpu()
        try:
            array = array.numpy()
        except TypeError:  # bfloat16 and the like
            array = array.float().numpy()
    return np.asarray(array)


# --------------------------------------------------------------------------- what a test gives


def check_count(name: str, value: Any) -> None:
    """Raise ComponentError unless ``value`` is a whole number of at least one."""
    __tracebackhide__ = True
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ComponentError(f"{name}={value!r}: expected a whole number of at least 1")


def num_envs_of(env: Any) -> Any:
    """Return a vector env's ``num_envs`` or ``n_envs``, whatever it is; None if it has neither."""
    found = attribute(env, "num_envs")
    return attribute(env, "n_envs") if found is None else found


def check_items(value: Any) -> None:
    """Raise ComponentError unless ``value`` can be the number of items that one call processes."""
    __tracebackhide__ = True
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ComponentError(f"items={value!r}: one call processes a positive number of items")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None for a built-in that has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    """Return why ``function``'s signature does not take ``arguments``, or ""."""
    signature = signature_of(function)
    try:
        if signature is not None:
            signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""


def takes_nothing(function: Any) -> bool:
    """Whether a function has a signature without parameters."""
    signature = signature_of(function) if callable(function) else None
    return signature is not None and not signature.parameters


def check_takes(call: str, function: Callable[..., Any], arguments: tuple[Any, ...], instead: str) -> None:
    """Raise ComponentError if ``function`` has a signature that does not take ``arguments``.

    ``call`` describes the call that the fixture makes, and ``instead`` what the test can give in place of the function.
    """
    __tracebackhide__ = True
    refused = refusal(function, *arguments)
    if refused:
        signature = inspect.signature(function)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        parameters = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise ComponentError(f"{call}, but {name}{parameters} does not take that ({refused}): {instead}")


# --------------------------------------------------------------------------- what a call returns

T = TypeVar("T")

_DEEPEST = 3  # containers within each other
_LOOKED_AT_MOST = 64  # members of a container

# Classes by their names, each with its module or a package around that.
_LAZY = {("builtins", "map"), ("builtins", "filter"), ("multiprocessing.pool", "IMapIterator")}
_HANDLES = {
    *(("concurrent.futures", "Future"), ("distributed", "Future"), ("multiprocessing.pool", "ApplyResult")),
    *(("ray", "ObjectRef"), ("ray", "ObjectRefGenerator"), ("mlx", "array"), ("cupy", "ndarray")),
}
_WAITS = ("block_until_ready", "wait")
_WAITED_FOR = ("jax", "jaxlib")  # by those who measure


def finished(output: T, call: str) -> T:
    """Return a call's output; ComponentError if it stands for work that may not be done yet.

    Members of tuples, lists and dicts count as well. ``call`` names the call in the error's text.
    """
    __tracebackhide__ = True
    has_run(output, call)
    for place, value in _members(output):
        if _is_handle(value):
            raise ComponentError(
                f"{call} returned {_named(value)}{place}, whose work may not be done yet: wait for the result within "
                f"the call, and return that{see('writing-tests.md#limits')}"
            )
    return output


def has_run(output: T, call: str) -> T:
    """Return a function's output; ComponentError if it or a member is code that has not run, like a generator."""
    __tracebackhide__ = True
    for place, value in _members(output):
        if _is_code(type(value)):
            with suppress(Exception):
                value.close()  # Python warns of a coroutine that was never awaited
            raise ComponentError(
                f"{call} returned {_named(value)}{place}, whose code has not run yet: run it to its end within the "
                "call, with asyncio.run(…) or list(…)"
            )
    return output


def _members(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield an object and the members of containers, each with its place in words."""
    yield path and f" at {path}", value
    pairs: Iterable[tuple[object, Any]] = ()
    if issubclass(type(value), dict):
        pairs = value.items()
    elif issubclass(type(value), tuple | list):
        pairs = enumerate(value)
    for key, member in islice(pairs, _LOOKED_AT_MOST) if depth < _DEEPEST else ():
        yield from _members(member, f"{path}[{key!r}]", depth + 1)


def _named(value: Any) -> str:
    """Return the name of an object's class, and of the function whose code it runs."""
    kind = type(value)
    if kind.__module__ != "builtins":
        return f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__name__.replace("_", " ")
    function = f" of {value.__qualname__}" if hasattr(value, "__qualname__") else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{function}"


def _is_code(kind: type) -> bool:
    """Whether objects of a class are code that has not run."""
    return kind in (CoroutineType, AsyncGeneratorType, GeneratorType) or any(_is_of(kind, *name) for name in _LAZY)


def _is_handle(value: Any) -> bool:
    """Whether an object is a handle to a result that may not be there yet."""
    kind = type(value)
    if any(_is_of(kind, *name) for name in _HANDLES):
        return not is_driven(devices_of([value]))
    if hasattr(kind, "__dask_graph__"):
        with suppress(Exception):  # not every object of a class that dask knows is lazy
            return value.__dask_graph__() is not None
    waits = any(callable(getattr(kind, method, None)) for method in _WAITS)
    return hasattr(kind, "__await__") or (waits and kind.__module__.partition(".")[0] not in _WAITED_FOR)


def _is_of(kind: type, module: str, name: str) -> bool:
    """Whether a class is, or is derived from, a class with that name in that module or package."""
    return any(origin.__name__ == name and f"{origin.__module__}.".startswith(f"{module}.") for origin in kind.__mro__)


# --------------------------------------------------------------------------- outputs, as two processes compare them

_PARTS_MOST = 256  # arrays and values of one output
_SAMPLE_MOST = 64  # values of an array
_BYTES_MOST = 1 << 28  # of an array: the rest of a larger one is ignored


def output_parts(output: Any) -> tuple[OutputPart, ...]:
    """Return the arrays and plain values within an output; none if they cannot be read."""
    found: list[OutputPart] = []
    try:
        for path, value in leaves(output, plain=True):
            if len(found) == _PARTS_MOST:
                break
            part = _plain_part(path, value) if _is_plain(value) else _array_part(path, value)
            found += [] if part is None else [part]
    except Exception:  # of any library's arrays: a comparison of outputs is not worth a failing test
        return ()
    return tuple(found)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _plain_part(path: str, value: bool | float | str) -> OutputPart:
    is_number = not isinstance(value, str) and abs(value) < sys.float_info.max  # and neither infinite nor NaN
    return OutputPart(path, type(value).__name__, repr(value)[:200], (float(value),) if is_number else ())


def _array_part(path: str, value: Any) -> OutputPart | None:
    """Return an array's kind, a digest of its bytes, and values spread over it; None for an array of objects."""
    array = to_numpy(value)
    if array.dtype.hasobject:
        return None
    flat = array.reshape(-1)
    flat = flat[: _BYTES_MOST // max(1, array.itemsize)]
    digest = hashlib.blake2b(flat.tobytes(), digest_size=16).hexdigest()
    kind = f"{array.dtype} {array.shape}"
    return OutputPart(path, kind, digest, tuple(_sample(flat)) if array.dtype.kind in "biuf" else ())


def _sample(flat: Any) -> Iterator[float]:
    """Yield the mean of an array's finite values, then evenly spread values, made finite as by ``nan_to_num``."""
    import numpy as np

    if not flat.size:
        return
    numbers = flat.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    with np.errstate(over="ignore"):
        yield float(np.nan_to_num((finite / max(1, finite.size)).sum()))
    numbers = np.nan_to_num(numbers)
    for index in np.linspace(0, flat.size - 1, min(flat.size, _SAMPLE_MOST)).astype(int):
        yield float(numbers[index])
