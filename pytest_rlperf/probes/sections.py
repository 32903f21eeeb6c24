"""Phases of an actor-critic update in one function: sections, cut at PyTorch's own events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.probes.objects import find_parts
from pytest_rlperf.probes.torch import Backward, OptimizerSteps, after_steps, before_steps, preceded
from pytest_rlperf.timers.node import Node, Stack
from pytest_rlperf.timers.scope import PROCESS, Scope


class Update:
    """One update as it runs: its current section, and those that have ended.

    A section without a name is a gap, which the next event names. The first ``used`` of ``nodes`` are the sections so
    far, in their order. The others are kept from an earlier update, so that a counted update allocates none.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.used = 0
        self.thread = 0
        self.name: str | None = None

    def begin(self, stack: Stack) -> None:
        """Begin within the open phase."""
        self.stack, self.root, self.thread, self.used = stack, stack.node, get_ident(), 0
        self.open(PROCESS.clock())

    def open(self, now_ns: int) -> None:
        """Begin a gap."""
        self.name = None
        if self.used == len(self.nodes):
            self.nodes.append(Node("", self.root))
        self.node = node = self.nodes[self.used]
        node.name, node.parent = "", self.root
        self.stack.enter(node, now_ns)
        self.used += 1

    def close(self, now_ns: int) -> None:
        """End the open section."""
        self.node.close(self.stack.leave(now_ns))
        self.node.name = self.name or ""  # for a tape, which keeps every entry with its node

    def end(self) -> None:
        """End the last section and the update; a section with open phases does not count."""
        if self.stack.node is self.node:
            self.close(PROCESS.clock())
        else:
            self.used -= 1
            self.stack.leave_to(self.root)

    @property
    def has_phases(self) -> bool:
        """Whether timers in the update's own code have ended within the section."""
        return any(child.count for child in self.node.children.values())

    def add_to_tree(self) -> None:
        """Add the sections to the tree, sections with the same name as one entry."""
        ended = self.nodes[: self.used]
        for name in dict.fromkeys(node.name for node in ended):
            nodes = [node for node in ended if node.name == name]
            section = self.root
            if name:  # else a gap, whose phases belong to the update itself
                section = self.root.child(name)
                section.close(sum(node.total_ns for node in nodes))
            for node in nodes:
                section.add(node.timings({}))

    def clear(self) -> None:
        """Forget all sections."""
        for node in self.nodes:
            node.clear_all()


_SAMPLE, _TARGET_Q, _POLYAK = "sample", "target_q", "polyak"


