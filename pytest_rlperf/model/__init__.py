"""Every frozen type and enum that crosses a wall between two stages.

Quantities are in base units: seconds as ``float``, integer nanoseconds where a name ends in ``_ns``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pytest_rlperf.model.counting import Count, CounterChange, Counting, PhaseCounts, Share, Tally
from pytest_rlperf.model.device import (
    POWER_CAP,
    POWER_CAP_VARIES,
    Bound,
    Conditions,
    DeviceFigures,
    DeviceSlice,
    DeviceTimes,
    Disturbance,
    Pace,
)
from pytest_rlperf.model.live import Contribution, Live, PairRecord, log_ratios
from pytest_rlperf.model.measured import (
    Figures,
    Harvest,
    Measure,
    Phase,
    Probe,
    Result,
    Shape,
    SliceKind,
    SliceRecord,
    Start,
    Warm,
    WorkerRecord,
    Workload,
    impossible_figures,
    out_of_range,
    test_name,
    work_text,
)
from pytest_rlperf.model.progress import Progress
from pytest_rlperf.model.sides import Project, Side, Sides
from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing

if TYPE_CHECKING:
    from pytest_rlperf.model.judged import Allowance, Creep, Estimate, Outcome, Part, Policy, Shard, Status, Verdict
    from pytest_rlperf.model.reasons import Code, MachineDifference, Reason, VersionChange, WrittenReason
    from pytest_rlperf.model.selfcheck import Fitness, Selfcheck, Trial
    from pytest_rlperf.model.stored import (
        KERNEL_VERSION,
        LARGEST_LOG,
        Acceptance,
        Anchor,
        Baseline,
        FirstFigures,
        Link,
        Machine,
        PairSpread,
        Provenance,
        SessionFigures,
        StoredResult,
        session_figures,
    )
else:
    # Loaded when first wanted: a worker judges and stores nothing, and these types take a tenth of its imports.
    _JUDGING = ("judged", "reasons", "selfcheck", "stored")

    def __getattr__(name: str) -> object:
        for room in _JUDGING if name in __all__ else ():
            module = import_module(f"{__name__}.{room}")
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KERNEL_VERSION",
    "LARGEST_LOG",
    "POWER_CAP",
    "POWER_CAP_VARIES",
    "Acceptance",
    "Allowance",
    "Anchor",
    "Baseline",
    "Bound",
    "Code",
    "Conditions",
    "Contribution",
    "Count",
    "CounterChange",
    "Counting",
    "Creep",
    "DeviceFigures",
    "DeviceSlice",
    "DeviceTimes",
    "Disturbance",
    "Estimate",
    "Figures",
    "FirstFigures",
    "Fitness",
    "Gauge",
    "Harvest",
    "Link",
    "Live",
    "Machine",
    "MachineDifference",
    "Measure",
    "Mode",
    "Outcome",
    "Pace",
    "PairRecord",
    "PairSpread",
    "Part",
    "Phase",
    "PhaseCounts",
    "Policy",
    "Probe",
    "Progress",
    "Project",
    "Provenance",
    "Reason",
    "Result",
    "Selfcheck",
    "SessionFigures",
    "Shape",
    "Shard",
    "Share",
    "Side",
    "Sides",
    "SliceKind",
    "SliceRecord",
    "Start",
    "Status",
    "StoredResult",
    "Tally",
    "TimerTree",
    "Timing",
    "Trial",
    "Verdict",
    "VersionChange",
    "Warm",
    "WorkerRecord",
    "Workload",
    "WrittenReason",
    "impossible_figures",
    "log_ratios",
    "out_of_range",
    "session_figures",
    "test_name",
    "work_text",
]
