import atexit
import os
import threading
from pathlib import Path


def note(text):
    with Path("events").open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


def wait_for_main():
    threading.main_thread().join()
    note("thread")


def test_ends(rlperf):
    note("test")
    atexit.register(note, "exit")
    threading.Thread(target=wait_for_main).start()
    rlperf(int)
