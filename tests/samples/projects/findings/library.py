"""What head does more than base once ``NEW`` is true: for each kind of finding what fails, and what passes."""

import functools
import itertools
import os
import tempfile
import threading
import time

from pytest_rlperf import hierarchical_timer

NEW = False
KEPT, CACHE, TURNS = [], {}, itertools.count()


def work(rounds=2_000):
    return float(sum(range(rounds)))


def growth_of_a_list():
    if NEW:
        KEPT.append(bytes(1_000))
    return work()


def growth_of_a_cache():
    if NEW:
        CACHE[next(TURNS) % 64] = bytes(1_000)
    return work()


def block():
    open(f"/dev/shm/growth_{os.getpid()}_{next(TURNS)}", "x").close()


block_for_all = functools.cache(block)


def growth_of_shared_memory():
    if NEW:
        block()
    return work(20_000)


def growth_of_one_block():
    if NEW:
        block_for_all()
    return work(20_000)


def growth_of_temporary_files():
    if NEW:
        os.close(tempfile.mkstemp()[0])
    return work(20_000)


file_for_all = functools.cache(tempfile.mkstemp)


def growth_of_one_temporary_file():
    if NEW:
        file_for_all()
    return work(20_000)


class Pipe:
    """Knows itself, as an env and its wrapper know each other."""

    def __init__(self, sends):
        self.file, self.own = open("/dev/null") if sends else None, self


def garbage_of_files():
    Pipe(sends=NEW)
    return work()


def garbage_of_objects():
    if NEW:
        [Pipe(sends=False) for _ in range(10)]
    return work(20_000)


@functools.cache
def pool():
    for _ in range(4):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def threads_that_stay():
    if NEW:
        pool()
    return work()


def threads_that_end():
    if NEW:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return work(200_000)


@functools.cache
def prepare(seconds):
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def first_call_of_a_second():
    if NEW:
        prepare(1.0)
    return work()


def first_call_of_a_tenth():
    if NEW:
        prepare(0.1)
    return work()


def scale_of_a_copy(stored):
    if NEW:
        bytearray(stored)
    return work()


def scale_of_a_batch(stored):
    if NEW:
        bytearray(1_000)
    return work()


def phases_much_longer():
    _phases(1_800 if NEW else 1_000)


def phases_a_little_longer():
    _phases(1_050 if NEW else 1_000)


def _phases(rounds):
    with hierarchical_timer("act"):
        work(40_000)
    with hierarchical_timer("log"):
        work(rounds)


def outputs_doubled():
    return {"loss": work() * (1 + NEW)}


def outputs_rounded():
    return {"loss": work() * (1 + 1e-9 * NEW)}
