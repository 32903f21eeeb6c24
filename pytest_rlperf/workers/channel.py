"""The connection between a run and a worker: numbered frames over a socket, each of which must come whole."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

FRAME_MOST = 1 << 28  # bytes
FRAME_LIMIT_S = 30.0  # from the first byte of a frame to its last
_MARK = b"rlpf"
_HEADER = struct.Struct(">4sIII")  # the mark, the payload's bytes, the frame's number, the last number received
_READ_MOST = 1 << 20


class UnreadableError(Exception):
    """The bytes received are no message of this protocol, or not the one that is due."""


class Channel:
    """One end of a connection. Frames are numbered from 1, so that a lost, repeated or forged one is found.

    Each frame has the number of the last one its sender had received: ``answers_last`` is whether the last frame
    received was sent after the last frame sent from here had been read. One thread at a time sends, one
    receives, and any may close the channel.
    """

    def __init__(self, end: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self.answers_last = True
        self._socket = end
        self._clock = clock
        self._sending = threading.Lock()  # each is held while the socket is used, so that it is not closed meanwhile
        self._receiving = threading.Lock()
        self._buffer = bytearray()
        self._begun_s: float | None = None  # the arrival of the first byte of the frame that is not whole yet
        self._sent = 0
        self._received = 0
        self._is_abandoned = False

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return a channel, and the other end for another process."""
        here, there = socket.socketpair()
        return cls(here), there

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    @property
    def is_within_frame(self) -> bool:
        """Whether a part of a frame has arrived."""
        return bool(self._buffer)

    def send(self, payload: bytes, limit_s: float | None = None) -> None:
        """Send one frame; TimeoutError where the other side does not read it in time, OSError where it is gone."""
        self._leave_copies()
        deadline_s = None if limit_s is None else self._clock() + limit_s
        self._sent += 1
        left = memoryview(_HEADER.pack(_MARK, len(payload), self._sent, self._received) + payload)
        while left:
            with self._sending:
                if not self._is_ready(select.POLLOUT, deadline_s):
                    raise TimeoutError("a message was not read in time")
                try:
                    left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue

    def receive(self, limit_s: float | None = None) -> bytes | None:
        """Return the payload of the next frame, or None where none is whole after ``limit_s``.

        EOFError where the other side is gone, UnreadableError where it sent other bytes or, with a limit, stopped
        within a frame. Without a limit this waits for ever.
        """
        self._leave_copies()
        deadline_s = None if limit_s is None else self._clock() + limit_s
        while (payload := self._whole_frame()) is None:
            if deadline_s is not None:
                self._check_pace()
            with self._receiving:
                if not self._is_ready(select.POLLIN, deadline_s):
                    return None
                self._read()
        return payload

    def close(self) -> None:
        """Close this end; a thread that waits here gets an EOFError or an OSError."""
        with contextlib.suppress(OSError):  # the other side has closed its end, or this one is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending, self._receiving:
            self._socket.close()

    def abandon(self) -> None:
        """Close this end in a forked copy of its process, which ends where it uses the channel."""
        self._is_abandoned = True
        self._socket.close()

    def _leave_copies(self) -> None:
        """End this process where it is a copy of the one whose channel this is: a test forked, and both went on."""
        if self._is_abandoned:
            os._exit(1)

    def _is_ready(self, event: int, deadline_s: float | None) -> bool:
        """Wait until the socket is ready, or the other side is gone; False where the deadline comes first."""
        if self.closed:
            raise EOFError
        poll = select.poll()
        poll.register(self._socket, event)
        wait_ms = None if deadline_s is None else 1000 * max(0.0, deadline_s - self._clock())
        return bool(poll.poll(wait_ms))

    def _read(self) -> None:
        """Read the bytes that have arrived."""
        try:
            data = self._socket.recv(_READ_MOST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        if not self._buffer:
            self._begun_s = self._clock()
        self._buffer += data

    def _whole_frame(self) -> bytes | None:
        """Take a frame off the bytes received, if there is a whole one; UnreadableError where they begin none."""
        start = bytes(self._buffer[: len(_MARK)])
        if not _MARK.startswith(start):
            raise UnreadableError(f"{bytes(self._buffer[:40])!r} is no message of rlperf's")
        if len(self._buffer) < _HEADER.size:
            return None
        _, length, number, answered = _HEADER.unpack_from(self._buffer)
        if length > FRAME_MOST:
            raise UnreadableError(f"a message of {length / 1e6:.0f} MB is over the limit of {FRAME_MOST / 1e6:.0f} MB")
        if number != self._received + 1:
            raise UnreadableError(f"message {number} came where message {self._received + 1} was due")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        self._begun_s = self._clock() if self._buffer else None
        self._received = number
        self.answers_last = answered == self._sent
        return payload

    def _check_pace(self) -> None:
        """Raise UnreadableError where a frame takes too long to come."""
        if self._begun_s is not None and self._clock() - self._begun_s > FRAME_LIMIT_S:
            raise UnreadableError(f"the rest of a message did not come within {FRAME_LIMIT_S:.0f} s")
