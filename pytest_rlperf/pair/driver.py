"""The program of a driver: it lets the workers of one test take turns, and sends the results to the run.

The driver and its templates are copies of the preload server, or they are all new interpreters. Its code for an order
blocks. While it waits for a worker, it listens to the run: the next order, such as the order to leave the test,
interrupts the current one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from json import loads
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any

from pytest_rlperf import wire
from pytest_rlperf.pair.counting import count_in
from pytest_rlperf.pair.one_side import measure_one_side
from pytest_rlperf.pair.processes import (
    LeftEarlyError,
    StoppedErrors,
    Template,
    Worker,
    ask_all,
    check,
    end_all,
    give_back,
    wait_all,
)
from pytest_rlperf.pair.turns import Pair
from pytest_rlperf.spawn.connections import limited
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.preload import GUARDIAN
from pytest_rlperf.spawn.process import InterruptedWaitError, ProcessLostError

_GONE_S = 3.0  # for teardowns, once the run is gone; the guardian waits a little longer


class RunGoneError(BaseException):
    """The run is gone; not an Exception, as no order can be answered."""


class Driver:
    """Carries out the orders of a run with the workers of ``templates``, the base's before the head's."""

    def __init__(self, run: Connection, templates: Sequence[Template], run_pid: int = 0) -> None:
        self._run = run
        self._run_pid = run_pid
        self._templates = templates
        self._in_turn: list[Worker] = []  # the test's workers, in the order in which they begin
        self._reporter: Worker | None = None
        self._pair: Pair | None = None
        self._is_placed = False
        self._leaving: list[Worker] = []  # have left the test, and have not ended yet

    def serve(self) -> None:
        """Carry out the run's orders until the run ends this process, or is gone."""
        message: wire.Message
        with contextlib.suppress(InterruptedWaitError):
            try:
                message = wire.Collected([template.wait_ready() for template in self._templates])
            except ProcessLostError as lost:
                message = wire.Stopped(0, self._stop(lost))
            self._send(message)
        while True:
            try:
                order: wire.ToDriver = wire.receive_order(self._run, wire.ToDriver)
            except (EOFError, OSError):
                raise RunGoneError from None
            if isinstance(order, wire.End):
                self.end(order.limit_s)
                return
            try:
                message = wire.Answer(order.number, self._carry_out(order))
            except StoppedErrors as stopped:
                message = wire.Stopped(order.number, self._stop(stopped))
            except InterruptedWaitError:  # by the order to leave, or to end
                continue
            except Exception as error:
                trace = "".join(traceback.format_exception(error)).rstrip()
                message = wire.Broken(order.number, f"{type(error).__name__}: {error}\n{trace}")
            self._send(message)
            self._let_go()

    def end(self, limit_s: float) -> None:
        """End all workers and templates."""
        kept = (template.kept for template in self._templates)
        workers = [*self._workers, *self._leaving]
        workers += [worker for worker in kept if worker is not None and worker not in workers]
        processes: list[Template | Worker] = [*workers, *self._templates]
        for process in processes:
            process.master = None
        end_all(processes, limit_s)

    @property
    def _heads_first(self) -> Worker:
        return next(worker for worker in self._workers if not worker.is_base)

    def _stop(self, error: ProcessLostError | LeftEarlyError) -> wire.Stop:
        process, done = error.process, error.done if isinstance(error, LeftEarlyError) else None
        assert isinstance(process, Template | Worker)
        is_certain = done is not None and (done.is_certain or done.outcome != "failed")
        return wire.Stop(
            process.name,
            str(error),
            process.is_base,
            is_doubtful=process.is_forked and not is_certain,
            is_reporter=process is self._reporter,
            done=done,
        )

    @property
    def _workers(self) -> list[Worker]:
        """The test's workers, the base's before the head's."""
        return sorted(self._in_turn, key=lambda worker: self._templates.index(worker.template))

    def _carry_out(self, order: wire.DriverOrders) -> Any:
        match order:
            case wire.ImportAll(modules):
                pairs = zip(self._templates, modules, strict=False)
                return [dirty for each, names in pairs if (dirty := each.import_more(names))]
            case wire.Open():
                return self._open(order)
            case wire.CheckAll():
                check(self._in_turn)
                return [worker.checked for worker in self._workers]
            case wire.CountAll():
                return count_in(self._in_turn, order)
            case wire.WarmAll():
                return self._turns.warm_up(order)
            case wire.TakePair():
                self._is_placed = order.cpu is not None
                return self._turns.take(order)
            case wire.MoveAll(cpu):
                for worker in self._workers if self._is_placed else ():
                    worker.ask(wire.Place([cpu]))
                return None
            case wire.GoOn(seconds):
                return self._turns.go_on(seconds)
            case wire.TraceMore(blocks):
                return self._turns.trace(blocks)
            case wire.EndIdle():
                return self._turns.idle_shares()
            case wire.MeasureAlone():
                self._step("checking")
                return measure_one_side(self._workers, order, self._step)
            case wire.ObserveAll(limit_s, searches, names):
                return ask_all(self._workers, wire.Observe(limit_s, searches, names))
            case wire.Relay(to_base=to_base):
                asked: wire.Order[Any] = order.order
                return (self._workers[0] if to_base else self._heads_first).ask(asked)
            case wire.LeaveAll(leave):
                return self._leave(leave)

    # ------------------------------------------------------------------ one test

    def _open(self, order: wire.Open) -> list[wire.Called]:
        """Bring the test to its call in a worker of each template; the workers set it up at the same time."""
        self._pair, self._reporter, self._in_turn, self._is_placed = None, None, [], False
        seeded = [*zip(self._templates, order.seeds, strict=False)]  # a single side may need fewer workers
        for template, seed in seeded[::-1] if order.last_first else seeded:
            worker = template.lease()
            worker.seed = seed
            self._in_turn.append(worker)
        if order.reports:
            self._reporter = self._heads_first
        for worker in self._in_turn:
            worker.start_run(order, self._send if worker is self._reporter else None)
        try:
            for worker in self._in_turn:
                worker.wait_called()
        except ProcessLostError as lost:
            for worker in self._workers:  # one that hangs before its call is enough
                if worker is not lost.process and worker.running and worker.called is None:
                    worker.end(0)
            raise
        return [called for worker in self._workers if (called := worker.called) is not None]

    @property
    def _turns(self) -> Pair:
        """The pair of the test's workers, which take turns from its warm-up on."""
        if self._pair is None:
            base, head = self._workers
            self._pair = Pair(base, head, head_first=self._in_turn[0] is head, run=self._run_pid)
        return self._pair

    def _leave(self, leave: wire.Leave) -> wire.Done | None:
        """Let every worker leave the test if it still can, the reporter last; then let all of them go."""
        reporter, done, failure = self._reporter, None, None
        others = [worker for worker in self._in_turn if worker is not reporter]
        try:
            for step in (methodcaller("start_leaving"), methodcaller("leave")):  # all of them leave in the time of one
                wait_all([worker for worker in others if worker.alive], step)
            if reporter is not None and reporter.alive:
                done = reporter.leave(leave)
        except ProcessLostError as lost:
            failure = lost
        staying = [] if failure is None or reporter is None or reporter is failure.process else [reporter]
        self._leaving = [worker for worker in self._in_turn if worker not in staying]
        self._in_turn, self._pair = staying, None
        if reporter is None:  # else the test's report need not wait until they end
            self._let_go()
        if failure is not None:
            raise failure
        return done

    def _let_go(self) -> None:
        """End the workers that have left the test and that no other test can use."""
        leaving, self._leaving = self._leaving, []
        give_back(leaving)

    # ------------------------------------------------------------------ messages

    def _send(self, message: wire.Message) -> None:
        try:
            wire.send(self._run, message)
        except OSError:
            raise RunGoneError from None

    def _step(self, text: str) -> None:
        self._send(wire.Step(text))


