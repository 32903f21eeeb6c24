"""The number of lanes of this machine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_rlperf.model.notes import FewerLanes
from pytest_rlperf.run.schedule import PAIRS_MOST, Lanes
from pytest_rlperf.run.state import RunState
from pytest_rlperf.spawn.cpus import CGROUP, cgroup_limits, read_system_file, usable_cpus

_CORES = Path("/sys/devices/system/cpu")


class LaneCount(NamedTuple):
    """The number of lanes of this machine: its ``cpus``, one of each core, or fewer if a ``quota`` of CPUs is set."""

    cpus: tuple[int, ...]
    quota: float | None

    @property
    def most(self) -> int:
        """The most lanes at once: at least one, even if the system does not list its CPUs."""
        cpus = max(1, len(self.cpus))
        return cpus if self.quota is None else max(1, min(cpus, int(self.quota)))


def count_lanes(cpus: Collection[int] | None = None, cores: Path = _CORES, cgroup: Path = CGROUP) -> LaneCount:
    """Return the lanes of the CPUs that this process may use.

    Hyper-threads of one core share its arithmetic units, so they are one lane.
    """
    usable = sorted(usable_cpus() if cpus is None else cpus)
    by_core: dict[str, int] = {}
    for cpu in usable:
        siblings = read_system_file(cores / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        by_core.setdefault(siblings, cpu)
    limits = (text.partition(" ")[::2] for text in cgroup_limits("cpu.max", cgroup))  # the tightest one counts
    quota = min((int(limit) / int(period) for limit, period in limits if (limit + period).isdigit()), default=None)
    return LaneCount(tuple(by_core.values()), quota)


def make_lanes(config: pytest.Config, run: RunState) -> Lanes:
    """Return the lanes of a run: one if tests share an output; note it if there are fewer than wanted."""
    machine, wanted = count_lanes(), run.settings.lanes
    if config.getoption("capture", "no") in ("no", "tee-sys") or run.settings.selfcheck:
        wanted = 1
    cpus = max(1, len(machine.cpus))
    if wanted is None and machine.most < cpus:
        run.note(FewerLanes(machine.most, cpus, machine.quota))
    elif wanted is not None and wanted > cpus:
        run.note(FewerLanes(cpus, wanted, None))
    return Lanes(min(wanted or machine.most, cpus), machine.cpus, wanted or PAIRS_MOST)
