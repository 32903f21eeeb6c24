"""``rlperf init``: writes first tests, of the libraries that are installed and of the project's own components."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlperf.cli.command import Command, Exit, UsageError, print_text

if TYPE_CHECKING:
    from pytest_rlperf.components.libraries import Library
    from pytest_rlperf.sides.packages import Package

_FILE = "test_perf.py"
_GATE = Path(".github", "workflows", "gate.yml")

# Lines of gate.yml that differ between projects.
_STEPS = "    steps:\n"
_REPOSITORY = "git+https://github.com/pytest-rlperf/pytest-rlperf"  # there is no release yet
_INSTALL = f"run: pip install -e . 'pytest-rlperf @ {_REPOSITORY}'"
_MEASURE = "run: python -m pytest"

_HEAD = '''\
"""Performance tests, begun by `rlperf init`. They are yours: change sizes, rename tests, delete those you do not need.

pytest                          runs each component once and checks it
pytest --rlperf-save-baseline   measures, and stores the figures in baselines/
pytest --rlperf                 measures, compares, and fails where something got slower

Tests of libraries have the environment and the sizes of `rlperf suite`: put your own in their place.
"""
'''

_ONE_THREAD = '''
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request):
    """At the sizes of a benchmark more threads mostly add noise; whole iterations keep the library's own."""
    if "rlperf_train" not in request.fixturenames:
        torch.set_num_threads(1)
'''

_EXAMPLE = '''
import numpy as np


def compute_gae(rewards, values, dones, last_values, gamma, lam):
    """An example in NumPy: delete it, and import the function of your own code."""
    advantages, following, next_values = np.zeros_like(rewards), 0.0, last_values
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * alive * next_values - values[t]
        following = advantages[t] = delta + gamma * lam * alive * following
        next_values = values[t]
    return advantages


def test_gae(rlperf_gae):
    rlperf_gae(compute_gae)
