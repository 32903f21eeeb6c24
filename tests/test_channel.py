"""The connection to a worker, whatever the worker sends: an error of its test, within the limit, and no other."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.rounds import Clocks
from pytest_rlperf.measure.worker import WorkerStoppedError, wait_all
from pytest_rlperf.model import Phase, Shape, Share, Side, SliceKind, SliceRecord, Tally, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.model.spans import Span
from pytest_rlperf.testing import FakeClock
from pytest_rlperf.workers import channel, process
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.channel import Channel, UnreadableError
from pytest_rlperf.workers.guardian import Guardian
from pytest_rlperf.workers.pool import WorkerGroup, WorkerPool
from pytest_rlperf.workers.process import StartSettings, WorkerLostError, WorkerProcess

RECORD = SliceRecord(SliceKind.PLAIN, 1e-6, 0.01, 10_000, 10_000.0, 0.01, 0.01, 0, 0, 1, ())
DONE = m.Done("passed", "", [], name_missing=False)
CALLED = m.Called("callable", "call", 1.0)
CHECKED = m.Checked(0.001, 1.0, m.Loaded(), children=False)
WARMED = m.Warmed(Warm(Shape(10, 10, long=False), 1e-6, 0.1, 1, single=True))


# --------------------------------------------------------------------------- frames


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Return a channel, and the bare other end."""
    here, there = Channel.pair()
    with there:
        yield here, there
    here.close()


def frame(payload: bytes, number: int = 1, answered: int = 0) -> bytes:
    """Return a frame's bytes."""
    return struct.pack(">4sIII", b"rlpf", len(payload), number, answered) + payload


def payload_of(message: m.FromWorker) -> bytes:
    """Return a message as its frame carries it."""
    return json.dumps(msgspec.to_builtins(message)).encode()


def test_frames_come_whole_however_they_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    """Bytes that arrive one by one make the frames that were sent."""
    here, there = ends
    received = []
    for byte in frame(b"one") + frame(b"", 2):
        there.send(bytes([byte]))
        received.append(here.receive(0))
    assert [payload for payload in received if payload is not None] == [b"one", b""]
    assert not here.is_within_frame


def test_a_large_frame_crosses_whole() -> None:
    """A frame far larger than the socket's buffer is sent while the other side reads."""
    ends = socket.socketpair()
    here, there = map(Channel, ends)
    payload = os.urandom(3_000_000)
    sender = threading.Thread(target=there.send, args=(payload,))
    sender.start()
    assert here.receive() == payload
    sender.join()
    here.close()
    there.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"Traceback (most recent call last)",
        b"rlpX",
        struct.pack(">4sIII", b"rlpf", 1 << 31, 1, 0),
        frame(b"x", number=2),
        frame(b"x", number=0),
    ],
)
def test_other_bytes_are_refused(ends: tuple[Channel, socket.socket], sent: bytes, wording: Wording) -> None:
    """Bytes that are no frame, and frames that are lost, repeated or too large, are an error."""
    here, there = ends
    there.send(sent)
    with wording.raises(UnreadableError):
        here.receive(1)


def test_half_a_frame_has_a_deadline(wording: Wording) -> None:
    """The rest of a frame must come within the limit, whatever limit its answer has."""
    clock = FakeClock()
    ours, there = socket.socketpair()
    here = Channel(ours, lambda: clock() / 1e9)
    there.send(frame(b"whole")[:-1])
    assert here.receive(0) is None
    assert here.is_within_frame
    clock.advance(int((channel.FRAME_LIMIT_S + 1) * 1e9))
    with wording.raises(UnreadableError):
        here.receive(1e6)
    here.close()
    there.close()


def test_a_frame_that_nobody_reads_has_a_deadline(wording: Wording) -> None:
    """A frame that is larger than what the other side takes up is given up after its limit."""
    here, there = Channel.pair()
    with there, wording.raises(TimeoutError):
        here.send(bytes(10_000_000), 0.01)
    here.close()
    with pytest.raises(EOFError):
        here.send(b"x", 0.01)


