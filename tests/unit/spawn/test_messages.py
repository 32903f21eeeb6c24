"""The messages of a worker, whatever it sends: an error of its test, within the limit, and no other."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import template_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf import wire
from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.pair import processes
from pytest_rlperf.pair.processes import StoppedErrors, Template
from pytest_rlperf.spawn import connections, process
from pytest_rlperf.spawn.connections import connected, interpreter
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.process import Process, ProcessLostError

RECORD = SliceRecord(SliceKind.PLAIN, 1e-6, 0.01, 10_000, 10_000.0, 0.01, 0.01, 0, 0, 1, ())
WARM = Warm(Shape(10, 10, long=False), 1e-6, 0.1, 1, single=True)
CHECKED = wire.Checked(0.001, 1.0, {}, children=False)
OPEN = wire.Open("test", None, [0], last_first=False, setup_s=30, patience_s=30, reports=True)
ORDERS: list[wire.Order[Any]] = [wire.Check(), wire.WarmUp(1.0), wire.Take(SliceKind.PLAIN)]
ANSWERS = [wire.Answer(number, value) for number, value in enumerate((CHECKED, WARM, RECORD), 1)]
NAN = b'{"type": "Answer", "order": 3, "value": NaN}'
REPORT, DONE = wire.Reported({}), wire.Done("passed", "", [], name_missing=False)
IN_ORDER: list[wire.FromWorker] = [wire.Ready(PROTOCOL), wire.Called("callable", "call", 1.0), *ANSWERS, REPORT, DONE]
OTHERS = [
    wire.Ready(-1),
    wire.Reported({"when": b"["}),
    wire.Answer(7, RECORD),
    wire.Answer(1, RECORD),
    wire.Answer(3, CHECKED),
]
PARTS = st.sampled_from([json.dumps(wire.as_json(each)) for each in (*IN_ORDER, *OTHERS)] + ["{}", "1", "[" * 20_000])


def drive(here: Connection) -> wire.Done:
    """Let the worker at the other end of a connection measure one test, as a driver would."""
    template = Template(template_settings(name="worker 0", scratch="/nowhere"), Guardian(), 30, copy=(0, here))
    template.wait_ready()
    worker = template.lease()
    worker.start_run(OPEN, forward=lambda message: None)
    worker.wait_called()
    assert [worker.ask(order) for order in ORDERS] == [CHECKED, WARM, RECORD]
    done = worker.leave(wire.Leave())
    assert done is not None
    return done


def hearing(*messages: wire.FromWorker | bytes, rest: bytes = b"") -> wire.Done:
    """Return the end of a test whose worker sends messages, then other bytes, and no more."""
    here, there = connected()
    with here, there, socket.socket(fileno=os.dup(there.fileno())) as end:
        for each in messages:
            there.send_bytes(each if isinstance(each, bytes) else json.dumps(wire.as_json(each)).encode())
        end.send(rest)
        end.shutdown(socket.SHUT_WR)
        return drive(here)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.lists(PARTS | st.text(), max_size=4), st.binary(max_size=12))
def test_any_speech_ends_in_an_answer_or_an_error_of_the_test(begun: int, parts: list[str], rest: bytes) -> None:
    """Any messages at any point, any bytes after them and the end of what is sent: no other error."""
    with suppress(*StoppedErrors):
        assert hearing(*IN_ORDER[:begun], *(part.encode() for part in parts), rest=rest) == DONE
        assert begun == 7 or json.dumps(wire.as_json(DONE)) in parts


@pytest.mark.parametrize("last", [wire.Answer(2, WARM), wire.Answer(3, WARM), wire.Ready(PROTOCOL), NAN])
def test_another_answer_than_the_one_due_is_an_error(last: wire.FromWorker | bytes, wording: Wording) -> None:
    """One to an earlier order, one of another type, a message that is no answer, and a figure that is none."""
    assert hearing(*IN_ORDER) == DONE
    with wording.raises(ProcessLostError):
        hearing(*IN_ORDER[:4], last)


@pytest.mark.parametrize("first", [wire.Ready(8), wire.Answer(0)])
def test_a_worker_of_another_version_is_ended(first: wire.FromWorker, wording: Wording) -> None:
    """Its first message has another protocol's number, or is another message."""
    with pytest.MonkeyPatch.context() as patch, wording.raises(ProcessLostError):
        patch.setattr(processes, "PROTOCOL", 7)
        hearing(first)


@pytest.mark.parametrize(
    ("value", "figure"),
    [
        (CHECKED, {"first_call_s": -1.0}),
        (WARM, {"call_s": 0.0}),
        (WARM, {"shape": {"iterations": 0, "rounds": 10, "long": False}}),
        *((RECORD, {name: figure}) for name, figure in (("call_s", -1e-6), ("calls", 0), ("cpu_s", -0.1))),
        (RECORD, {"phases": [{"path": "a/b", "count": -1, "total_s": 1e-3, "self_s": 1e-3, "device": "host"}]}),
    ],
)
def test_impossible_figures_are_refused(value: object, figure: dict[str, object], wording: Wording) -> None:
    """Figures that no clock can have given, as of one that runs back, never reach the arithmetic."""
    (order,) = (each for each in ORDERS if isinstance(value, each.answer))
    with wording.raises(wire.UnreadableError):
        wire.answer_to(order, wire.Answer(1, msgspec.to_builtins(value) | figure))


WAIT = "import os, time; os.write(int(os.environ['IT']), {}); time.sleep(1000)"
TEXTS = {"half": WAIT.format("b'..'"), "deaf": WAIT.format("b''")}


@pytest.mark.parametrize("program", ["", "import os; os.kill(os.getpid(), 9)", "exit(3)", "half", "deaf"])
def test_a_process_that_ends_or_stops_within_a_message_is_lost(tmp_path: Path, program: str, wording: Wording) -> None:
    """How it ended; one that sends half of a message, or does not read one, is ended after the limit of a message."""
    with pytest.MonkeyPatch.context() as patch, wording.raises(ProcessLostError):
        for module in (connections, process):
            patch.setattr(module, "HALF_MESSAGE_S", 1)
        child, here = interpreter(TEXTS.get(program, program), dict(os.environ), tmp_path, key="IT")
        worker = Process("it", here, tmp_path, Guardian(), child)
        if program == "deaf":
            worker.send(wire.Run("x" * 10_000_000, None, 0, reporter=True))
        worker.receive(time.monotonic() + 30, 30, "")
    assert (child.poll() is None, worker.alive) == (False, False)
