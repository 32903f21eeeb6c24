"""The messages of a worker, whatever it sends: an error of its test, within the limit, and no other."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf import wire as m
from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.spawn import process
from pytest_rlperf.spawn.contract import WorkerStoppedError
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.process import Process, Stem, WorkerLostError, connected, popen

RECORD = SliceRecord(SliceKind.PLAIN, 1e-6, 0.01, 10_000, 10_000.0, 0.01, 0.01, 0, 0, 1, ())
WARM = Warm(Shape(10, 10, long=False), 1e-6, 0.1, 1, single=True)
CHECKED = m.Checked(0.001, 1.0, {}, children=False)
START = m.Start(0, [], [], [], "/nowhere", False, False, [], [], "", False, "", {}, "", "", [])
ORDERS = [m.Check(), m.WarmUp(None, 1.0, None, kernels=True), m.Take(SliceKind.PLAIN)]
ANSWERS = [m.Answer(number, value) for number, value in enumerate((CHECKED, WARM, RECORD), 1)]
NAN = b'{"type": "Answer", "order": 3, "value": NaN}'
REPORT, DONE = m.Reported("{}"), m.Done("passed", "", [], name_missing=False)
IN_ORDER: list[m.FromWorker] = [m.Ready(PROTOCOL), m.Called("callable", "call", 1.0), *ANSWERS, REPORT, DONE]
OTHERS = [m.Ready(-1), m.Reported("["), m.Answer(7, RECORD), m.Answer(1, RECORD), m.Answer(3, CHECKED)]
PARTS = st.sampled_from([json.dumps(m.as_json(each)) for each in (*IN_ORDER, *OTHERS)] + ["{}", "1", "[" * 20_000])


def drive(here: Connection) -> m.Done:
    """Have the worker at the other end of a connection measure one test, as a run would."""
    stem = Stem("worker 0", START, Guardian(), 30, here)
    stem.wait_ready()
    worker = stem.worker()
    worker.start_run("test", None, forward=lambda message: None, setup_s=30, patience_s=30)
    worker.wait_called()
    assert [worker.ask(order) for order in ORDERS] == [CHECKED, WARM, RECORD]
    done = worker.leave(m.Leave())
    assert done is not None
    return done


def hearing(*messages: m.FromWorker | bytes, rest: bytes = b"") -> m.Done:
    """Return the end of a test whose worker sends messages, then other bytes, and no more."""
    here, there = connected()
    with here, there, socket.socket(fileno=os.dup(there.fileno())) as end:
        for each in messages:
            there.send_bytes(each if isinstance(each, bytes) else json.dumps(m.as_json(each)).encode())
        end.send(rest)
        end.shutdown(socket.SHUT_WR)
        return drive(here)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.lists(PARTS | st.text(), max_size=4), st.binary(max_size=12))
def test_any_speech_ends_in_an_answer_or_an_error_of_the_test(begun: int, parts: list[str], rest: bytes) -> None:
    """Any messages at any point, any bytes after them and the end of what is sent: no other error."""
    with suppress(WorkerStoppedError):
        assert hearing(*IN_ORDER[:begun], *(part.encode() for part in parts), rest=rest) == DONE
        assert begun == 7 or json.dumps(m.as_json(DONE)) in parts


@pytest.mark.parametrize("last", [m.Answer(2, WARM), m.Answer(3, WARM), m.Ready(PROTOCOL), NAN])
def test_another_answer_than_the_one_due_is_an_error(last: m.FromWorker | bytes, wording: Wording) -> None:
    """One to an earlier order, one of another type, a message that is no answer, and a figure that is none."""
    assert hearing(*IN_ORDER) == DONE
    with wording.raises(WorkerLostError):
        hearing(*IN_ORDER[:4], last)


@pytest.mark.parametrize("first", [m.Ready(8), m.Answer(0)])
def test_a_worker_of_another_version_is_ended(first: m.FromWorker, wording: Wording) -> None:
    """Its first message has another protocol's number, or is another message."""
    with pytest.MonkeyPatch.context() as patch, wording.raises(WorkerLostError):
        patch.setattr(process, "PROTOCOL", 7)
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
    with wording.raises(m.UnreadableError):
        m.answer_to(order, m.Answer(1, msgspec.to_builtins(value) | figure))


WAIT = "import os, time; os.write(int(os.environ['IT']), {}); time.sleep(1000)"
TEXTS = {"half": WAIT.format("b'..'"), "deaf": WAIT.format("b''")}


@pytest.mark.parametrize("program", ["", "import os; os.kill(os.getpid(), 9)", "exit(3)", "half", "deaf"])
def test_a_process_that_ends_or_stops_within_a_message_is_lost(tmp_path: Path, program: str, wording: Wording) -> None:
    """How it ended; one that sends half of a message, or does not read one, is ended after the limit of a message."""
    with pytest.MonkeyPatch.context() as patch, wording.raises(WorkerLostError):
        patch.setattr(process, "_HALF_MESSAGE_S", 1)
        here, there = connected()
        child = popen([sys.executable, "-c", TEXTS.get(program, program)], there, "IT", dict(os.environ), tmp_path)
        worker = Process("it", here, tmp_path, Guardian(), child)
        if program == "deaf":
            worker.send(m.Run("x" * 10_000_000, None, 0, reporter=True))
        worker.receive(time.monotonic() + 30, 30, "")
    assert (child.poll() is None, worker.alive) == (False, False)
