from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Node = TypeVar("Node", bound=ast.AST)
ROOT = Path(__file__).parents[2]
PACKAGE = "pytest_rlperf"
# The rooms from the ground up: a module imports its own room and those before it. Every module has a room.
ROOMS = (
    # words
    "errors",
    "units",
    "writing",
    "model",
    # the instruments: usable without pytest
    "timers",
    "",  # the package itself, which hands out the timers
    "probes",
    "devices",
    "counters",
    # what is measured
    "components",
    "compat",
    "suite",
    # what users declare
    "options",
    # the verdict
    "judge",
    "observe",
    "sides",
    "reach",
    "baseline",
    "report",
    # the engine: from a collected test to its evidence
    "fixtures",
    "pytest_benchmark",
    "wire",
    "spawn",
    "worker",
    "pair",
    "run",
    # what users start
    "cli",
    "__main__",
    "plugin",
)
# Rooms that pytest drives.
HOSTS = (
    "options",
    "fixtures",
    "pytest_benchmark",
    "worker.engine",
    "worker.session",
    "run",
    "cli.first_tests.trial_plugin",
    "plugin",
)
# Rooms of the engine by process: the coordinator, the driver of a pair, the process with the user's test.
PROCESSES = {"run", "pair", "worker"}
LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "Barrier", "ThreadPoolExecutor", "ProcessPoolExecutor"}
# In `run/` a test's way is read from top to bottom: each of these returns what the one before asks it for.
WAY = ("run.loop", "run.measure", "run.observation", "run.compare", "run.selfcheck", "run.pairs", "run.test")
WAY_TO_PROCESSES = ("run.drivers", "run.endpoints")
LONGEST_ROW = 9  # modules of a room, of which each imports the next
LONGEST_FUNCTION = 40  # lines
# Entry and exit of a scope stand in one function: by calls of methods an entry takes twice as long.
LONGER_FUNCTIONS = {"_bracket"}
# What is imported in some places alone: stored data and messages, what pytest drives, statistics, verdicts, programs.
PLACES = {
    "pytest": (*HOSTS, "suite"),
    "_pytest": (*HOSTS, "suite"),
    "scipy": ("judge.stats",),
    f"{PACKAGE}.judge": ("judge", "run", "cli", "plugin"),
    # What waits for git, pip and builds, before the loop of a run begins.
    f"{PACKAGE}.sides.prepare": ("sides", "run.loop", "run.bisect", "report.terminal"),
}
TORCH_PLACES = ("components", "probes", "devices", "counters", "compat", "suite")
TORCH_AT_THE_TOP = ("components.reference",)
# Where a frozen record may be a dataclass: users meet it, every pytest run or timer loads it, or it is compared by some
# of its fields only.
DATACLASSES = ("components", "compat", "timers", "suite", "cli.first_tests", "model.timing", "model.reach", "options")
HEAVY = {"torch", "scipy", "numpy", "gymnasium", "jinja2", "msgspec", "psutil", "ray", "rich"}
# All that a pytest run without --rlperf loads of this package. Modules with many frozen types take long to import.
LOADED_BY_THE_PLUGIN = {
    f"{PACKAGE}.{name}" for name in ("errors", "fixtures", "model", "model.findings", "options", "plugin")
}


@dataclass(frozen=True)
class Import:
    """One name a module imports, at its top or within a function, or for the type checker alone."""

    target: str
    line: int
    in_function: bool
    typing_only: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]

    @property
    def inside(self) -> str | None:
        """The imported module's name within the package, "" for the package itself, None outside it."""
        return self.target[len(PACKAGE) + 1 :] if self.library == PACKAGE else None


@dataclass(frozen=True)
class Module:
    """A module of the package; ``name`` is the dotted name below the package."""

    name: str
    path: str
    tree: ast.Module
    imports: tuple[Import, ...]
    nodes: dict[type[ast.AST], list[ast.AST]]

    def within(self, *places: str) -> bool:
        """Whether the module is one of ``places``, or lies in one."""
        return any(self.name == place or self.name.startswith(f"{place}.") for place in places)

    def all(self, kind: type[Node]) -> list[Node]:
        """Return all nodes of a kind, wherever they stand in the module."""
        return [node for node in self.nodes.get(kind, ()) if isinstance(node, kind)]

    def at(self, line: int, finding: str) -> str:
        return f"{self.path}:{line}: {finding}"


