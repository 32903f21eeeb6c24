"""What instructions of the interpreter took, and whose native code they ran."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TypeAlias

from pytest_rlperf.attribution.expressions import Expressions, Step, steps_of
from pytest_rlperf.attribution.owners import PYTHON, NativeOwners, owner_of_code

_BARE = ("LOAD_FAST", "LOAD_CONST", "LOAD_DEREF", "JUMP_", "PRECALL")  # next to no work
# What may run native code that is no call, or call what the interpreter has no event for.
_NATIVE = (
    *("BINARY_", "INPLACE_", "UNARY_", "COMPARE_", "CONTAINS_", "STORE_SUBSCR", "STORE_SLICE", "GET_ITER", "FOR_ITER"),
    *("UNPACK_", "CALL"),
)
_FREES = ("STORE_FAST", "POP_TOP")  # an array that nobody has any more
_STALL_NS = 5000  # an instruction of the interpreter's own never takes so long: the machine was busy


@dataclass
class _Site:
    """An instruction: how often it ran, and nanoseconds with what watching it costs.

    ``owner`` is the extension whose native code it runs, None where that is the interpreter's. ``later`` is the same
    instruction after a Python function has returned that it called.
    """

    code: CodeType
    name: str
    owner: str | None
    later: _Site | None = None
    count: int = 0
    total_ns: int = 0

    def excess_s(self, floor_ns: float) -> float:
        """Return the seconds above so many nanoseconds each time, never less than none."""
        return max(0.0, self.total_ns - self.count * floor_ns) / 1e9


Cut: TypeAlias = list[tuple[_Site, int, int]]


class Instructions:
    """Adds up what instructions take, of Python functions that are nobody else's.

    Whoever watches says when one begins, and when the time since then is no longer its own.
    """

    def __init__(self, natives: NativeOwners, watched: CodeType | None = None) -> None:
        self._natives = natives
        self._sites: dict[tuple[int, int], _Site] = {}  # by identity: equal code may be another's
        self._watched: dict[int, tuple[CodeType, bool]] = {} if watched is None else {id(watched): (watched, True)}
        self._steps: dict[int, list[Step]] = {}
        self._current: _Site | None = None
        self._since_ns = 0

    def watches(self, code: CodeType) -> bool:
        """Whether a function's instructions are to be timed."""
        known = self._watched.get(id(code))
        if known is None:
            known = self._watched[id(code)] = code, owner_of_code(code) == PYTHON
        return known[1]

    def end(self, now_ns: int) -> None:
        """Charge the current instruction with the time it took."""
        site, self._current = self._current, None
        if site is not None:
            elapsed_ns = now_ns - self._since_ns
            if elapsed_ns < _STALL_NS or site.owner is not None:
                site.count += 1
                site.total_ns += elapsed_ns

    def begin(self, frame: FrameType, offset: int) -> None:
        """Have an instruction be the current one."""
        key = id(frame.f_code), offset
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = self._site(frame, offset)
        self._current = site
        self._since_ns = time.perf_counter_ns()

    def forget(self) -> None:
        """Charge nobody: the current instruction is a call that profilers see, or none at all."""
        self._current = None

    def go_on(self) -> None:
        """Go on with the current instruction, less what was between."""
        self._since_ns = time.perf_counter_ns()

    def resume(self, frame: FrameType | None) -> None:
        """Go on with the instruction that called a Python function, which has returned now.

        NumPy's functions ask a Python function first whose arrays they are given, and then work.
        """
        site = None if frame is None else self._sites.get((id(frame.f_code), frame.f_lasti))
        if site is None:
            self._current = None
            return
        self._current = site.later = site.later or _Site(site.code, site.name, site.owner)
        self._since_ns = time.perf_counter_ns()

    def _site(self, frame: FrameType, offset: int) -> _Site:
        code = frame.f_code
        steps = self._steps.setdefault(id(code), [])
        if not steps:
            steps.extend(steps_of(code))
        index = next(index for index, step in enumerate(steps) if step.offset == offset)
        name = steps[index].name
        is_native = name.startswith(_NATIVE + _FREES)
        return _Site(code, name, Expressions(steps, frame, self._natives).owner(index) if is_native else None)

    def cut(self) -> Cut:
        """Return what was added up since the last cut, and begin anew."""
        sites = [one for site in self._sites.values() for one in (site, site.later) if one is not None and one.count]
        cut = [(site, site.count, site.total_ns) for site in sites]
        for site in sites:
            site.count = site.total_ns = 0
        return cut

    def paste(self, cut: Cut) -> None:
        """Add up again what was cut."""
        for site, count, total_ns in cut:
            site.count += count
            site.total_ns += total_ns

    def native_s(self, extra_s: Mapping[str, float]) -> dict[tuple[CodeType, str], float]:
        """Return seconds in native code, over all calls made, by the Python function they are in and the extension.

        ``extra_s`` is how much longer an extension's instruction takes where it is watched.
        """
        bare = [site for site in self._sites.values() if site.name.startswith(_BARE) and site.count]
        usual_ns = _mean_ns(bare)
        of_code: dict[int, list[_Site]] = {}
        for site in bare:
            of_code.setdefault(id(site.code), []).append(site)
        found: dict[tuple[CodeType, str], float] = {}
        for site in self._sites.values():
            if site.owner is not None:
                # Tracing costs more in functions of many variables: each has its own floor.
                floor_ns = _mean_ns(of_code[id(site.code)]) if id(site.code) in of_code else usual_ns
                floor_ns += 0.0 if site.name.startswith(_FREES) else 1e9 * extra_s.get(site.owner, 0.0)
                excess_s = sum(one.excess_s(floor_ns) for one in (site, site.later) if one is not None)
                found[site.code, site.owner] = found.get((site.code, site.owner), 0.0) + excess_s
        return found


def _mean_ns(sites: list[_Site]) -> float:
    """Return the mean of all times an instruction ran: where there is a loop, what is in the loop counts."""
    return sum(site.total_ns for site in sites) / max(1, sum(site.count for site in sites))
