"""Whether copies of this process can work: a library that has begun to work before the fork may hang in all of them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pytest_rlperf.workers.loader import fork

LIMIT_S = 10.0
_FAILED = "a copy of the process that collected tests failed with exit code {} at a tensor"
_CUDA_NOT_INITIALIZED = 3  # CUresult, of a call before cuInit


def fault_of_forks(limit_s: float = LIMIT_S) -> str:
    """Return why a copy of this process does not work, by one that tries; empty where it does.

    It multiplies matrices, and with PyTorch runs a parallel operation and a backward pass, in a thread beside. JAX is
    asked, for a copy of it could not be ended where it hangs within XLA.
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
    deadline_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return _FAILED.format(code) if code else ""
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except ChildProcessError:
        return "a handler of SIGCHLD keeps the process that collected tests from seeing how its copies end"
    return f"a copy of the process that collected tests hung for {limit_s:g} s at a tensor operation"


def _uses_cuda() -> bool:
    """Whether this process has initialised CUDA, by whichever library: its driver's library knows."""
    if "libcuda.so" not in Path("/proc/self/maps").read_text(errors="replace"):
        return False
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED)


def _try() -> None:
    """Have every library work that has threads of its own."""
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