class _ImportFinder(ast.NodeVisitor):
    """Collects the imports of a module of the package."""

    def __init__(self, package: str, known: set[str]) -> None:
        self.found: list[Import] = []
        self._package = package
        self._known = known
        self._in_function = False
        self._typing_only = False

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the statements in a statement: no expression imports anything."""
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, part, ()):
                self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside, self._in_function = self._in_function, True
        self.generic_visit(node)
        self._in_function = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            self.generic_visit(node)
            return
        outside, self._typing_only = self._typing_only, True
        for child in node.body:
            self.visit(child)
        self._typing_only = outside
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self._package.split(".")[: -(node.level - 1) or None]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            # A name imported from a package may be a module of it.
            deeper = f"{base}.{alias.name}"
            self._add(deeper if deeper in self._known else base, node.lineno)

    def _add(self, target: str, line: int) -> None:
        self.found.append(Import(target, line, self._in_function, self._typing_only))


def sources_of(root: Path) -> dict[str, str]:
    """Return the source of every module below the package's directory, by its path there."""
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}


def parse_modules(sources: dict[str, str]) -> list[Module]:
    """Parse the modules of a package from their sources by path."""
    names = {path: path.removesuffix(".py").replace("/", ".") for path in sources}
    names = {path: "" if name == "__init__" else name.removesuffix(".__init__") for path, name in names.items()}
    known = {f"{PACKAGE}.{name}".removesuffix(".") for name in names.values()}
    modules = []
    for path, name in names.items():
        tree = ast.parse(sources[path])
        full = f"{PACKAGE}.{name}".removesuffix(".")
        finder = _ImportFinder(full if path.endswith("__init__.py") else full.rpartition(".")[0], known)
        finder.visit(tree)
        nodes: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(tree):
            nodes.setdefault(type(node), []).append(node)
        modules.append(Module(name, f"{PACKAGE}/{path}", tree, tuple(finder.found), nodes))
    return modules


def floor(name: str) -> int | None:
    """Return how high a module's room stands, None for a module without a room."""
    top = name.partition(".")[0]
    return ROOMS.index(top) if top in ROOMS else None


def imports_of(modules: Iterable[Module], libraries: set[str]) -> Iterator[tuple[Module, Import]]:
    """Yield the imports of ``libraries`` that happen when the code runs."""
    for module in modules:
        for found in module.imports:
            if found.library in libraries and not found.typing_only:
                yield module, found


Rule = Callable[[list[Module]], list[str]]


def model_and_units_stand_alone(modules: list[Module]) -> list[str]:
    """Rule 1: `model`, `errors` and `units` import the standard library, msgspec's records, and each other."""
    return [
        module.at(found.line, f"imports {found.target}")
        for module in modules
        if module.within("model", "errors", "units")
        for found in module.imports
        if found.library not in {*sys.stdlib_module_names, "msgspec"}
        and (found.inside or "").partition(".")[0] not in {"model", "errors", "units"}
    ]


def what_is_watched_loads_little(modules: list[Module]) -> list[str]:
    """Observe: every process of a side imports it, and so it imports the standard library and `model` only."""
    return [
        module.at(found.line, f"imports {found.target}")
        for module in modules
        if module.within("observe")
        for found in module.imports
        if found.library not in sys.stdlib_module_names
        and (found.inside or "").partition(".")[0] not in {"model", "observe"}
    ]


def libraries_stay_in_their_places(modules: list[Module]) -> list[str]:
    """Rules 1 and 3: some libraries, and the verdict's own room, are imported in few places."""
    return [
        module.at(found.line, f"imports {found.target}")
        for module in modules
        for found in module.imports
        if found.inside is not None or not found.typing_only
        for target, places in PLACES.items()
        if f"{found.target}.".startswith(f"{target}.") and not module.within(*places)
    ]


def every_module_has_a_room(modules: list[Module]) -> list[str]:
    """Rooms: every module stands in one of those listed here."""
    return [module.at(1, "has no room") for module in modules if floor(module.name) is None]


def rooms_stand_on_lower_ones(modules: list[Module]) -> list[str]:
    """Rooms: a module imports its own and those below it, types included."""
    findings = []
    for module in modules:
        own = floor(module.name)
        for found in module.imports:
            theirs = None if found.inside is None else floor(found.inside)
            if own is None or theirs is None or theirs <= own:
                continue
            findings.append(module.at(found.line, f"imports {found.target}, whose room stands above its own"))
    return findings


def a_path_says_in_which_process_a_line_runs(modules: list[Module]) -> list[str]:
    """Engine: the coordinator, the driver and the worker share `wire`, `spawn` and `model`, and none of each other."""
    return [
        module.at(found.line, f"imports {found.target}")
        for module in modules
        for found in module.imports
        if (own := module.name.partition(".")[0]) in PROCESSES
        and (found.inside or "").partition(".")[0] in PROCESSES - {own}
    ]