'''

_IMPORTS = (ast.Import, ast.ImportFrom)

# Of a class that a fixture measures: its method, the parameter that this takes, the fixture, the rest of the call.
_METHODS = (
    ("sample", "batch_size", "rlperf_replay_sample", ", batch_size=256"),
    ("update", "batch_size", "rlperf_sac_update", ", batch_size=256"),
    ("collect", "n_steps", "rlperf_ppo_collect", ", n_steps=128"),
    ("update", "rollout", "rlperf_ppo_update", ", n_steps=128"),
)


@dataclass(frozen=True)
class Found:
    """A component of the project's own code: its name and module, the fixture that measures it, and the call's rest.

    A class is ``made`` from arguments that only its author knows.
    """

    name: str
    module: str
    fixture: str
    rest: str
    made: bool = True

    def source(self, name: str) -> str:
        """Return a test of it, with its import, under another name; one of a class is skipped until it is edited."""
        renamed = "" if name == self.name else f" as {name}"
        test = f"def {self.fixture.replace('rlperf_', 'test_')}({self.fixture}):\n"
        imports = f"from {self.module} import {self.name}{renamed}\n\n\n"
        if not self.made:
            return f"{imports}{test}    {self.fixture}({name}{self.rest})\n"
        reason = f"write the arguments of {self.name}(…), and delete this line"
        skip = f'@pytest.mark.skip(reason="{reason}")\n'
        return f"import pytest\n{imports}{skip}{test}    {self.fixture}({name}(...){self.rest})\n"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="PATH", help=f"the file to write (default: tests/{_FILE})")
    parser.add_argument(
        "--github", action="store_true", help=f"also write {_GATE}, which compares pull requests with their base"
    )
    parser.epilog = "Run it in the project's root. It writes over no file."


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.errors import SideError
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.sides.build import read_settings

    root = Path()
    try:
        output = arguments.output or _tests_directory(read_settings(root)) / _FILE
        top = _repository_top(root)
        gate = Path(os.path.relpath(top / _GATE))
        if arguments.github and not output.resolve().is_relative_to(top):
            raise UsageError(f"{output} is outside {top}, and the workflow checks out nothing else")
        keep = output.exists() and arguments.github and not gate.exists()
        advice = {output: "--output PATH names another", gate: "move it, or leave out --github"}
        for path in ([output] if not keep else []) + ([gate] if arguments.github else []):
            if path.exists() or path.is_symlink():
                raise UsageError(f"{path} exists, and rlperf init writes over no file: {advice[path]}")
        packages = _packages(root, output)
        used, own = _own_components(packages)
        found = _installed_libraries(used)
        if not keep:
            _write(output, _test_file(found, own))
            print_text(shown(f"wrote {output}: {', '.join(_tests(output))}") + "\n")
        if arguments.github:
            _write(gate, _workflow(root, top, output, found))
            print_text(shown(f"wrote {gate}: each pull request is compared with its base") + "\n")
    except (SideError, OSError) as error:
        raise UsageError(str(error)) from None
    print_text(_next_steps(shown(str(output))))
    return Exit.NOTHING_SLOWER


def _next_steps(output: str) -> str:
    commands = {
        f"pytest {output}": "runs each component once and checks it; commit then",
        f"pytest {output} --rlperf-save-baseline": "measures this commit, stores baselines/; commit that too",
        f"pytest {output} --rlperf": "after each change: fails where something got slower",
    }
    width = max(map(len, commands))
    return "next:\n" + "".join(f"  {command:<{width}}  {text}\n" for command, text in commands.items())


def _write(path: Path, text: str) -> None:
    from pytest_rlperf.writing import write_whole

    write_whole(path, text.encode("utf-8"))


# --------------------------------------------------------------------------- the project


def _tests_directory(settings: dict[str, Any]) -> Path:
    """Return the first directory of tests that pytest's settings in pyproject.toml name, or ``tests``."""
    options = _table(_table(settings, "tool"), "pytest")
    named = (_table(options, "ini_options") or options).get("testpaths")
    places = named.split() if isinstance(named, str) else named if isinstance(named, list) else []
    return next((Path(place) for place in places if isinstance(place, str) and Path(place).is_dir()), Path("tests"))


def _table(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table among settings, empty where there is none of that name."""
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _repository_top(root: Path) -> Path:
    """Return the top of the git repository around the project, where GitHub reads workflows; the root outside one."""
    here = root.resolve()
    return next((place for place in (here, *here.parents) if (place / ".git").exists()), here)


def _packages(root: Path, output: Path) -> list[Package]:
    """Return the project's packages that a test in ``output`` can import: those installed, and those beside it."""
    from pytest_rlperf.model.sides import Project
    from pytest_rlperf.sides.packages import packages_under_test

    top = root.resolve()
    project = Project(
        rootdir=top,
        directory=top,
        inipath=None,
        args=(),
        path=(),
        files=(output.resolve(),),
        conftests=(),
        test_patterns=("test_*.py", "*_test.py"),
        packages=(),
        baseline_dir=top / "baselines",
    )
    found = packages_under_test(project, top)
    return [package for package in found if package.distribution or package.entry == output.resolve().parent]


def _own_components(packages: Iterable[Package]) -> tuple[set[str], list[Found]]:
    """Return the modules that the project's code imports, by their first names, and its own components."""
    imported: set[str] = set()
    found: dict[str, Found] = {}
    for package in packages:
        imported.add(package.name)
        for module, tree in _modules(package):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    imported.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.partition(".")[0])
            for component in _components(module, tree):
                found.setdefault(component.fixture, component)
    return imported, list(found.values())


def _modules(package: Package) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of a package, parsed: its public ones, in the order of their names."""
    place = package.location
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_name(f"{place.name.removesuffix('.py')}.py")]
    for path in paths:
        below = path.relative_to(place).with_suffix("").parts if place.is_dir() else ()
        parts = [package.name, *(part for part in below if part != "__init__")]
        if path.is_file() and not any(part.startswith(("_", "test")) for part in parts):
            try:
                yield ".".join(parts), ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # a template, code of another Python, or an expression of thousands of parts


def _components(module: str, tree: ast.Module) -> Iterator[Found]:
    """Yield the components among a module's public names."""
    from pytest_rlperf.components.gae import takes_rollout

    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if takes_rollout(node.name, *_parameters(node)):
                uses_torch = re.search(r"\btorch\b|\bTensor\b", _text(node))
                backend = ', backend="torch"' if uses_torch else ""
                yield Found(node.name, module, "rlperf_gae", backend, made=False)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
            for name, parameter, fixture, rest in _METHODS:
                if name in methods and _parameters(methods[name])[0][1:2] == [parameter]:
                    yield Found(node.name, module, fixture, rest)
            if {"reset", "step"} <= methods.keys() and "num_envs" in _text(node):
                yield Found(node.name, module, "rlperf_vecenv_step", "")


def _text(node: ast.AST) -> str:
    """Return the code of a definition, empty where it is nested too deeply."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def _parameters(function: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """Return the names of a function's parameters, and of those without a default."""
    given = function.args
    placed = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    keyword = [argument.arg for argument in given.kwonlyargs]
    required = placed[: len(placed) - len(given.defaults)]
    required += [name for name, default in zip(keyword, given.kw_defaults, strict=True) if default is None]
    return placed + keyword, required


def _installed_libraries(used: set[str]) -> list[Library]:
    """Return the libraries that are installed and have tests to begin with; of these the used ones, where any are."""
    from pytest_rlperf.components.libraries import libraries

    installed = [library for library in libraries() if library.starter and find_spec(library.module) is not None]
    return [library for library in installed if library.module in used] or installed


# --------------------------------------------------------------------------- the files


def _test_file(found: Iterable[Library], own: Iterable[Found]) -> str:
    """Return the module of tests: of the project's own components, of the libraries, and an example of GAE."""
    starters = [library.first_tests.read_text(encoding="utf-8") for library in found]
    imported = [node.names for starter in starters for node in ast.parse(starter).body if isinstance(node, _IMPORTS)]
    taken = {alias.asname or alias.name for names in imported for alias in names}
    sources = [each.source(name) for each, name in _with_names(own, taken)] + starters
    if not any("(rlperf_gae" in source for source in sources):
        sources.append(_EXAMPLE)
    if find_spec("torch") is not None:
        sources.insert(0, _ONE_THREAD)
    imports, bodies = zip(*map(_divided, sources), strict=True)
    head = "\n".join(_sorted_imports({line for lines in imports for line in lines}))
    return f"{_HEAD}\n{head}\n\n\n" + "\n\n\n".join(bodies) + "\n"


def _with_names(own: Iterable[Found], taken: Iterable[str]) -> Iterator[tuple[Found, str]]:
    """Yield each component with the name to import it by, which no component of another module has."""
    modules = dict.fromkeys(taken, "")
    for each in own:
        others = (f"Own{each.name}{number or ''}" for number in itertools.count())
        names = itertools.chain([each.name], others)
        yield each, next(name for name in names if modules.setdefault(name, each.module) == each.module)


def _divided(source: str) -> tuple[list[str], str]:
    """Return the imports at the top of a module, and the rest of its text."""
    module = ast.parse(source)
    body = module.body if ast.get_docstring(module) is None else module.body[1:]
    count = next((index for index, node in enumerate(body) if not isinstance(node, _IMPORTS)), None)
    imports = [ast.unparse(node) for node in body[:count]]
    last = max((node.end_lineno or 0 for node in body[:count]), default=0)
    return imports, "\n".join(source.splitlines()[last:]).strip("\n")


def _sorted_imports(lines: Iterable[str]) -> list[str]:
    """Return import lines in the order that isort gives them: modules first."""
    return sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1].lower(), line))


def _tests(output: Path) -> list[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse(output.read_bytes())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _workflow(root: Path, top: Path, output: Path, found: Iterable[Library]) -> str:
    """Return the workflow that installs the project, where it is one, and all that the tests use, and runs them."""
    from pytest_rlperf.sides.packages import is_project

    uses_torch = re.search(rb"\btorch\b", output.read_bytes())
    needed = dict.fromkeys(
        [f"pytest-rlperf{'[rl]' if uses_torch else ''} @ {_REPOSITORY}", *(library.requirement for library in found)]
    )
    install = shlex.join(["pip", "install", *(["-e", "."] if is_project(root) else []), *needed])
    tests = shlex.quote(Path(os.path.relpath(output.resolve(), root.resolve())).as_posix())
    block = ">-\n          " if re.search("[:#]", tests) else ""  # one line, in which YAML reads no sign of its own
    text = Path(__file__).with_name("gate.yml").read_text(encoding="utf-8")
    text = text.replace(_INSTALL, f"run: {install}").replace(_MEASURE, f"run: {block}python -m pytest {tests}")
    if root.resolve() == top:
        return text
    place = json.dumps(root.resolve().relative_to(top).as_posix(), ensure_ascii=False)
    return text.replace(_STEPS, f"    defaults:\n      run:\n        working-directory: {place}\n{_STEPS}")


INIT = Command("init", "Write a first file of measured tests, for what is installed here.", _add_arguments, _run)