def main(
    settings: dict[str, Any] | None = None,
    descriptor: int = -1,
    begun: Sequence[tuple[int, socket.socket]] = (),
    pipe: int = -1,
) -> None:
    """Drive workers until the run no longer needs this process.

    A preload server gives its copy the settings, the connection to the run, the templates and the pipe to the guardian.
    A new interpreter finds both descriptors in variables, and reads the settings from its connection.
    """
    forked = settings is not None
    run = Connection(descriptor if forked else int(os.environ.pop(wire.DESCRIPTOR_KEY)))
    pipe = pipe if forked else int(os.environ.pop(GUARDIAN, "-1"))
    for number in (run.fileno(), pipe):
        if number >= 0:
            os.set_inheritable(number, False)
    found = wire.from_json(loads(run.recv_bytes()) if settings is None else settings, wire.DriverSettings)
    guardian = Guardian.joined(found.run, found.scratch, pipe)
    copies: list[tuple[int, Connection] | None] = [(pid, limited(here)) for pid, here in begun]
    templates = [
        Template(wire.SessionSettings(found.shared, each), guardian, found.start_limit_s, copy=copy, master=run)
        for each, copy in zip(found.templates, copies or [None] * len(found.templates), strict=True)
    ]
    in_order = sorted(templates, key=lambda template: (not template.settings.is_base, template.settings.number))
    driver = Driver(run, in_order, found.run)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is for the run to handle
    try:
        driver.serve()
    except RunGoneError:
        driver.end(_GONE_S)
    except BaseException:  # no worker outlives this process, whatever the error
        driver.end(0.0)
        raise
    finally:
        sys.stdout = sys.stderr = None
        if forked:
            os._exit(0)