def the_engine_has_no_locks(modules: list[Module]) -> list[str]:
    """Engine: the run is one loop, and a pair is a process: nothing is locked, signalled or put into a pool."""
    return [
        module.at(line, f"has {name}")
        for module in modules
        if module.within(*PROCESSES, "spawn", "wire")
        for line, name in (
            *((node.lineno, node.attr) for node in module.all(ast.Attribute)),
            *((node.lineno, node.id) for node in module.all(ast.Name)),
        )
        if name in LOCKS
    ]


def what_is_broken_off_closes_itself(modules: list[Module]) -> list[str]:
    """Engine: jobs may be closed wherever they wait; contexts of `schedule` undo things, and no holder by hand."""
    return [
        module.at(node.lineno, f"catches {caught}")
        for module in modules
        if module.within("run") and not module.within("run.schedule")
        for node in module.all(ast.ExceptHandler)
        if (caught := "everything" if node.type is None else ast.unparse(node.type))
        and any(name in caught for name in ("everything", "BaseException", "GeneratorExit"))
    ]


def nobody_on_a_tests_way_is_called_back(modules: list[Module]) -> list[str]:
    """Engine: on a test's way nothing gives its own methods away in a partial, or is a protocol of callbacks."""
    return [
        module.at(node.lineno, f"has {node.id}")
        for module in modules
        if module.within(*WAY, *WAY_TO_PROCESSES)
        for node in module.all(ast.Name)
        if node.id in {"partial", "Protocol"}
    ]


def labels_decide_nothing(modules: list[Module]) -> list[str]:
    """Engine: what a process is called is for users; what it is stands in a field of its own."""
    return [
        module.at(node.lineno, f"compares {ast.unparse(node)}")
        for module in modules
        if module.within(*PROCESSES)
        for node in module.all(ast.Call)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in {"startswith", "endswith"}
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "name"
    ]


def rows_are_short(modules: list[Module]) -> list[str]:
    """Size: in a room of the engine few modules import each other in a row, so that one is read after few others."""
    below = {
        module.name: {
            found.inside
            for found in module.imports
            if found.inside and found.inside != module.name and not found.typing_only
        }
        for module in modules
        if module.within(*PROCESSES)
    }

    @cache
    def row(name: str) -> tuple[str, ...]:
        room = name.partition(".")[0]
        rows = [row(other) for other in sorted(below[name]) if other in below and other.partition(".")[0] == room]
        return name, *max(rows, key=len, default=())

    longest = max(map(row, below), key=len, default=())
    return [f"{' → '.join(longest)}: {len(longest)} in a row"] if len(longest) > LONGEST_ROW else []


def torch_stays_in_its_places(modules: list[Module]) -> list[str]:
    """Rule 3: torch and gymnasium are imported only in their places, at the top only where nothing loads without."""
    return [
        module.at(found.line, f"imports {found.target}")
        for module, found in imports_of(modules, {"torch", "gymnasium"})
        if not module.within(*TORCH_PLACES) or not (found.in_function or module.within(*TORCH_AT_THE_TOP))
    ]


def adapters_are_alone(modules: list[Module]) -> list[str]:
    """Adapters import no other library's, and load their library, and PyTorch, within functions alone."""
    registry = "components.libraries"
    findings = []
    for module in modules:
        own = module.name.removeprefix(f"{registry}.")
        if own == module.name:
            continue
        for found in module.imports:
            is_light = found.library in {PACKAGE, "numpy"} | sys.stdlib_module_names
            is_later = found.in_function or found.typing_only
            inside = found.inside or ""
            other = inside.removeprefix(f"{registry}.")
            is_other = other != inside and other.partition(".")[0] != own.partition(".")[0]
            if is_other or not (is_light or is_later):
                findings.append(module.at(found.line, f"imports {found.target}"))
    return findings


def state_lives_in_timers(modules: list[Module]) -> list[str]:
    """Rule 7: outside timers no function rebinds a global, and no container is made empty at a module's top.

    `compat` has the globals of the timers that it stands in for, `devices` the drivers of this process, and
    `observe.audit` its one audit hook.
    """
    findings = []
    for module in modules:
        if module.within("timers", "devices", "compat", "observe.audit"):
            continue
        findings += [module.at(node.lineno, f"rebinds {', '.join(node.names)}") for node in module.all(ast.Global)]
        findings += [
            module.at(node.lineno, f"holds {ast.unparse(node)}")
            for node in module.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and ast.unparse(node.value) in {"[]", "{}", "list()", "dict()", "set()"}
        ]
    return findings


def functions_are_short(modules: list[Module]) -> list[str]:
    """Size: a function that does not fit a screen is asking to be two."""
    return [
        module.at(node.lineno, f"{node.name} has {node.end_lineno - node.lineno + 1} lines")
        for module in modules
        for node in (*module.all(ast.FunctionDef), *module.all(ast.AsyncFunctionDef))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
        and node.name not in LONGER_FUNCTIONS
    ]