class Wavering(socket.socket):
    """A socket that was ready, and is not any more at the first try."""

    tries = 0

    def send(self, *arguments: Any) -> int:
        """Send at the second try."""
        self._fail_once()
        return super().send(*arguments)

    def recv(self, *arguments: Any) -> bytes:
        """Receive at the second try."""
        self._fail_once()
        return super().recv(*arguments)

    def _fail_once(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise BlockingIOError


def test_a_socket_that_is_not_ready_after_all_is_waited_for() -> None:
    """Another thread may have taken the bytes, or the room for them."""
    one, other = socket.socketpair()
    here, there = Channel(Wavering(fileno=one.detach())), Channel(Wavering(fileno=other.detach()))
    here.send(b"payload", 10)
    assert there.receive(10) == b"payload"
    here.close()
    there.close()


def test_closing_wakes_the_thread_that_waits(ends: tuple[Channel, socket.socket]) -> None:
    """A thread that waits for a frame without limit ends once another closes the channel."""
    here, _ = ends
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            here.receive(1e6)
        except (EOFError, OSError) as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    here.close()
    thread.join(30)
    assert len(ended) == 1


def test_a_forked_copy_cannot_speak() -> None:
    """A copy of the worker that a test forked ends where it would answer in the worker's place."""
    ours, theirs = socket.socketpair()
    there = Channel(theirs)
    pid = os.fork()
    if not pid:
        there.abandon()
        there.send(b"copy")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    there.close()
    assert ours.recv(100) == b""
    ours.close()


# --------------------------------------------------------------------------- messages


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_unreadable(payload: bytes) -> None:
    """No payload raises anything else."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(frame(payload))
        with pytest.raises(UnreadableError):
            m.receive_from_worker(Channel(ours), 1)


@pytest.mark.parametrize(
    "message",
    [
        m.Called("callable", "call", float("nan")),
        m.Checked(-1.0, 1.0, m.Loaded(), children=False),
        m.Warmed(Warm(Shape(0, 10, long=False), 1e-6, 0.1, 1, single=True)),
        m.Warmed(Warm(Shape(1, 10, long=False), 0.0, 0.1, 1, single=True)),
        m.Taken(SliceRecord(**{**vars(RECORD), "call_s": -1e-6})),
        m.Taken(SliceRecord(**{**vars(RECORD), "call_s": float("inf")})),
        m.Taken(SliceRecord(**{**vars(RECORD), "calls": 0})),
        m.Taken(SliceRecord(**{**vars(RECORD), "cpu_s": -0.1})),
        m.Taken(replace(RECORD, phases=(Phase("a/b", count=-1.0, total_s=1e-3, self_s=1e-3, device="host"),))),
        m.Taken(replace(RECORD, phases=(Phase("a/b", count=1.0, total_s=-1e-3, self_s=1e-3, device="host"),))),
        m.Slowed(-1),
    ],
)
def test_impossible_figures_are_refused(message: m.FromWorker) -> None:
    """Figures that no clock can have given, as of one that runs back, never reach the arithmetic."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        m.send(Channel(theirs), message)
        with pytest.raises(UnreadableError):
            m.receive_from_worker(Channel(ours), 1)


def test_deep_nesting_is_refused() -> None:
    """A payload that no parser can follow is an error like any other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(frame(b"[" * 100_000))
        with pytest.raises(UnreadableError):
            m.receive_from_worker(Channel(ours), 1)


def test_clocks_are_those_of_import_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that puts another clock in the place of time's, as freezegun does, is measured by the real one."""
    monkeypatch.setattr("time.perf_counter_ns", lambda: 0)
    clocks = Clocks.host()
    assert clocks.wall_ns() > 0


def test_start_settings_cross_by_a_file(tmp_path: Path) -> None:
    """Any number of paths, with any bytes, reach the worker."""
    odd = os.fsdecode(b"/tests/\xff\n\xc3\xa4.py")
    start = m.Start(3, 0, [odd], ["-k", "\udcff"], [odd] * 20_000, str(tmp_path), False, False, [], [], [])
    m.write_start(start, tmp_path / "start")
    assert m.read_start(tmp_path / "start") == start


# --------------------------------------------------------------------------- a worker process


class FakeWorker:
    """A worker whose process only sleeps, and whose end of the connection the test has."""

    def __init__(self, scratch: Path, number: int = 0, limit_s: float = 0.05, first: str = "") -> None:
        sleeper = scratch / f"python{number}"  # one each: a shell reads its script while it runs
        scratch.mkdir(parents=True, exist_ok=True)
        sleeper.write_text(f"#!/bin/sh\n{first}\nexec sleep 1000\n")
        sleeper.chmod(0o700)
        self.end: socket.socket
        self.forwarded: list[object] = []
        side = Side("side", str(sleeper), (), scratch, (), (), {}, ())
        settings = StartSettings("worker", side, False, False, False, (), (), (), limit_s)
        with keeping_the_other_end() as ends:
            self.process = WorkerProcess(number, settings, scratch / f"worker{number}", Guardian())
        self.process.forward = self.forwarded.append
        (self.end,) = ends
        self.speaker = Channel(self.end)

    def say(self, *messages: m.FromWorker) -> None:
        """Send messages."""
        for message in messages:
            m.send(self.speaker, message)

    def close(self) -> None:
        """End it."""
        self.process.end(0)
        self.speaker.close()


@contextmanager
def keeping_the_other_end() -> Iterator[list[socket.socket]]:
    """Have the channels made meanwhile leave a copy of their other ends here."""
    ends: list[socket.socket] = []
    pair = Channel.pair

    def kept() -> tuple[Channel, socket.socket]:
        here, there = pair()
        ends.append(there.dup())
        return here, there

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "pair", kept)
        yield ends


