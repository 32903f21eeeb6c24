"""The timers that ``timers.py`` compares, and the process that measures them: armed or not by its environment.

A contender is a statement that ``timeit`` repeats in a loop of its own, so that none disturbs what the interpreter
learns about another. Those whose package is missing are left out. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import sub
from timeit import Timer as Loop
from typing import Any

from shared import take_turns

from pytest_rlperf.timers import ARMED, hierarchical_timer, recording, timed

WARM_UP = 100  # entries, of which the first makes the node

Around = Callable[[], AbstractContextManager[Any]]
Measure = Callable[[], float]


def nothing() -> None:
    """Do what is timed where a function is."""


def _here(loop: Measure) -> float:
    return loop()


def _in_task(loop: Measure) -> float:
    async def task() -> float:
        return loop()

    return asyncio.run(task())


def _in_thread(loop: Measure) -> float:
    taken: list[float] = []
    thread = threading.Thread(target=lambda: taken.append(loop()))
    thread.start()
    thread.join()
    return taken[0]


@dataclass(frozen=True)
class Contender:
    """A statement, what its names mean, and where it runs: ``around`` is open meanwhile.

    ``less`` is the contender whose time is no part of this one's.
    """

    statement: str
    names: dict[str, Any] = field(default_factory=dict)
    around: Around = nullcontext
    runs: Callable[[Measure], float] = _here
    less: str = "empty loop"

    def measure(self, calls: int) -> Measure:
        """Return what gives the nanoseconds of one execution, the loop included."""
        # Names are local in the loop: to look up a global one is no part of anybody's price.
        setup = f"{', '.join(self.names)}, = given" if self.names else "pass"
        loop = Loop(self.statement, setup, time.perf_counter_ns, {"given": tuple(self.names.values())})

        def each_ns() -> float:
            loop.timeit(WARM_UP)
            return loop.timeit(calls) / calls

        def measure() -> float:
            with self.around():
                return self.runs(each_ns)

        return measure


Contenders = dict[str, Contender]

YARDSTICKS: Contenders = {
    "empty loop": Contender("pass", less=""),
    "plain call": Contender("call()", {"call": nothing}),
    "bare clock pair": Contender("clock(); clock()", {"clock": time.perf_counter_ns}),
    "contextlib.nullcontext": Contender("with scope: pass", {"scope": nullcontext()}),
}


# --------------------------------------------------------------------------- ours


def armed() -> Contenders:
    """Return ours where timers are armed: recording, but for one that is switched off."""
    bound = {"scope": hierarchical_timer("bound")}
    by_name = {"timer": hierarchical_timer}
    return {
        "bound": Contender("with scope: pass", bound, recording),
        "by name": Contender("with timer('by name'): pass", by_name, recording),
        "@timed": Contender("call()", {"call": timed(nothing)}, recording, less="plain call"),
        "bound, in a coroutine": Contender("with scope: pass", bound, recording, _in_task),
        "bound, in a second thread": Contender("with scope: pass", bound, recording, _in_thread),
        "bound, switched off": Contender("with scope: pass", bound),
        "by name, switched off": Contender("with timer('by name'): pass", by_name),
    }


def unarmed() -> Contenders:
    """Return ours where timers are not armed."""
    return {
        "bound": Contender("with scope: pass", {"scope": hierarchical_timer("bound")}),
        "by name": Contender("with timer('by name'): pass", {"timer": hierarchical_timer}),
        "@timed": Contender("call()", {"call": timed(nothing)}, less="plain call"),
    }


# --------------------------------------------------------------------------- theirs


def _contextlib() -> Contenders:
    totals = {"scope": 0.0}
    clock = time.perf_counter

    @contextmanager
    def timer(name: str) -> Iterator[None]:
        start = clock()
        try:
            yield
        finally:
            totals[name] += clock() - start

    return {"contextlib.contextmanager": Contender("with timer('scope'): pass", {"timer": timer})}


def _mlagents() -> Contenders:
    timers = importlib.import_module("mlagents_envs.timers")
    return {
        "ML-Agents hierarchical_timer": Contender("with timer('scope'): pass", {"timer": timers.hierarchical_timer}),
        "ML-Agents @timed": Contender("call()", {"call": timers.timed(nothing)}, less="plain call"),
    }


def _sample_factory() -> Contenders:
    timing = importlib.import_module("sample_factory.utils.timing").Timing("ours")
    names = {"timing": timing}
    return {
        "Sample Factory add_time": Contender("with timing.add_time('added'): pass", names),
        "Sample Factory timeit": Contender("with timing.timeit('last'): pass", names),
    }


def _torchrl() -> Contenders:
    utils = importlib.import_module("torchrl._utils")
    names = {"timer": utils._maybe_record_function}

    @contextmanager
    def profiling(on: bool) -> Iterator[None]:
        utils.set_profiling_enabled(on)
        yield
        utils.set_profiling_enabled(False)

    found = {
        "TorchRL timeit": Contender("with timer('scope'): pass", {"timer": utils.timeit}),
        "TorchRL _maybe_record_function, off": Contender("with timer('scope'): pass", names, partial(profiling, False)),
    }
    if utils._PROFILING_ALLOWED:
        found["TorchRL _maybe_record_function, on"] = Contender(
            "with timer('scope'): pass", names, partial(profiling, True)
        )
    return found


def _torch() -> Contenders:
    timer = importlib.import_module("torch.profiler").record_function
    return {"torch record_function": Contender("with timer('scope'): pass", {"timer": timer})}


OTHERS: dict[str, Callable[[], Contenders]] = {
    "mlagents-envs": _mlagents,
    "sample-factory": _sample_factory,
    "torchrl": _torchrl,
    "torch": _torch,
}


def theirs() -> tuple[Contenders, dict[str, str]]:
    """Return the others that are here, and why those that are not are not, by package."""
    found, missing = _contextlib(), {}
    for package, contenders in OTHERS.items():
        try:
            found |= contenders()
        except ImportError as error:
            missing[package] = str(error)
    return found, missing


def main(turns: int, calls: int) -> None:
    """Let all take turns, and print the nanoseconds of each in each of them."""
    others, missing = theirs() if ARMED else ({}, {})
    contenders = YARDSTICKS | (armed() if ARMED else unarmed()) | others
    raw = take_turns(turns, {name: contender.measure(calls) for name, contender in contenders.items()})
    net = {name: list(map(sub, raw[name], raw[one.less])) for name, one in contenders.items() if one.less}
    print(json.dumps({"samples": net, "missing": missing, "same_function": timed(nothing) is nothing}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
