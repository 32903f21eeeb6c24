"""Threads that look where they may run, before and after the process was placed."""

import os, threading
from pathlib import Path
from pytest_rlperf.worker.resources import cpu_reader, place
from pytest_rlperf.spawn.cpus import usable_cpus

before = usable_cpus()
last = before[-1]
asked, told = threading.Semaphore(0), threading.Semaphore(0)
seen = []


def look():
    asked.acquire()
    seen.append((usable_cpus(), cpu_reader()()))
    told.release()


def all_look():
    del seen[:]
    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(2):
        asked.release()
        told.acquire()
    thread.join()
    return seen[:]


early = threading.Thread(target=look)
early.start()
place([last])
assert usable_cpus() == (last,)
assert cpu_reader()() == last
assert all_look() == [((last,), last)] * 2, seen
early.join()
late = threading.Thread(target=look)
late.start()
place(before)
assert usable_cpus() == before
found = all_look()
assert [cpus for cpus, _ in found] == [before] * 2, found
late.join()
print("done")
