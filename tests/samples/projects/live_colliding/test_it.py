"""Tests whose sides collide: with each other over a lock, or with a file and a port that another process has."""

import os
import socket
from pathlib import Path

import mylib
import pytest


def take(kind):
    if kind == "file":
        open(os.environ["TAKEN"], "x")
    else:
        try:
            socket.socket().bind(("127.0.0.1", int(os.environ["PORT"])))
        except OSError as error:
            raise RuntimeError("no server") from error


@pytest.fixture
def taken(request):
    side, kind = request.param
    if side == mylib.SIDE:
        take(kind)


@pytest.fixture
def lock():
    path = Path(os.environ["TAKEN"] + ".lock")
    with path.open("x"):
        yield
    path.unlink()


CASES = [(side, kind) for side in ("base", "head") for kind in ("file", "port")]


@pytest.mark.parametrize("taken", CASES, indirect=True, ids="-".join)
def test_taken(rlperf, taken):
    rlperf(mylib.work)


def test_lock(rlperf, lock):
    rlperf(mylib.work)


@pytest.fixture
def on_base():
    if mylib.SIDE == "base":
        take("file")


def test_work(rlperf, on_base):
    rlperf(mylib.work)
