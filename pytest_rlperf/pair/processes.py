"""A driver's templates and workers: what a driver tells them, and what it does when one is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pytest_rlperf import wire
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.spawn.connections import connected, interpreter
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.process import CALL_HINT, Process, ProcessLostError

QUIT_LIMIT_S = 10.0
_TERMINATING_LIMIT_S = 2.0
_LONG_SETUP_S = 0.5  # of fixtures that tests share: from here on, a worker is kept for the tests that follow
_SETUP_HINT = "imports and fixtures that take longer need a longer rlperf_setup_timeout"
# Takes the current directory off the path, as a file in it may have a module's name; the run's own path follows.
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.worker.session import main; main()"

T = TypeVar("T")
Forward: TypeAlias = Callable[["wire.Reported | wire.Warned"], None]
"""Receives the reports and warnings that a worker sends between its answers."""


class LeftEarlyError(Exception):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, worker: Worker, done: wire.Done) -> None:
        super().__init__(done.text)
        self.process = worker
        self.done = done


StoppedErrors = (ProcessLostError, LeftEarlyError)
"""The errors that keep a worker from going on with its test: its process was lost, or the test ended there."""


class Template(Process):
    """A session of one side that has collected: it forks a worker for each test, or is itself the worker of all."""

    def __init__(
        self,
        start: wire.SessionSettings,
        guardian: Guardian,
        limit_s: float,
        *,
        copy: tuple[int, Connection] | None = None,
        master: Connection | None = None,
    ) -> None:
        self.settings = settings = start.own
        self.forks = start.shared.forks
        self.is_base = settings.is_base
        self.kept: Worker | None = None  # the copy with a long setup that tests share
        self._limit_s = limit_s
        self._due_s = time.monotonic() + limit_s
        started, connection = _new_interpreter(start) if copy is None else (None, copy[1])
        super().__init__(settings.name, connection, Path(settings.scratch), guardian, started, master)
        self.places = settings.tree, start.shared.top
        if copy is not None:
            self.is_known_as(copy[0])

    def wait_ready(self) -> wire.Ready:
        """Wait until the template has collected, and return what it has."""
        if self.forks:
            self.wait_begun()
        ready = self.receive(self._due_s, self._limit_s, _SETUP_HINT)
        if not isinstance(ready, wire.Ready) or ready.protocol != PROTOCOL:
            self.end(0)
            theirs = f"protocol {ready.protocol}" if isinstance(ready, wire.Ready) else repr(ready)
            raise self.lost(
                f"{self.name} has another version of pytest-rlperf: it uses {theirs}, this process {PROTOCOL}. "
                "Both sides are measured by one version"
            )
        return ready

    def import_more(self, modules: list[str]) -> str:
        """Import modules before the next worker is forked; return the first that the template should not have."""
        self.send(wire.Import(modules))
        imported = self.receive(time.monotonic() + self._limit_s, self._limit_s, _SETUP_HINT)
        if not isinstance(imported, wire.Imported):
            raise self.unexpected(imported)
        return next(iter(imported.dirty), "")

    def lease(self) -> Worker:
        """Return a worker for the next test: a copy of this process, or this process itself."""
        kept = self.kept
        if kept is not None and kept.alive:
            return kept
        if not self.forks:
            self.kept = Worker(self, self.connection, self.scratch)
            return self.kept
        here, there = connected()
        scratch = self.guardian.new_directory()
        self.send(wire.Fork(str(scratch)), there)
        worker = Worker(self, here, scratch)
        worker.wait_begun()
        return worker

    def keeps(self, worker: Worker) -> bool:
        """Keep a worker that has left its test if the next test can use it or its long setup; return whether it did."""
        is_useful = not self.forks or (worker.shared_setup_s > _LONG_SETUP_S and not worker.running)
        self.kept = worker if is_useful and worker.alive else None
        return self.kept is worker

    def reap(self, pid: int) -> None:
        """Let the template wait for a copy that has ended."""
        with contextlib.suppress(ProcessLostError):
            if self.alive and self.quit_s is None:  # else the template ends, and leaves its copies to another process
                self.send(wire.Reap(pid))

    def forget(self) -> None:
        """Wait for the ended process if it is a copy, so that its number can be reused."""
        super().forget()
        if self.started is None:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # its number is its own until it is waited for
                os.waitpid(self.pid, 0)

    def start_quitting(self) -> None:
        """Begin to end the session, with all teardowns."""
        with contextlib.suppress(ProcessLostError):
            if self.quit_s is None:
                self.quit_s = time.monotonic()
                self.send(wire.Quit())


class Worker(Process):
    """A process at work on one test; it keeps its files in ``scratch``.

    Every method that sends or receives may raise ProcessLostError, and LeftEarlyError if the test has ended instead of
    answering. ``start`` gives an order and ``answer`` returns its answer, so that several workers can do the same at
    once. The limit of an answer begins with its order: if several workers hang after orders given at once, the wait
    takes one limit, not several.
    """

    def __init__(self, template: Template, connection: Connection, scratch: Path) -> None:
        started = None if template.forks else template.started
        super().__init__(template.name, connection, scratch, template.guardian, started, template.master)
        self.template = template
        self.is_base = template.is_base
        self.places = template.places
        self.seed = 0
        self.running = False
        self.called: wire.Called | None = None
        self.shared_setup_s = 0.0  # of all tests that it has run
        self.checked: wire.Checked | None = None
        self.forward: Forward | None = None
        self._setup_s = 0.0
        self._patience_s = 0.0
        self._limit_s = 0.0
        self._hint = ""
        self._due_s = 0.0
        self._is_leaving = False
        self._orders = 0

    @property
    def checked_s(self) -> float:
        """The seconds of the checked call or, if that compiled, of a second one; zero before that call."""
        if self.checked is None:
            return 0.0
        second_s = self.checked.second_call_s
        return self.checked.first_call_s if second_s is None else second_s

    def start_s(self, usual_s: float) -> float:
        """Return the seconds of the first call alone, if a usual one takes ``usual_s``; zero before that call."""
        return 0.0 if self.checked is None else self.checked.start_s(usual_s)

    # ------------------------------------------------------------------ one test, from its start to its end

    def start_run(self, order: wire.Open, forward: Forward | None = None) -> None:
        """Begin a test, with this worker's seed; ``forward`` receives the reporter's reports and warnings."""
        self.forward = forward
        self._setup_s, self._patience_s = order.setup_s, order.patience_s
        self.running = True
        self._is_leaving = False
        self.called = self.checked = None
        self._begin_limit(order.setup_s, _SETUP_HINT)
        self.send(wire.Run(order.key, order.next_key, self.seed, reporter=forward is not None))

    def wait_called(self) -> None:
        """Wait until the test calls an rlperf fixture."""
        message = self._message()
        if not isinstance(message, wire.Called):
            raise self.unexpected(message)
        self.called = message
        self.shared_setup_s = message.shared_setup_s

    def ask(self, order: wire.Order[T]) -> T:
        """Give an order and return its answer, of the order's type."""
        self.start(order)
        return self.answer(order)

    def start_leaving(self, order: wire.Leave | None = None) -> None:
        """Begin to leave the test at its call, which it may not have reached yet; the call ends as ``order`` says."""
        if self.running and not self._is_leaving:
            self._is_leaving = True
            self._begin_limit(self._setup_s, _SETUP_HINT)
            self.send(order or wire.Leave())  # before the call, the worker reads it when it gets there

    def leave(self, order: wire.Leave | None = None) -> wire.Done | None:
        """Leave the test at its call, and return how it ended; None if it was already over."""
        self.start_leaving(order)
        while self.running:
            message = self._message()
            if isinstance(message, wire.Done):  # answers to earlier orders are not needed any more
                return message
        return None

    # ------------------------------------------------------------------ messages

    def _begin_limit(self, limit_s: float, hint: str) -> None:
        """Begin the time that the next answer may take; ``hint`` names the option that allows more."""
        self._limit_s = limit_s
        self._hint = hint
        self._due_s = time.monotonic() + limit_s

    def start(self, order: wire.Order[Any]) -> None:
        """Give an order; :meth:`answer` returns its answer."""
        self._begin_limit(self._patience_s, CALL_HINT)
        self._orders += 1
        self.send(order.numbered(self._orders))

    def answer(self, order: wire.Order[T]) -> T:
        """Return the answer to the last order, which is this one."""
        message = self._message()
        if not isinstance(message, wire.Answer) or message.order != self._orders:
            raise self.unexpected(message)
        try:
            return wire.answer_to(order, message)
        except wire.UnreadableError as error:
            raise self.unreadable(error) from None

    def _message(self) -> wire.FromWorker:
        """Return the next message that is an answer, or the end of the test; forward the reports before it."""
        while isinstance(message := self.receive(self._due_s, self._limit_s, self._hint), wire.Reported | wire.Warned):
            if self.forward is not None:
                self.forward(message)
        self.running = self.running and not isinstance(message, wire.Done)
        return message

    def unexpected(self, message: object) -> Exception:
        """Return the error of a message other than the one that is due, such as the end of the test."""
        return LeftEarlyError(self, message) if isinstance(message, wire.Done) else super().unexpected(message)

    def lost(self, text: str) -> Exception:
        """Return the error of a worker that is no longer of use."""
        self.running = False
        return super().lost(text)

    # ------------------------------------------------------------------ the process

    def forget(self) -> None:
        """Release the number of the process, which has ended."""
        super().forget()
        if self.template.forks:
            self.template.reap(self.pid)

    def start_quitting(self) -> None:
        """Begin to leave the test and end the process, with its teardowns."""
        if self.quit_s is None:
            self.quit_s = time.monotonic()
            with contextlib.suppress(ProcessLostError):
                self.start_leaving()
                self.send(wire.Quit())


