"""PyTorch's threads in a process that is copied."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

# A module computes with PyTorch, and sets the number of threads; then a copy of the process computes with all threads.
COPIED = """
import os
from pytest_rlperf.spawn.after_import import AfterImport
from pytest_rlperf.spawn.torch_threads import HeldThreads, release_threads

AfterImport(("torch",), HeldThreads).begin()
import torch

def compute():
    values = torch.ones(1_000_000, requires_grad=True)
    (values * 2).sum().backward()
    return len(os.listdir("/proc/self/task"))

usual = torch.get_num_threads()
torch.set_num_threads(3)
before = torch.get_num_threads(), compute()
if os.fork():
    print(before, os.waitstatus_to_exitcode(os.wait()[1]))
else:
    release_threads()
    own = type(torch.set_num_threads).__name__
    os._exit(0 if (torch.get_num_threads(), own) == (3, "builtin_function_or_method") and compute() > 1 else 1)
"""


def test_a_module_that_computes_leaves_its_process_fit_to_be_copied() -> None:
    """PyTorch keeps the usual number of threads, and what the module has set, from the release on."""
    done = subprocess.run([sys.executable, "-c", COPIED], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("(3, 1) 0\n", "")
