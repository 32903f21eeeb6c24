"""The variables that libraries read when they are loaded: copies of a process keep those from its start."""

from __future__ import annotations

import os
from collections.abc import Mapping

LIBRARY_VARIABLES = (
    "BLIS_", "CUDA_", "GOTO_", "JAX_", "KMP_", "MKL_", "MPL", "MUJOCO_", "NCCL_", "NUMBA_", "NUMEXPR_", "OMP_",
    "OPENBLAS_", "PYTORCH_", "TF_", "TORCH_", "VECLIB_", "XLA_",
)  # fmt: skip
"""The beginnings of variables that libraries read when they are loaded, and that change what their calls do.

A copy sees the variables that SDL reads when a display or a sound card is opened, and those that the C library reads
when a process starts, as a new interpreter does.
"""
_OF_LOGS = ("KMP_WARNINGS", "MPLCONFIGDIR", "NCCL_DEBUG", "TF_CPP_", "TORCH_CPP_LOG", "TORCH_LOGS")


def library_variables() -> dict[str, str]:
    """Return this process's variables that libraries read when they are loaded, and that change what they do."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(LIBRARY_VARIABLES) and not name.startswith(_OF_LOGS)
    }


def differing_variables(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of variables that have been set, changed or removed."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
