"""Whether copies of a template can work, and what the template may import for all of them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable

from pytest_rlperf.spawn.preload import fork, settings
from pytest_rlperf.spawn.torch_threads import release_threads
from pytest_rlperf.spawn.variables import library_variables

_CUDA_NOT_INITIALIZED = 3  # CUresult, of a call before cuInit


def import_more(names: Iterable[str]) -> str | None:
    """Import modules that copies of this process have imported; return the first that leaves more behind than itself.

    It may leave a thread, a log handler or a native library's variable, which must not be copied.
    """
    for name in names:
        if name in sys.modules:
            continue
        found = settings(), library_variables()
        with warnings.catch_warnings(), contextlib.suppress(Exception, SystemExit):
            warnings.simplefilter("ignore")  # a test that imports the module has seen them
            importlib.import_module(name)
        if (settings(), library_variables()) != found:
            return name
    gc.freeze()
    return None


def fault_of_forks(limit_s: float = 10.0) -> str:
    """Return why a copy of this process does not work, as tried by a copy, or "" if it works.

    The copy runs a thread, multiplies matrices, and with PyTorch runs a parallel operation and a backward pass. For
    JAX, this process's state decides, as a copy that hangs within XLA could not be ended.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        return "JAX has begun to compute before the tests run, and a copy of its process would hang"
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return f"the thread {threads[0]} runs before the tests do, and a copy of its process would lack it"
    if _uses_cuda():
        return "CUDA is in use before the tests run, and a copy of its process could not use it"
    pid = fork()
    if not pid:
        code = 1
        try:
            _try()
            code = 0
        finally:
            os._exit(code)
    copy, deadline_s = "a copy of the process that collected tests", time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return f"{copy} failed with exit code {code} at a tensor" if code else ""
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except ChildProcessError:
        return "a handler of SIGCHLD keeps the process that collected tests from seeing how its copies end"
    return f"{copy} hung for {limit_s:g} s at a tensor operation"


def _uses_cuda() -> bool:
    """Whether this process has initialised CUDA, by any library; the driver's library knows."""
    with open("/proc/self/maps", errors="replace") as maps:  # noqa: PTH123
        if "libcuda.so" not in maps.read():
            return False
    import ctypes

    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED)


def _try() -> None:
    """Use every library that has its own threads once."""
    release_threads()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        matrix = numpy.ones((128, 128))
        matrix @ matrix
    if torch is not None:
        values = torch.ones(100_000, requires_grad=True)
        (values * 2).sum().backward()
