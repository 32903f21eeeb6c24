"""Phases and torch.compile: a scope cannot be compiled, so entering one breaks the graph of the code around it."""

from __future__ import annotations

import sys
from types import FrameType

_PACKAGES = ("pytest_rlperf.timers", "pytest_rlperf.testing")
_COMPILES = "OptimizeContext"  # what runs compiled code; of the same file is what keeps code from being compiled

_EVALUATES = ("_dynamo/eval_frame.py", "_dynamo\\eval_frame.py")

_told: set[int] = set()


def keep_out() -> None:
    """Have PyTorch's compiler, where it is loaded, leave the code of timers as it is.

    Where a scope breaks a graph, the compiler would otherwise go on with the scope's own code: compile that, watch its
    variables, and compile it again as they change, which counts as recompiling what is measured.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    add = getattr(rules, "add", None)
    if add is not None and id(rules) not in _told:
        _told.add(id(rules))
        for package in _PACKAGES:
            add(package)


def is_within_compiled() -> bool:
    """Whether the code that called this, at any distance, runs where torch.compile was to compile it."""
    frame: FrameType | None = sys._getframe(1) if "torch._dynamo.eval_frame" in sys.modules else None
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_EVALUATES):
            if code.co_name == "compile_wrapper":
                return True
            if code.co_name == "_fn":  # older PyTorch's name for it, and any one's for what is not compiled
                return type(frame.f_locals.get("self")).__name__ == _COMPILES
        frame = frame.f_back
    return False
