"""Every frozen type and enum that crosses a wall between two stages.

Quantities are in base units: seconds as ``float``, integer nanoseconds where a name ends in ``_ns``.
"""

from pytest_rlperf.model.checked import Fitness, Selfcheck, Trial
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
    disturbances_text,
)
from pytest_rlperf.model.judged import Allowance, Creep, Estimate, Outcome, Policy, Reason, Status, Verdict
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
    Warm,
    WorkerRecord,
    Workload,
)
from pytest_rlperf.model.progress import Progress
from pytest_rlperf.model.sides import Project, Side, Sides
from pytest_rlperf.model.stored import (
    KERNEL_VERSION,
    Acceptance,
    Baseline,
    FirstFigures,
    Machine,
    Provenance,
    StoredResult,
)
from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing

__all__ = [
    "KERNEL_VERSION",
    "POWER_CAP",
    "POWER_CAP_VARIES",
    "Acceptance",
    "Allowance",
    "Baseline",
    "Bound",
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
    "Live",
    "Machine",
    "Measure",
    "Mode",
    "Outcome",
    "Pace",
    "PairRecord",
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
    "Shape",
    "Share",
    "Side",
    "Sides",
    "SliceKind",
    "SliceRecord",
    "Status",
    "StoredResult",
    "Tally",
    "TimerTree",
    "Timing",
    "Trial",
    "Verdict",
    "Warm",
    "WorkerRecord",
    "Workload",
    "disturbances_text",
    "log_ratios",
]