def wait_all(workers: Sequence[Worker], wait: Callable[[Worker], T]) -> list[T]:
    """Return every worker's answer; after waiting for all, raise the error of the first without one."""
    __tracebackhide__ = True
    failure: Exception | None = None
    answers = []
    for worker in workers:  # all: an unread answer would be taken for the next message's
        try:
            answers.append(wait(worker))
        except StoppedErrors as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers


def ask_all(workers: Sequence[Worker], order: wire.Order[T]) -> list[T]:
    """Give an order to workers, which carry it out at the same time, and return their answers."""
    __tracebackhide__ = True
    for worker in workers:
        worker.start(order)
    return wait_all(workers, lambda worker: worker.answer(order))


def check(workers: Sequence[Worker]) -> None:
    """Let the ``workers`` that have not done so run their component once and check it."""
    __tracebackhide__ = True
    fresh = [worker for worker in workers if worker.checked is None]
    for worker, checked in zip(fresh, ask_all(fresh, wire.Check()), strict=True):
        worker.checked = checked


def give_back(workers: Sequence[Worker]) -> None:
    """End the workers that no other test can use, after they have left their test, all in the time of one."""
    ending = [worker for worker in workers if not worker.template.keeps(worker) and worker.alive]
    for worker in ending:
        worker.start_quitting()
    for worker in ending:
        worker.end(QUIT_LIMIT_S)
        worker.remove_files()


def end_all(processes: Sequence[Template | Worker], limit_s: float) -> None:
    """End processes, letting fixtures tear down; workers come before their templates."""
    quitting = [process for process in processes if process.alive]
    for process in quitting:
        process.start_quitting()
    for process in quitting:
        if process.alive:
            process.interrupt_call(limit_s)
    for each in processes:
        each.end(limit_s + _TERMINATING_LIMIT_S if each in quitting else 0)


def _new_interpreter(start: wire.SessionSettings) -> tuple[Any, Connection]:
    """Start a new interpreter as a template, and send its settings; return it and the connection to it."""
    settings = start.own
    terminal = None if settings.share_terminal else Path(settings.output)
    return interpreter(
        _BOOT,
        settings.environment,
        Path(settings.scratch),
        settings=start,
        python=settings.python,
        directory=settings.directory,
        stdout=None if settings.reports else terminal,
        stderr=terminal,
    )