def frozen_records_are_structs(modules: list[Module]) -> list[str]:
    """Start: Python takes half a millisecond to make a frozen dataclass, and a run has two hundred kinds of records."""
    return [
        module.at(node.lineno, f"{node.name} is a frozen dataclass")
        for module in modules
        if not module.within(*DATACLASSES)
        for node in module.all(ast.ClassDef)
        if any("dataclass(frozen" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


RULES: tuple[Rule, ...] = (
    model_and_units_stand_alone,
    what_is_watched_loads_little,
    every_module_has_a_room,
    rooms_stand_on_lower_ones,
    a_path_says_in_which_process_a_line_runs,
    the_engine_has_no_locks,
    what_is_broken_off_closes_itself,
    nobody_on_a_tests_way_is_called_back,
    labels_decide_nothing,
    rows_are_short,
    libraries_stay_in_their_places,
    torch_stays_in_its_places,
    adapters_are_alone,
    state_lives_in_timers,
    frozen_records_are_structs,
    functions_are_short,
)


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many nodes without the garbage collector, which takes twice as long as their parser."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    with uncollected():
        found = parse_modules(sources_of(ROOT / PACKAGE))
    assert {"", "model", "timers.tree", "judge.stats", "plugin"} <= {module.name for module in found}
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps(modules: list[Module], rule: Rule) -> None:
    """Every module of the package keeps the rule."""
    findings = rule(modules)
    assert not findings, f"{rule.__doc__}\n" + "\n".join(findings)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (what_is_broken_off_closes_itself, "try:\n    work()\nexcept (OSError, GeneratorExit):\n    undo()"),
        (what_is_broken_off_closes_itself, "try:\n    work()\nexcept:\n    undo()"),
        (nobody_on_a_tests_way_is_called_back, "from functools import partial\nloop = partial(print, 1)"),
        (frozen_records_are_structs, "@dataclass(frozen=True)\nclass Found:\n    pairs: int"),
        (labels_decide_nothing, "is_pair = driver.name.startswith('the pair')"),
        (rows_are_short, f"from {PACKAGE}.run import m0"),
    ],
)
def test_a_breach_is_found(rule: Rule, source: str) -> None:
    """In a module of a test's way, below which there are as many in a row as may be."""
    row = {f"run/m{number}.py": f"from {PACKAGE}.run import m{number + 1}" for number in range(LONGEST_ROW - 1)}
    last = {f"run/m{LONGEST_ROW - 1}.py": ""}
    assert rule(parse_modules({**row, **last, "run/measure.py": ""})) == []
    assert len(rule(parse_modules({**row, **last, "run/measure.py": source}))) == 1


def modules_loaded_by(*statements: str) -> list[set[str]]:
    """Return the modules of a fresh interpreter after each of the ``statements``."""
    code = "\n".join(["import sys", *(f"{each}\nprint(*sys.modules)" for each in statements)])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return [{*line.split()} for line in result.stdout.splitlines()]


def libraries_of(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def loaded_by_the_plugin() -> tuple[set[str], set[str]]:
    """Return the modules that a fresh interpreter has by pytest, and with the plugin."""
    own, all_of_them = modules_loaded_by("import pytest", "import pytest_rlperf.plugin")
    return own, all_of_them


def test_importing_the_plugin_loads_nothing_heavy(loaded_by_the_plugin: tuple[set[str], set[str]]) -> None:
    """A run without --rlperf pays for none of the libraries that measuring needs."""
    own, loaded = map(libraries_of, loaded_by_the_plugin)
    assert not loaded & (HEAVY - own)


def test_importing_the_plugin_loads_few_modules(loaded_by_the_plugin: tuple[set[str], set[str]]) -> None:
    """They are those of the options and the fixtures: none that describes what a run has found."""
    own, all_of_them = loaded_by_the_plugin
    loaded = all_of_them - own
    assert not loaded & {"statistics", "fractions"}
    assert {name for name in loaded if name.startswith(f"{PACKAGE}.")} == LOADED_BY_THE_PLUGIN


def test_importing_the_package_loads_no_pytest() -> None:
    """Timers can live in production code, where pytest is not installed."""
    timers, loaded = map(
        libraries_of,
        modules_loaded_by("from pytest_rlperf import hierarchical_timer, timed", "from pytest_rlperf import *"),
    )
    assert PACKAGE in timers
    assert not timers & HEAVY
    assert not loaded & ((HEAVY - {"msgspec"}) | {"pytest", "_pytest"})


def test_every_test_says_what_holds() -> None:
    """A test has a docstring; the name of a test's helper may be enough."""
    with uncollected():
        found = [
            f"{path.name}: {node.name}"
            for path in sorted((ROOT / "tests").rglob("*.py"))
            if "samples" not in path.parts
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
        ]
    assert found == []
