"""Garbage: a head call leaves more to the garbage collector than a base call: memory, tensors, open files, children.

Until the collector runs, perhaps after thousands of calls, a user's process holds all of it.
"""

from __future__ import annotations

from pytest_rlperf.judge.counters import more_of
from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.facts import Both, Garbage
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.measured import Counting

_BYTES_LEAST, _WAITING_LEAST = 256 << 10, 16 << 20  # of a call, and of all calls until the collector runs
_COLLECTED_AFTER = 700  # objects, by CPython's usual threshold
_BYTES = ("garbage_bytes", "tensor_garbage_bytes")
_FEW = ("garbage_files", "garbage_threads", "garbage_processes")


def find(then: Counting, now: Counting, policy: Policy) -> Finding | None:
    """Return what a call leaves to the collector, if every process of the head leaves more than any of the base."""
    if policy.findings["garbage"] == OFF:
        return None
    found = more_of(("garbage", *_BYTES, *_FEW), then, now)
    _, objects = found.pop("garbage", (0, _COLLECTED_AFTER))
    calls = max(1.0, _COLLECTED_AFTER / max(1, objects))  # until the collector runs
    least = dict.fromkeys(_BYTES, min(_BYTES_LEAST, _WAITING_LEAST / calls)) | dict.fromkeys(_FEW, 1)
    parts = [Both(name, base, head) for name, (base, head) in found.items() if head - base >= least[name]]
    if not parts:
        return None
    return finding(policy, "garbage", Garbage(tuple(parts)), {name: head - base for name, base, head in parts})
