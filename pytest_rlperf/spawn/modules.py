"""What both sides load alike: modules that a preload server imports once for all of their processes."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Collection, Iterable, Set
from pathlib import Path
from pkgutil import iter_modules

from pytest_rlperf.observe.observer import LoadedFiles, belongs_to
from pytest_rlperf.sides.environment import parent_sites, site_packages
from pytest_rlperf.sides.installs import top_level

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
        "pygame",  # SDL has threads and devices once it is started
        "glfw",  # it opens a display
        "OpenGL",  # chooses its platform when it is loaded
        "mujoco",  # reads MUJOCO_GL when it is loaded: mjlab#1036
        "warp",  # opens the device, and CUDA that is in use does not outlive a fork: pycuda#137
        "numba",  # reads variables when it is loaded; kills a copy's parallel kernel: PteraSoftware#229, numba#3202
    }
)
"""Packages that do not work after a fork, or whose import fixes a setting that a test may change."""

_WITHOUT_OPTIMIZER = frozenset({"rlperf_gae", "rlperf_replay_sample", "rlperf_vecenv_step", "rlperf_import"})
"""Fixtures whose components make no optimizer of PyTorch's."""

_WITHOUT_ARRAYS = frozenset({"benchmark", "rlperf", "rlperf_import"})
"""Fixtures of components that need NumPy only for what the tests' own code returns."""

_USING_GYMNASIUM = frozenset({"rlperf_vecenv_step", "rlperf_ppo_collect", "rlperf_ppo_update", "rlperf_train"})
"""Fixtures whose components mostly load Gymnasium, even if the test files do not."""

_USING_TORCH = frozenset({"rlperf_sac_update", "rlperf_ppo_collect", "rlperf_ppo_update", "rlperf_train"})
"""Fixtures whose components load PyTorch, even if the test files do not."""

# The modules of a session that works on orders, beside pytest's own, and the libraries that these need.
_SESSION = ("pytest_rlperf.plugin", "pytest_rlperf.worker.session", "pytest_rlperf.pair.driver")
_LIBRARIES = ("pytest", "msgspec", "psutil")


def outside_tree(top: Path) -> list[str]:
    """Return the places below a tree that are not part of it: the running environment, if it lies there."""
    places = {os.path.realpath(place) for place in (sys.prefix, *map(str, parent_sites()))}
    return sorted(place for place in places if place.startswith(f"{top}{os.sep}"))


def is_of_tree(file: str, top: str, outside: Iterable[str]) -> bool:
    """Whether a file lies below ``top``, and in none of the places that are not part of the tree."""
    return file.startswith(f"{top}{os.sep}") and not file.startswith(tuple(f"{place}{os.sep}" for place in outside))


def packages_of(top: Path) -> set[str]:
    """Return the packages that this process has loaded from the tree at ``top``."""
    return {name.partition(".")[0] for name in _loaded_from(top)}


def _loaded_from(top: Path) -> set[str]:
    """Return the modules that this process has loaded from a tree."""
    outside = outside_tree(top)
    loaded = LoadedFiles([str(top)], ()).now().items()
    return {name for name, file in loaded if is_of_tree(file, os.path.realpath(top), outside)}


def modules_alike(
    top: Path, differing: Collection[str], ours: Collection[str], fixtures: Iterable[str] = ()
) -> list[str]:
    """Return the modules that this process has loaded to collect the tests, without those that may differ on a side.

    Modules that the components of ``fixtures`` need are added. Modules are left out if they lie in the tree at ``top``,
    belong to ``differing`` packages, or are among ``ours``, which the run has loaded for itself. So are pytest's
    plugins, as pytest rewrites their asserts when it loads them.
    """
    left_out = {*NEVER, *differing, *_plugins(), "pytest_rlperf"}
    below = _loaded_from(top)
    names = [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__spec__", None) is not None
        and name not in ours
        and name not in below
        and not belongs_to(name, left_out)
        and name.partition(".")[0] not in {"__main__", "__mp_main__", "sitecustomize", "usercustomize"}
    ]
    asked = {name for name in fixtures if name in ("rlperf", "benchmark") or name.startswith("rlperf_")}
    own = [name for name in _LIBRARIES if not belongs_to(name, left_out)]
    own += [] if "pytest_rlperf" in {*below, *differing} else [*_SESSION, *_components(asked)]
    # The first step of any optimizer imports the second, which takes a second.
    uses_torch = "torch" in names or not _USING_TORCH.isdisjoint(fixtures)
    needed = ("torch",) if asked <= _WITHOUT_OPTIMIZER else ("torch", "torch._dynamo")
    used = needed if uses_torch and not belongs_to("torch", left_out) else ()
    steps = [] if _USING_GYMNASIUM.isdisjoint(asked) or belongs_to("gymnasium", left_out) else ["gymnasium"]
    # Each template seeds NumPy's generator, which loads the second. Where the run has NumPy for itself, the tests'
    # own code may have it as well.
    uses_arrays = not asked <= _WITHOUT_ARRAYS or ("numpy" in ours and asked != {"rlperf_import"})
    arrays = ["numpy", "numpy.random"] if uses_arrays and not belongs_to("numpy", left_out) else []
    return [*names, *arrays, *steps, *own, *used]


def _components(asked: Set[str]) -> list[str]:
    """Return our own modules that make workloads for the fixtures ``asked``, with the libraries' adapters if need be.

    Pytest would look for asserts to rewrite, which they lack, in each worker that is the first to import them.
    """
    if asked <= _WITHOUT_ARRAYS:
        return ["pytest_rlperf.components.calls"]
    from pytest_rlperf import components
    from pytest_rlperf.components import libraries

    homes = (components, libraries)
    found = [f"{home.__name__}.{module.name}" for home in homes for module in iter_modules(home.__path__)]
    return [name for name in found if not belongs_to(name, (f"{components.__name__}.reference",))]


def _plugins() -> set[str]:
    """Return the top-level modules of the distributions that have pytest plugins.

    Pytest warns, which may be an error, if any of them is loaded before pytest loads it.
    """
    entries = importlib.metadata.entry_points(group="pytest11")
    found = {entry.value.partition(":")[0].partition(".")[0] for entry in entries}
    found = found.union(*(top_level(entry.dist) for entry in entries if entry.dist is not None))
    return found - {"pytest_rlperf"}


def sites_of(python: str) -> tuple[str, list[str]]:
    """Return an interpreter's prefix, and the directories of its packages, where its ``.pth`` files lie."""
    if python == sys.executable:
        return sys.prefix, [str(place) for place in parent_sites()]
    environment = Path(os.path.abspath(python)).parent.parent  # noqa: PTH100 - its link leads to another interpreter
    return str(environment), [str(site_packages(environment))]