class UpdateSections:
    """Cuts an update into the sections ``sample``, ``target_q``, ``critic``, ``actor``, ``alpha`` and ``polyak``.

    ``sample`` lasts until the first module runs. ``target_q`` begins when a target network runs, or a critic without
    gradients; it lasts until a module runs with gradients or a backward pass begins. ``actor`` begins when the actor
    runs with gradients, ``critic`` when a critic does, unless it evaluates the actor's actions. ``alpha`` begins when
    the temperature's gradient is cleared. An optimizer's step ends the section, and the parameters that it trains
    decide the section's name. The time after a step, or after the actor runs without gradients, belongs to the section
    of the next event. After the last step of an update with target networks, it is ``polyak``. In each section,
    backward passes, optimizer steps and modules' forward passes are child phases.
    """

    def __init__(self, agent: object) -> None:
        self._parts = find_parts(agent)
        self._update: Update | None = None
        self._updates: list[Update] = []  # the first are done, the others are kept to be reused
        self._done = 0
        self._depth = 0

    def __bool__(self) -> bool:
        """Whether there is anything to cut at."""
        return bool(self._parts.optimizers)

    def around(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return ``call``, one update, cut into sections while something records."""

        def run() -> object:
            stack = PROCESS.current()
            if stack is None or self._update is not None:
                return call()
            if self._done == len(self._updates):
                self._updates.append(Update())
            update = self._update = self._updates[self._done]
            self._depth = 0
            update.begin(stack)
            try:
                return call()
            finally:
                if stack.node is not update.node and update.node in stack.open_nodes():
                    stack.leave_to(update.node)  # what an exception has left open
                self._end_polyak(update)
                update.end()
                self._done += 1
                self._update = None

        return run

    def attach(self) -> Undo:
        """Watch from now on; undoing it adds the sections to the tree."""
        return together(self._watch())

    def _watch(self) -> Iterator[Undo]:
        from torch.optim import Optimizer

        parts = self._parts
        yield self.add_to_tree
        for holder, buffer in parts.buffers:
            with suppress(TypeError):  # what cannot be replaced makes no section
                yield replace_method(holder, buffer, "sample", lambda sample: preceded(sample, self._before_sample))
        for module, kind in parts.modules:
            yield from self._watch_module(module, kind)
        yield before_steps(self._before_step)
        yield put(Optimizer, "zero_grad", preceded(Optimizer.zero_grad, self._before_zero_grad))
        # These come last, so that their phases lie within the sections that the same events begin.
        yield Backward(self._before_backward).attach()
        yield OptimizerSteps().attach()
        # This comes after them, when the step's own phase has ended.
        yield after_steps(self._after_step)

    # ------------------------------------------------------------------ events

    def _here(self) -> Update | None:
        """Return the update that an event belongs to: this thread's, if no phase is open within its section."""
        update = self._update
        if update is None or update.thread != get_ident() or update.stack.node is not update.node:
            return None
        return update

    def _watch_module(self, module: Any, kind: str) -> Iterator[Undo]:
        """Put hooks on a module and its parts: some parts are called without the module itself."""
        scope = Scope("forward")
        for part in (module, *module.children()):
            yield part.register_forward_pre_hook(partial(self._enter_module, scope, kind)).remove
            yield part.register_forward_hook(partial(self._leave_module, scope), always_call=True).remove

    def _enter_module(self, scope: Scope, kind: str, *_: object) -> None:
        if self._update is None or self._update.thread != get_ident():
            return
        self._depth += 1
        if self._depth > 1:
            return
        update = self._here()
        if update is not None:
            self._begin(update, kind)
        scope.__enter__()

    def _begin(self, update: Update, kind: str) -> None:
        """Begin the section in which a module of this kind runs."""
        if kind == _TARGET_Q or (kind == "critic" and not _with_gradients()):
            self._switch(update, _TARGET_Q)
        elif not _with_gradients():  # for the target or the temperature: the next event decides
            if update.name not in (None, _TARGET_Q):
                self._cut(update)
        elif not (kind == "critic" and update.name == "actor"):
            self._switch(update, kind)

    def _leave_module(self, scope: Scope, *_: object) -> None:
        if self._update is None or self._update.thread != get_ident() or self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            scope.__exit__(None, None, None)

    def _before_zero_grad(self, optimizer: object, *_: object) -> None:
        update = self._here()
        # Other gradients may be cleared anywhere; the temperature's is cleared once its loss is computed.
        if update is not None and self._parts.optimizers.get(id(optimizer)) == "alpha":
            self._switch(update, "alpha")

    def _before_backward(self, *_: object) -> None:
        update = self._here()
        if update is not None and update.name in (_SAMPLE, _TARGET_Q):  # these end here, not with a step
            self._cut(update)

    def _before_step(self, optimizer: object) -> None:
        section = self._parts.optimizers.get(id(optimizer))
        update = self._here()
        if update is not None and section is not None:
            if update.name in (_SAMPLE, _TARGET_Q):
                self._cut(update)
            update.name = section

    def _after_step(self, optimizer: object) -> None:
        update = self._here()
        if update is not None and id(optimizer) in self._parts.optimizers:
            self._cut(update)

    def _before_sample(self, *_: object) -> None:
        update = self._here()
        if update is not None:
            self._switch(update, _SAMPLE)

    def _end_polyak(self, update: Update) -> None:
        """Record the time since the last step, which ends here, as ``polyak`` if there are target networks.

        If the update's own timers ran in that time, they have recorded it.
        """
        has_targets = any(kind == _TARGET_Q for _, kind in self._parts.modules)
        if has_targets and update.used > 1 and update.name is None and not update.has_phases:
            update.name = _POLYAK
            self._cut(update)

    # ------------------------------------------------------------------ cuts

    def _switch(self, update: Update, section: str) -> None:
        """Go on as ``section``: a gap gets its name, another section ends."""
        if update.name == section:
            return
        if section == _SAMPLE:
            self._end_polyak(update)
        if update.name is not None:
            self._cut(update)
        update.name = section

    def _cut(self, update: Update) -> None:
        """End the section, and begin a gap."""
        if update.stack.node is not update.node:
            return
        now_ns = PROCESS.clock()
        update.close(now_ns)
        update.open(now_ns)

    def add_to_tree(self) -> None:
        """Add the sections of all updates to the tree; the next updates reuse their nodes."""
        self._depth = 0
        done, self._done = self._updates[: self._done], 0
        for update in done:
            update.add_to_tree()
            update.clear()

    def nodes(self) -> Iterator[Node]:
        """Yield all updates' sections that are not yet in the tree; those without a name are gaps."""
        for update in self._updates[: self._done]:
            yield from update.nodes[: update.used]


def add_sections(probes: Iterable[object]) -> None:
    """Add the sections of the updates so far to the tree, which is read before ``probes`` are removed."""
    for probe in probes:
        if isinstance(probe, UpdateSections):
            probe.add_to_tree()


def pending_sections(probes: Iterable[object]) -> Iterator[Node]:
    """Yield the sections that are not yet in the tree; each has its name and its later parent."""
    for probe in probes:
        if isinstance(probe, UpdateSections):
            yield from probe.nodes()


def _with_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()
