"""Whose native code an instruction runs, by what its expression has loaded before it."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

from pytest_rlperf.attribution.owners import PYTHON, PYTORCH, NativeOwners

_HALVES = re.compile(r"(?:LOAD|STORE)_FAST(?:_BORROW)?")
_ENDS = ("STORE_", "POP_TOP", "POP_JUMP", "RETURN_", "JUMP_", "END_FOR", "FOR_ITER", "YIELD_", "DELETE_")
_MOVES = ("SWAP", "ROT_", "COPY", "DUP_", "SEND")  # values are not where they were loaded
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_KEYS = {"BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "BINARY_SLICE": 2, "STORE_SLICE": 2}
_OF_THE_LAST = ("UNARY_", "GET_ITER", "UNPACK_", "STORE_FAST", "POP_TOP")
_OPERATORS = ("BINARY_", "INPLACE_", "COMPARE_")
_MISSING = object()


@dataclass(frozen=True)
class Step:
    """An instruction, or half of one that does two things; ``effect`` is by how many values the stack grows."""

    offset: int
    name: str
    argument: Any
    effect: int


def steps_of(code: CodeType) -> list[Step]:
    """Return a function's instructions in their order."""
    return [step for one in dis.get_instructions(code) for step in _steps(one)]


def _steps(one: dis.Instruction) -> Iterator[Step]:
    halves = _HALVES.findall(one.opname)
    if len(halves) == 2:  # from Python 3.13 on
        for half, name in zip(halves, one.argval, strict=True):
            yield Step(one.offset, half, name, 1 if half.startswith("LOAD_") else -1)
    else:
        yield Step(one.offset, one.opname, one.argval, dis.stack_effect(one.opcode, one.arg, jump=False))


class Expressions:
    """Reads a function's expressions backwards, with the values that its variables have at the time."""

    def __init__(self, steps: list[Step], frame: FrameType, natives: NativeOwners) -> None:
        self._steps = steps
        self._frame = frame
        self._natives = natives

    def owner(self, index: int) -> str | None:
        """Return the extension whose code a step runs, None for none: where it is not sure, the nearest value's."""
        sure = self._sure(index)
        if sure is not None:
            return None if sure == PYTHON else sure
        owners = (self._natives.of_object(value) for value in self._values_before(index))
        return next((owner for owner in owners if owner is not None), None)

    def _sure(self, index: int) -> str | None:
        """Return whose the work of a step, and what comes of it, surely is: indexing is the container's."""
        name = self._steps[index].name
        if name in _KEYS:
            return self._top(self._begin(index, _KEYS[name]))
        if name.startswith(_OPERATORS):
            return _of_operator(self._top(self._begin(index, 1)), self._top(index))
        if name.startswith(_OF_THE_LAST):
            return self._top(index)
        begin = self._begin(index + 1, 1) if name.startswith("CALL") else None
        called = None if begin is None else self._loaded(begin)[0]
        return None if called == PYTHON else called  # float(array) is the array's

    def _top(self, end: int | None) -> str | None:
        """Return whose the value is that is on top of the stack before a step, None where that is not sure."""
        begin = None if end is None else self._begin(end, 1)
        if begin is None or end is None:
            return None
        owner, at = self._loaded(begin)
        if at == end:
            return owner
        return self._sure(end - 1)

    def _begin(self, end: int, values: int) -> int | None:
        """Return where those many values begin to be loaded that are on top of the stack before a step."""
        for at in range(end - 1, -1, -1):
            step = self._steps[at]
            if "JUMP" in step.name or step.name.startswith(_ENDS + _MOVES):
                return None
            values -= step.effect
            if values <= 0:
                return at
        return None

    def _loaded(self, at: int) -> tuple[str | None, int]:
        """Return whose the value is that is loaded at a step, with its attributes, and where that has ended."""
        at += self._steps[at].name == "PUSH_NULL"
        if self._steps[at].name.startswith(_CONSTANTS):
            return PYTHON, at + 1
        if not _is_variable(self._steps[at]):
            return None, at
        value, at = self._attribute(self._variable(at), at + 1, len(self._steps))
        if value is _MISSING or self._steps[at].name.startswith(_ATTRIBUTES):
            return None, at
        return self._natives.of_object(value) or PYTHON, at

    def _values_before(self, index: int) -> Iterator[object]:
        """Yield what an expression has loaded by a step, the last first: variables, and attributes of them."""
        for at in range(index - 1, -1, -1):
            if _is_variable(self._steps[at]):
                yield self._attribute(self._variable(at), at + 1, index)[0]
            elif self._steps[at].name.startswith(_ENDS):
                return

    def _variable(self, at: int) -> object:
        name = self._steps[at].argument
        return self._frame.f_locals.get(name, self._frame.f_globals.get(name, _MISSING))

    def _attribute(self, value: object, at: int, end: int) -> tuple[object, int]:
        """Follow the attributes that are loaded from a value next, as far as that runs nothing; say where that ends."""
        while at < end and self._steps[at].name.startswith(_ATTRIBUTES):
            held = getattr(value, "__dict__", None) if not isinstance(value, ModuleType) else vars(value)
            name = self._steps[at].argument
            following = held.get(name, _MISSING) if isinstance(held, dict) else _MISSING
            if following is _MISSING:
                break
            value, at = following, at + 1
        return value, at


def _of_operator(left: str | None, right: str | None) -> str | None:
    """Return whose an operator is: NumPy leaves those on one of PyTorch's tensors to PyTorch."""
    if PYTORCH in {left, right}:
        return PYTORCH
    return None if None in {left, right} else left if right == PYTHON else right


def _is_variable(step: Step) -> bool:
    return step.name.startswith("LOAD_") and not step.name.startswith(_ATTRIBUTES + _CONSTANTS)
