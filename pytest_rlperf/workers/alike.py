"""The modules that both sides of a comparison load alike, which a loader imports once for all of their processes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pytest_rlperf.sides.loaded import belongs_to, loaded_files

NEVER = frozenset(
    {
        "grpc",  # threads, and handlers at forks that deadlock: grpc#22624, #38020
        "ray",  # processes, threads and gRPC: ray#33572, imitation#160
        "wandb",  # finalizers that wait for a thread which a copy lacks: wandb#12079
        "sentry_sdk",  # a lock that another thread holds at the fork: sentry-python#6148, #6149
        "tensorflow",  # thread pools from its import on: tensorflow#2448, #51832
        "tensorboard",  # gRPC and TensorFlow: grpc#14055
        "tensorboardX",
        "torch.utils.tensorboard",
        "pygame",  # SDL reads its variables when it is loaded
        "glfw",  # likewise, and it opens a display
        "OpenGL",  # chooses its platform when it is loaded
        "mujoco",  # reads MUJOCO_GL when it is loaded: mjlab#1036
        "warp",  # opens the device, and CUDA that is in use does not outlive a fork: pycuda#137
        "numba",  # reads variables when it is loaded; kills a copy's parallel kernel: PteraSoftware#229, numba#3202
    }
)
"""Packages that do not outlive a fork, or that settle at their import what a test may want otherwise."""

_IMPORT = re.compile(r"^[ \t]*(?:import[ \t]|from[ \t]+[^. \t]).*", re.MULTILINE)  # of another package, perhaps

_USING_TORCH = frozenset({"rlperf_sac_update", "rlperf_ppo_collect", "rlperf_ppo_update", "rlperf_train"})
"""Fixtures whose components load PyTorch, also where test files do not."""

# The modules of a session that works on orders, beside pytest's own.
_SESSION = ("pytest", "pytest_rlperf.plugin", "pytest_rlperf.workers.session")


def modules_alike(
    places: Iterable[Path], differing: Collection[str], ours: Collection[str], fixtures: Iterable[str] = ()
) -> list[str]:
    """Return the modules that this process has loaded to collect the tests, less those that may differ on a side.

    Added is what components need that ``fixtures`` measure. Left out is what lies at ``places``, belongs to
    ``differing`` packages, and ``ours``, which the run has loaded for itself; plugins of pytest, too, for it
    rewrites their asserts as it loads them.
    """
    left_out = {*NEVER, *differing, *_plugins(), "pytest_rlperf"}
    below = loaded_files([str(place) for place in places], ())
    names = [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__spec__", None) is not None
        and name not in ours
        and name not in below
        and not belongs_to(name, left_out)
        and name.partition(".")[0] not in {"__main__", "__mp_main__", "sitecustomize", "usercustomize"}
    ]
    own = [] if "pytest_rlperf" in differing else list(_SESSION)
    # The first step of any optimizer imports the second, which takes a second.
    uses_torch = "torch" in names or not _USING_TORCH.isdisjoint(fixtures)
    used = ("torch", "torch._dynamo") if uses_torch and not belongs_to("torch", left_out) else ()
    return [*names, *own, *used]


def imports_more(base: Mapping[str, str], head: Mapping[str, str]) -> bool:
    """Whether head's files, by their modules, have lines that import what no line of base's files does."""
    return not _import_lines(head.values()) <= _import_lines(base.values())


def _import_lines(files: Iterable[str]) -> set[str]:
    lines: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError):  # what cannot be read imports nothing that is known
            text = Path(file).read_text(encoding="utf-8", errors="replace") if file.endswith(".py") else ""
            lines |= {found.strip() for found in _IMPORT.findall(text)}
    return lines


def _plugins() -> set[str]:
    """Return the top-level modules of the distributions that have plugins of pytest.

    Pytest warns, which may be an error, where any of them is loaded before it.
    """
    entries = importlib.metadata.entry_points(group="pytest11")
    found = {entry.value.partition(":")[0].partition(".")[0] for entry in entries}
    for entry in entries:
        files = (entry.dist.files if entry.dist is not None else None) or ()
        found |= {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
    return found - {"pytest_rlperf"}


def sites_of(python: str) -> tuple[str, list[str]]:
    """Return the prefix of an interpreter, and the directories of its packages, where its ``.pth`` files lie."""
    from pytest_rlperf.sides.environment import parent_sites, site_packages

    if python == sys.executable:
        return sys.prefix, [str(place) for place in parent_sites()]
    environment = Path(os.path.abspath(python)).parent.parent  # noqa: PTH100 - its link leads to another interpreter
    return str(environment), [str(site_packages(environment))]
