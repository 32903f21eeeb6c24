"""Writes down all that a process may have inherited, without what differs from process to process anyway."""

import decimal
import faulthandler
import gc
import importlib
import importlib.metadata
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path

import numpy as np

OWN = ("pytest_rlperf.", "encodings.")
# What a component needs of the standard library: a copy has it, and a new interpreter has it later.
for name in ("email.parser", "pkgutil"):
    importlib.import_module(name)
importlib.metadata.version("pytest")  # so does the headline of a run, which loads more from Python 3.13 on
importlib.import_module(os.environ["WITH"])
torch = sys.modules.get("torch")
DRAWN = [random.random(), np.random.random()]  # while modules are imported


def descriptors():
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # of the listing itself
        found.append((place.partition(":")[0].rpartition("/")[2], os.get_inheritable(number)))
    return sorted(found)


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_RLPERF_")}


def inherited(config):
    main, process = sys.modules["__main__"], multiprocessing.current_process()
    thread = threading.main_thread()
    umask = os.umask(0)
    os.umask(umask)
    return {
        "descriptors": descriptors(),
        "environment": environment(),
        "directory": os.getcwd(),
        "signals": {
            each.name: str(signal.getsignal(each)).partition(" at ")[0]
            for each in signal.valid_signals()
            if isinstance(each, signal.Signals)
        },
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "arguments": sys.argv,
        "path": sys.path,
        "interpreter": [sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix, str(sys.flags), sys.warnoptions],
        "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
        "filters": [str(each) for each in warnings.filters],
        # Copies have one more of a kind, for PyTorch's threads.
        "finders": [*dict.fromkeys(getattr(each, "__name__", type(each).__name__) for each in sys.meta_path)],
        "path hooks": [getattr(each, "__qualname__", str(each)) for each in sys.path_hooks],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__],
        "tracing": [sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()],
        "logging": [[type(each).__name__ for each in logging.getLogger().handlers], logging.getLogger().level],
        "free locks": [each.lock is None or each.lock.acquire(timeout=1) for each in logging.getLogger().handlers],
        "torch": torch and [str(torch.get_default_dtype()), torch.get_num_threads(), torch.get_num_interop_threads()],
        "numpy": [np.geterr(), str(np.get_printoptions())],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "limits": [
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            umask,
            os.nice(0),
            sorted(os.sched_getaffinity(0)),
        ],
        "resources": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name},
        "locale": [locale.setlocale(locale.LC_ALL), str(decimal.getcontext()), socket.getdefaulttimeout()],
        "threads": [[each.name for each in threading.enumerate()], thread.native_id == os.getpid()],
        "drawn": [DRAWN, random.random(), np.random.random(), torch and torch.rand(1).item()],
        "main": [main.__name__, getattr(main, "__file__", None), main.__spec__],
        "multiprocessing": [
            multiprocessing.get_start_method(allow_none=True),
            len(process.authkey),
            process.name,
            multiprocessing.parent_process(),
            multiprocessing.active_children(),
        ],
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "streams": [type(each).__name__ for each in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__)],
        "terminals": [os.isatty(number) for number in range(3)],
        "worker": config.workerinput,
        "modules": sorted(set(sys.modules) - {"runpy"} - {name for name in sys.modules if name.startswith(OWN)}),
    }


def test_inherited(rlperf, request):
    found = inherited(request.config)
    name = "-".join([request.config.workerinput["workerid"], request.config.getini("rlperf_workers")])
    Path(f"{name}.json").write_text(json.dumps(found, default=str))
    rlperf(int)