@contextmanager
def hanging_is_an_error(limit_s: int = 60) -> Iterator[None]:
    """Raise an error where the body hangs."""

    def give_up(number: int, at: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


MESSAGES = st.sampled_from(
    [
        m.Ready(PROTOCOL, ["test"], ""),
        m.Ready(PROTOCOL - 1),
        m.Reported("{}"),
        m.Reported("[" * 1000),
        m.Warned("text", "builtins.UserWarning", "file", 1, "runtest", "", None),
        CALLED,
        CHECKED,
        m.Counted(Tally((), ())),
        WARMED,
        m.Surveyed(m.Loaded(), children=False),
        m.Slowed(1),
        m.Placed(),
        m.Taken(RECORD),
        m.Explained((), ()),
        m.Traced((), ()),
        DONE,
    ]
)
# The number is an offset from the one that is due; the last is the number of bytes that are cut off.
FRAMES = st.tuples(MESSAGES, st.sampled_from([0] * 8 + [-1, 1]), st.sampled_from([0] * 8 + [1, 20]))
GARBAGE = st.binary(min_size=1, max_size=40)
IN_ORDER: tuple[m.FromWorker, ...] = (m.Ready(PROTOCOL, ["test"], ""), CALLED, CHECKED, WARMED, m.Taken(RECORD), DONE)
SPEECHES = st.builds(
    lambda begun, rest: [(message, 0, 0) for message in IN_ORDER[:begun]] + rest,
    st.integers(0, len(IN_ORDER)),
    st.lists(FRAMES | GARBAGE, max_size=6),
)


def drive(worker: WorkerProcess) -> None:
    """Have a worker measure one test, as a run would."""
    worker.wait_ready()
    worker.start_run("test", None, reporter=True, setup_s=0.05, patience_s=0.05)
    worker.wait_called()
    worker.start_check()
    worker.wait_checked()
    worker.warm_up(None, 1.0)
    worker.take(SliceKind.PLAIN)
    worker.conclude(m.Conclude(None, None))


@settings(max_examples=60, deadline=None)
@given(speech=SPEECHES, ending=st.sampled_from(["closes", "dies", "hangs"]))
def test_any_speech_ends_in_an_answer_or_an_error_of_the_test(
    speech: list[tuple[m.FromWorker, int, int] | bytes], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any frames at any point, cut, repeated or left out, and any end: no other error, nothing hangs, no process."""
    worker = FakeWorker(tmp_path_factory.mktemp("fake"))
    number = 0
    for part in speech:
        if isinstance(part, bytes):
            worker.end.send(part)
            continue
        message, offset, cut = part
        payload = payload_of(message)
        number += 1 + offset
        # Each is an answer to the order that a run gives at that point: Ready to none, Called to the first.
        data = frame(payload, number, max(0, number - 1))
        worker.end.send(data[: len(data) - cut])
    if ending == "closes":
        worker.end.shutdown(socket.SHUT_RDWR)
    elif ending == "dies":
        os.kill(worker.process._process.pid, signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patch, hanging_is_an_error():
        patch.setattr(channel, "FRAME_LIMIT_S", 0.05)
        patch.setattr(process, "FRAME_LIMIT_S", 0.05)
        patch.setattr(process, "_POLL_S", 0.01)
        patch.setattr(process, "_DYING_S", 0.01)
        try:
            drive(worker.process)
        except WorkerLostError:
            assert not worker.process.alive
            assert worker.process._process.poll() is not None
        except WorkerStoppedError:
            assert worker.process.unwind() is None
    worker.close()


def test_a_whole_test_in_order_is_measured(tmp_path: Path) -> None:
    """The speech of a sound worker is no error: the check above fails no matter what otherwise."""
    worker = FakeWorker(tmp_path, limit_s=30)
    for number, message in enumerate(IN_ORDER):
        worker.end.send(frame(payload_of(message), number + 1, number))
    drive(worker.process)
    assert not worker.process.running
    worker.close()


def test_an_answer_to_an_earlier_order_is_none(tmp_path: Path, wording: Wording) -> None:
    """An answer that was sent twice is not taken for the answer to the next order."""
    worker = FakeWorker(tmp_path, limit_s=30)
    for number, message in enumerate([*IN_ORDER[:5], m.Taken(RECORD)]):
        worker.end.send(frame(payload_of(message), number + 1, min(number, 4)))
    worker.process.wait_ready()
    worker.process.start_run("test", None, reporter=True, setup_s=30, patience_s=30)
    worker.process.wait_called()
    worker.process.start_check()
    worker.process.wait_checked()
    worker.process.warm_up(None, 1.0)
    worker.process.take(SliceKind.PLAIN)
    with wording.raises(WorkerLostError):
        worker.process.take(SliceKind.PLAIN)
    worker.close()


def started(worker: FakeWorker, *messages: m.FromWorker) -> WorkerProcess:
    """Return a worker at work on a test, whose later orders are answered by some messages, one each."""
    for number, message in enumerate((m.Ready(PROTOCOL, ["test"]), CALLED, *messages)):
        worker.end.send(frame(payload_of(message), number + 1, number))
    worker.process.wait_ready()
    worker.process.start_run("test", None, reporter=True, setup_s=30, patience_s=30)
    worker.process.wait_called()
    return worker.process


def test_each_order_returns_its_answer(tmp_path: Path) -> None:
    """And the files that a worker has loaded later than at its check are added to those it had loaded then."""
    worker = FakeWorker(tmp_path, limit_s=30)
    share = Share("python", 0.5)
    span = Span("call", 0.0, 1e-3, "host")
    process = started(
        worker,
        m.Checked(0.001, 1.0, m.Loaded({"a": "a.py"}, {"c": "a"}), children=False),
        m.Surveyed(m.Loaded({"b": "b.py"}, {"d": "b"}), children=True),
        m.Surveyed(m.Loaded(), children=False),
        m.Slowed(7),
        m.Placed(),
        m.Explained((share,), ("a note",)),
        m.Traced((span,), ()),
    )
    process.start_check()
    assert process.wait_checked() == (0.001, 1.0)
    children = []
    for _ in range(2):
        children.append(process.has_children)
        process.survey()
    assert process.loaded == {"a": "a.py", "b": "b.py"}
    assert process.importers == {"c": "a", "d": "b"}
    assert [*children, process.has_children] == [False, True, True], "also where later calls had none"
    assert process.slow_down(0.1, None) == 7
    process.place([0, 1])
    assert process.explain() == m.Explained((share,), ("a note",))
    assert process.trace() == m.Traced((span,), ())
    orders = [m.receive_order(worker.speaker) for _ in range(8)]
    assert orders[2:] == [
        *(m.Survey(), m.Survey(), m.Slow(0.1, None), m.Place([0, 1])),
        *(m.Explain(), m.TraceCall()),
    ]
    worker.close()


@pytest.mark.parametrize("message", [m.Ready(PROTOCOL + 1), m.Placed()])
def test_a_worker_of_another_version_is_ended(tmp_path: Path, message: m.FromWorker, wording: Wording) -> None:
    """Its first message has another protocol's number, or is another message."""
    worker = FakeWorker(tmp_path, limit_s=30)
    worker.say(message)
    with wording.raises(WorkerLostError):
        worker.process.wait_ready()
    assert not worker.process.alive
    worker.close()


def test_a_worker_that_reads_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """An order that is larger than the connection's buffer is given up after the limit of a message."""
    monkeypatch.setattr(process, "FRAME_LIMIT_S", 0.01)
    worker = FakeWorker(tmp_path, limit_s=30)
    with wording.raises(WorkerLostError):
        worker.process.start_run("x" * 10_000_000, None, reporter=True, setup_s=30, patience_s=30)
    assert not worker.process.alive
    worker.close()


def test_a_connection_that_outlives_its_worker_is_none(tmp_path: Path, wording: Wording) -> None:
    """Another process holds it open, as one does that the worker forked: the worker's end is found all the same."""
    worker = FakeWorker(tmp_path, limit_s=30)
    os.kill(worker.process._process.pid, signal.SIGKILL)
    with hanging_is_an_error(), wording.raises(WorkerLostError):
        worker.process.wait_ready()
    worker.close()


def test_a_worker_ended_by_force_takes_its_descendants_with_it(tmp_path: Path) -> None:
    """Also those in sessions of their own, which no signal to its process group reaches."""
    leave = f'{shlex.quote(sys.executable)} -ISc \'import os; os.setsid(); os.execvp("sleep", ["sleep", "1000"])\' &'
    worker = FakeWorker(tmp_path, limit_s=30, first=leave)
    own = psutil.Process(worker.process._process.pid)
    with hanging_is_an_error():
        while not any(os.getsid(child.pid) == child.pid for child in own.children()):
            pass
    (child,) = own.children()
    worker.close()
    assert child.wait(60) is None  # it is no child of this process, so its status is unknown


def test_a_worker_that_is_gone_uses_nothing(tmp_path: Path) -> None:
    """Its memory and CPU time are 0, and to end it again does no harm."""
    worker = FakeWorker(tmp_path)
    assert worker.process.memory() > 0
    assert worker.process.cpu_s() >= 0
    worker.close()
    assert (worker.process.memory(), worker.process.cpu_s()) == (0, 0.0)
    worker.process.start_quitting()
    worker.process.interrupt_call(0)
    worker.process.end(0)
    assert worker.process.unwind() is None
    assert not worker.process.alive


def test_an_interpreter_that_cannot_be_started_is_an_error(tmp_path: Path, wording: Wording) -> None:
    """The message has its name and the system's reason."""
    side = Side("side", str(tmp_path / "python"), (), tmp_path, (), (), {"HOME": None, "A": "1"}, ())
    settings = StartSettings("worker", side, False, False, False, (), (), (), 1.0)
    with wording.raises(MeasurementError):
        WorkerProcess(0, settings, tmp_path / "worker", Guardian())


# --------------------------------------------------------------------------- limits


class Watch:
    """A clock that goes on by itself, a moment with each look: time passes only for who waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the seconds, and go on."""
        self.now_s += 0.5
        return self.now_s


def test_workers_that_hang_together_take_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Five first calls that hang are waited for as long as one."""
    watch = Watch()
    monkeypatch.setattr("pytest_rlperf.workers.process.time.monotonic", watch)
    monkeypatch.setattr(process, "_POLL_S", 0.001)
    fakes = [FakeWorker(tmp_path, number) for number in range(5)]
    for fake in fakes:
        fake.process.start_run("test", None, reporter=False, setup_s=300, patience_s=300)
        fake.process.start_check()
    begun_s = watch.now_s
    with wording.raises(WorkerLostError):
        wait_all([fake.process for fake in fakes], lambda worker: worker.wait_checked())
    assert watch.now_s - begun_s < 2 * 300
    assert not any(fake.process.alive for fake in fakes)
    for fake in fakes:
        fake.close()


def test_a_fixture_that_hangs_ends_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """The first worker that does not come to its call ends the others that have not, and names the option."""
    watch = Watch()
    monkeypatch.setattr("pytest_rlperf.workers.process.time.monotonic", watch)
    monkeypatch.setattr(process, "_POLL_S", 0.001)
    fakes = [FakeWorker(tmp_path, number) for number in range(5)]
    for fake in fakes:
        fake.say(m.Ready(PROTOCOL, ["test"]))
        fake.process.wait_ready()
    fakes[0].end.send(frame(payload_of(CALLED), 2, 1))

    class Pool:
        def start(self, numbers: range) -> None:
            pass

        def ensure(self, count: int) -> list[WorkerProcess]:
            return [fake.process for fake in fakes[:count]]

    pool: WorkerPool = Pool()  # type: ignore[assignment]
    group = WorkerGroup("test", None, lambda message: None, setup_s=300, patience_s=10)
    begun_s = watch.now_s
    with wording.raises(WorkerLostError):
        group.engage((pool, 5))
    assert watch.now_s - begun_s < 2 * 300
    assert [fake.process.alive for fake in fakes] == [True, False, False, False, False]
    for fake in fakes:
        fake.close()


def test_an_answer_in_time_is_read_late(tmp_path: Path) -> None:
    """An answer that came within its limit counts, also where the run looks for it after the limit."""
    worker = FakeWorker(tmp_path, limit_s=1e-9)
    worker.say(m.Ready(PROTOCOL, ["test"]))
    worker.process.wait_ready()
    assert worker.process.ready
    worker.close()
