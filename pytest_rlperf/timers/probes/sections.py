"""Phases of an actor-critic update that is one function: the whole of it, cut where PyTorch tells that a part ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from pytest_rlperf.model import Mode, Timing
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.probes.attach import Undo, put, together
from pytest_rlperf.timers.probes.functions import replace_function, replace_method
from pytest_rlperf.timers.probes.parts import find_parts
from pytest_rlperf.timers.probes.torch import Backward, OptimizerSteps
from pytest_rlperf.timers.scope import PROCESS, Scope
from pytest_rlperf.timers.stack import Stack

_POLYAK = "polyak"


@dataclass
class _Update:
    """One update as it runs: the section it is in, and those that have ended.

    A section without a name is a gap: what comes next says what it was for.
    """

    stack: Stack
    root: Node
    node: Node
    name: str | None = None
    ended: list[tuple[str, Node]] = field(default_factory=list)


class UpdateSections:
    """Cuts an update into ``sample``, ``target_q``, ``critic``, ``actor``, ``alpha`` and ``polyak``.

    Sampling lasts until the first module runs. A module that runs without gradients, or is a target, begins
    ``target_q``; the actor with gradients begins ``actor``; a critic with gradients begins ``critic``, unless it judges
    the actor's actions. The step of an optimizer ends its section; what comes between that and the next event belongs
    to what the next event is of, and after the last one to none. So what has no phase is no more than a tail. Backward
    passes, optimizer steps and modules' forward passes are phases within.
    """

    def __init__(self, agent: object) -> None:
        self._parts = find_parts(agent)
        self._update: _Update | None = None
        self._done: list[_Update] = []
        self._depth = 0

    def __bool__(self) -> bool:
        """Whether there is anything to cut at."""
        return bool(self._parts.optimizers)

    def around(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return ``call``, one update, with its sections told while something records."""

        def run() -> object:
            stack = PROCESS.current()
            if stack is None:
                return call()
            node = Node("", Mode.SUM, stack.node)
            self._update = _Update(stack, stack.node, node)
            node.start_ns = PROCESS.clock()
            stack.node = node
            try:
                return call()
            finally:
                self._cut()
                stack.node = self._update.root
                self._done.append(self._update)
                self._update = None

        return run

    def attach(self) -> Undo:
        """Watch from now on; undoing it puts what was seen into the tree."""
        parts = self._parts
        undoes: list[Undo] = [self._settle]
        for holder, buffer in parts.buffers:
            undoes += replace_method(holder, buffer, "sample", partial(self._around, "sample"))
        for module, kind in parts.modules:
            undoes += self._watch(module, kind)
        undoes += self._watch_optimizers()
        for function in parts.soft_updates:
            undoes.append(replace_function(function, self._around(_POLYAK, function)))
        for owner, name in parts.soft_methods:
            undoes.append(put(owner, name, self._around(_POLYAK, getattr(owner, name))))
        # Last, so that their phases lie within the sections that the same events begin.
        return together([*undoes, Backward().attach(), OptimizerSteps().attach()])

    # ------------------------------------------------------------------ events

    def _watch(self, module: Any, kind: str) -> Iterator[Undo]:
        """Put hooks on a module and its parts: some are called past the module itself."""
        scope = Scope("forward")
        for part in (module, *module.children()):
            before = part.register_forward_pre_hook(partial(self._enter_module, scope, kind))
            after = part.register_forward_hook(partial(self._leave_module, scope), always_call=True)
            yield before.remove
            yield after.remove

    def _enter_module(self, scope: Scope, kind: str, *_: object) -> None:
        self._depth += 1
        if self._depth == 1 and self._update is not None:
            if kind == "target_q" or not _with_gradients():
                self._switch("target_q")
            elif not (kind == "critic" and self._update.name == "actor"):
                self._switch(kind)
            scope.__enter__()

    def _leave_module(self, scope: Scope, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._update is not None:
            scope.__exit__(None, None, None)

    def _watch_optimizers(self) -> Iterator[Undo]:
        from torch.optim import Optimizer, optimizer

        before = optimizer.register_optimizer_step_pre_hook(self._before_step)
        after = optimizer.register_optimizer_step_post_hook(self._after_step)
        yield before.remove
        yield after.remove
        yield put(Optimizer, "zero_grad", self._before_zero_grad(Optimizer.zero_grad))

    def _before_zero_grad(self, zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(zero_grad)
        def announced(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            section = self._parts.optimizers.get(id(optimizer))
            update = self._update
            # Gradients of others may be cleared anywhere; that of the temperature comes when its loss is known.
            if update is not None and section is not None and (update.name is None or section == "alpha"):
                self._switch(section)
            return zero_grad(optimizer, *args, **kwargs)

        return announced

    def _before_step(self, optimizer: object, *_: object) -> None:
        section = self._parts.optimizers.get(id(optimizer))
        if self._update is not None and self._update.name is None and section is not None:
            self._switch(section)

    def _after_step(self, optimizer: object, *_: object) -> None:
        if self._update is not None and id(optimizer) in self._parts.optimizers:
            self._cut()

    def _around(self, section: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is a section by itself; sampling goes on until something else begins."""

        @wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            if self._update is not None:
                self._switch(section)
            try:
                return function(*args, **kwargs)
            finally:
                if self._update is not None and section == _POLYAK:
                    self._cut()

        return told

    # ------------------------------------------------------------------ cuts

    def _switch(self, section: str) -> None:
        """Go on as ``section``: a gap gets its name, another section ends."""
        update = self._update
        assert update is not None
        if update.stack.node is not update.node or update.name == section:
            return  # within a phase of somebody's, which no section cuts through
        if update.name is not None:
            self._cut()
        update.name = section

    def _cut(self) -> None:
        """End the section, and begin a gap."""
        update = self._update
        assert update is not None
        if update.stack.node is not update.node:
            return
        now_ns = PROCESS.clock()
        update.node.close(now_ns - update.node.start_ns)
        if update.name is not None:
            update.ended.append((update.name, update.node))
        update.name = None
        update.node = update.stack.node = Node("", Mode.SUM, update.root)
        update.node.start_ns = now_ns

    def _settle(self) -> None:
        """Put the sections of all updates into the tree, those of one name in one update as one entry."""
        self._depth = 0
        for update in self._done:
            for name in dict.fromkeys(name for name, _ in update.ended):
                nodes = [node for other, node in update.ended if other == name]
                total_ns = sum(node.total_ns for node in nodes)
                section = update.root.child(name)
                section.close(total_ns)
                for node in nodes:
                    section.add(Timing(name, 0, 0, children=node.timings({})), is_parallel=False)
        self._done = []


def _with_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()
