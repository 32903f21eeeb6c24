"""Connections between processes, and the start of a new interpreter at the other end of one."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_rlperf import wire
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.spawn.preload import socket_of

HALF_MESSAGE_S = 30  # from the first byte of a message to its last
_CREDENTIALS = struct.Struct("3i")  # a process's number, user and group
_PADDING = "PYTEST_RLPERF_PADDING"
_PADDING_MOST = 4096  # bytes: a page


def connected() -> tuple[Connection, Connection]:
    """Return the two ends of a new connection; the first does not wait for ever for half a message."""
    here, there = socket.socketpair()
    there.setblocking(True)  # whatever default time limit a test module has set
    return limited(here), Connection(there.detach())


def limited(here: socket.socket) -> Connection:
    """Return a socket's connection, which does not wait for ever, and tells who sends."""
    here.setblocking(True)
    limit = struct.pack("ll", HALF_MESSAGE_S, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        here.setsockopt(socket.SOL_SOCKET, option, limit)
    if sys.platform == "linux":
        here.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return Connection(here.detach())


def sender_of(connection: Connection) -> int:
    """Return the kernel's number for the process that sent what can be read next, 0 without one.

    Code under test runs in that process, and could name any other.
    """
    with socket_of(connection) as channel:
        _, found, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
    for level, kind, data in found:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = _CREDENTIALS.unpack(data)
            return int(pid)
    return 0


def interpreter(
    program: str,
    environment: Mapping[str, str],
    scratch: Path,
    *arguments: str,
    key: str = wire.DESCRIPTOR_KEY,
    settings: wire.DriverSettings | wire.SessionSettings | None = None,
    python: str = sys.executable,
    directory: str | None = None,
    stdout: Path | None = None,
    stderr: Path | None = None,
    also: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a Python that runs a program's text, and send it any ``settings``; return it and the connection to it.

    MeasurementError if it cannot be started. There, the variable ``key`` has the number of the connection's descriptor,
    and the descriptors ``also`` are open, too. Output without a file goes to the terminal.
    """
    here, there = connected()
    scratch.mkdir(parents=True, exist_ok=True)
    with there, contextlib.ExitStack() as files:
        out, err = (None if path is None else files.enter_context(path.open("ab")) for path in (stdout, stderr))
        try:
            process = subprocess.Popen(
                [python, *interpreter_flags(), "-c", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**environment, key: str(there.fileno())},
                pass_fds=[there.fileno(), *also],
                start_new_session=True,  # a Ctrl-C at the terminal is for the run to handle
            )
        except OSError as error:
            raise MeasurementError(f"cannot start {python}: {error}") from None
    if settings is not None:
        here.send_bytes(json.dumps(wire.as_json(settings)).encode())
    return process, here


def padded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment of random size, so that each interpreter has other stack addresses, and another layout.

    One layout for all would be a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong data without
    doing anything obviously wrong!", ASPLOS 2009)
    """
    return {**environment, _PADDING: "." * random.SystemRandom().randrange(_PADDING_MOST)}


def interpreter_flags() -> list[str]:
    """Return the flags that this interpreter was started with, as multiprocessing passes them on."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]
