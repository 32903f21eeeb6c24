"""The components in a project's code, found by reading it: nothing of the project is imported or run."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeAlias

from pytest_rlperf.errors import see
from pytest_rlperf.sides.installs import is_project
from pytest_rlperf.sides.trees import is_environment

_Definition: TypeAlias = "ast.FunctionDef | ast.ClassDef"

_NO_CODE = ("test_*.py", "*_test.py", "conftest.py", "setup.py", "noxfile.py")
_NOT_SEARCHED = {
    *("bench", "benchmark", "benchmarks", "doc", "docs", "example", "examples", "test", "tests"),
    *("build", "dist"),
}

# Values by the names that parameters have, of a task with three numbers to observe and one to act with.
_MAKE_OBS = "obs, action = np.random.rand(3).astype(np.float32), np.random.rand(1).astype(np.float32)"
_VALUES = {
    name: value
    for value, names in {
        "stored": "capacity buffer_size max_size size maxlen max_len memory_size buffer_capacity max_capacity",
        "episode_steps": "episode_steps episode_length max_episode_steps max_steps max_ep_len horizon time_limit",
        "3": "obs_dim state_dim observation_dim ob_dim obs_size state_size observation_size n_obs input_dim",
        "1": "act_dim action_dim ac_dim act_size action_size",
        "2": "n_actions num_actions",
        "8": "num_envs n_envs",
        "128": "n_steps num_steps",
        "256": "batch_size",
        "64": "hidden hidden_dim hidden_size",
        "(64, 64)": "hidden_sizes hidden_dims",
        "(3,)": "obs_shape state_shape observation_shape",
        "(1,)": "act_shape action_shape",
        "0": "seed idx",
        "0.99": "gamma",
        "0.005": "tau",
        "0.2": "alpha",
        "3e-4": "lr learning_rate actor_lr critic_lr",
        "1.0": "max_action action_scale",
        "False": "capture_video",
        '"cpu"': "device",
        '"rlperf"': "run_name",
        '"Pendulum-v1"': "env_id env_name",
        'gymnasium.make("Pendulum-v1")': "env",
        'gymnasium.make_vec("Pendulum-v1", num_envs=8)': "envs vec_env venv",
        "gymnasium.spaces.Box(-1.0, 1.0, (3,))": "observation_space obs_space state_space",
        "gymnasium.spaces.Box(-1.0, 1.0, (1,))": "action_space act_space",
    }.items()
    for name in names.split()
}
_BUFFERS = ("buffer", "replay_buffer", "memory", "replay", "rb")
# Of one transition; an episode has ten steps.
_TRANSITION = {
    name: value
    for value, names in {
        "obs": "obs state observation s o ob next_obs next_state next_observation s2 o2 next_o s_ ns new_obs obs_next",
        "action": "action act a ac actions",
        "1.0": "reward rew r",
        "step % 10 == 9": "done dones d terminated terminal term end",
        "False": "truncated trunc timeout",
        "0.5": "value val logp log_prob priority",
        "[{}]": "infos",
        "{}": "info",
        "(obs, action, 1.0, obs, step % 10 == 9)": "transition experience",
    }.items()
    for name in names.split()
}
_FILL = ("add", "push", "store", "append", "insert", "put", "remember", "store_transition", "add_transition")
_DRAW = ("sample", "sample_batch", "random_batch", "sample_transition_batch", "get_batch", "draw")
_UPDATE = ("update", "train_step", "update_parameters", "learn", "train", "gradient_step", "optimize")
_COLLECT = ("collect", "collect_rollout", "collect_rollouts", "rollout")
_SAC_LIKE, _PPO_LIKE = re.compile("SAC|TD3|DDPG|REDQ|DroQ|CrossQ|DQN", re.IGNORECASE), re.compile("PPO|A2C")
_SIZES = {"stored": "[1_000, 10_000, 100_000]", "episode_steps": "[10, 1_000]"}
"""Measured at each: scans of all that is stored, and resets within a step, show at these alone."""

KINDS = {
    "rlperf_vecenv_step": "vector env",
    "rlperf_replay_sample": "replay buffer",
    "rlperf_gae": "GAE function",
    "rlperf_sac_update": "SAC-like agent",
    "rlperf_ppo_collect": "PPO-like agent",
    "rlperf_ppo_update": "PPO-like agent",
}


@dataclass(frozen=True)
class Module:
    """A module of the project: its dotted name, the directory to import it from, its file and its code."""

    name: str
    entry: Path
    path: Path
    tree: ast.Module

    @property
    def top(self) -> str:
        """Return the name of the package, or of the module itself outside one."""
        return _top(self.name)


@dataclass(frozen=True)
class Found:
    """A component, the fixture that measures it, and the lines of its test; the last one calls the fixture.

    ``unknown`` are the arguments whose values only the author knows; the lines have ``...`` for them. ``buffer`` is
    the replay buffer that the lines make for an agent.
    """

    module: Module
    node: _Definition
    fixture: str
    lines: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    buffer: Found | None = None

    @property
    def name(self) -> str:
        """Return the name of the function or class."""
        return self.node.name

    @property
    def place(self) -> str:
        """Return the place of the definition, as an editor opens it."""
        return f"{os.path.relpath(self.module.path)}:{self.node.lineno}"

    @property
    def test(self) -> str:
        """Return the name of the test."""
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", self.name).lower()
        words = words.removeprefix("compute_")
        last = self.fixture.rpartition("_")[2]
        return f"test_{words}" if words.endswith(last) else f"test_{words}_{last}"

    @property
    def source(self) -> str:
        """Return the module of its test. It imports the component within, so that one missing leaves other tests."""
        body = "\n".join(self.lines)
        if self.fixture != "rlperf_replay_sample":
            body = re.sub(r"\bstored\b", "10_000", body)
        varied = [name for name in _SIZES if f"={name}" in body]
        marks = "".join(f'@pytest.mark.parametrize("{name}", {_SIZES[name]})\n' for name in varied)
        needed = {"gymnasium.": "import gymnasium", "np.": "import numpy as np"}
        imports = [line for word, line in needed.items() if word in body]
        modules: dict[str, list[str]] = {}
        for each in filter(None, (self.buffer, self)):
            modules.setdefault(each.module.name, []).append(each.name)
        imports += [f"from {module} import {', '.join(names)}" for module, names in modules.items()]
        head = (
            f"{'import pytest' if varied else ''}\n\n\n{marks}def {self.test}({', '.join([self.fixture, *varied])}):\n"
        )
        return head + textwrap.indent("\n".join([*imports, "", body]), "    ") + "\n"


@dataclass
class Search:
    """A search of a project: what was found, what was skipped and why, and the modules that the code imports.

    ``known`` are the libraries with tests already that the project itself is.
    """

    modules: list[Module] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    @property
    def tops(self) -> set[str]:
        """Return the packages and modules whose components are measured."""
        return self.known | {each.module.top for each in self.found}


def search(root: Path, names: Iterable[str], known: Iterable[str]) -> Search:
    """Search a project for components; of those named ``module:name`` alone, where any are.

    ``known`` are libraries, whose components have tests already. LookupError where a name is not in the code.
    """
    result = Search()
    for path in _files(root.resolve()):
        try:
            tree = ast.parse(path.read_bytes(), path.name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            result.skipped.append((os.path.relpath(path), f"Python cannot read it: {error or type(error).__name__}"))
            continue
        module = _module(path, root.resolve(), tree)
        result.modules.append(module)
        result.imported |= _imported(tree)
    result.known = {module.top for module in result.modules} & set(known)
    everything = list(_definitions(result.modules))
    nodes = [_named(name, result.modules) for name in names] or ([] if result.known else everything)
    buffers = [found for module, node in everything if (found := _filled_buffer(module, node))]
    for module, node in nodes:
        buffer = min(buffers, key=lambda each: each.module is not module, default=None)  # of the same module first
        components = list(_components(module, node, buffer, named=bool(names)))
        if names and not components:
            raise LookupError(
                f"{module.name}:{node.name} has no step and reset, sample, update or collect: its test needs a thunk"
                + see("writing-tests.md#fixtures")
            )
        for each in components:
            reason = _obstacle(each, result, named=bool(names))
            if reason:
                result.skipped.append((each.place, f"{each.name} {reason}"))
            else:
                result.found.append(each)
    return result


def _obstacle(each: Found, result: Search, *, named: bool) -> str:
    """Return why a component gets no test, empty where it gets one."""
    if running := _runs(each.module.tree):
        return f"is in a script: importing it runs line {running}; put that below if __name__ == '__main__'"
    if each.unknown and not named:
        return f"takes {', '.join(each.unknown)}: rlperf init {each.module.name}:{each.name} begins its test"
    same = next((other for other in result.found if other.test == each.test), None)
    if same:
        return f"has the name of {same.place}: rlperf init MODULE:{each.name} writes its test"
    return ""


def _files(root: Path) -> Iterator[Path]:
    """Yield the files of Python in a project, but for tests, documentation and environments."""
    for directory, names, files in os.walk(root):
        place = Path(directory)
        names[:] = sorted(
            name
            for name in names
            if name[0] not in "._" and name not in _NOT_SEARCHED and not is_environment(place / name)
        )
        for name in sorted(files):
            is_code = name.endswith(".py") and (name[0] != "_" or name == "__init__.py")
            if is_code and not any(fnmatch(name, pattern) for pattern in _NO_CODE):
                yield place / name


def _module(path: Path, root: Path, tree: ast.Module) -> Module:
    """Return a module with the name to import it by: from beside its package, from ``src``, or from its project."""
    entry = path.parent
    while (entry / "__init__.py").is_file():
        entry = entry.parent
    if entry == path.parent:  # in no package
        places = [each for each in (entry, *entry.parents) if each == root or root in each.parents]
        entry = next((each for each in places if each.name == "src" or each == root or is_project(each)), entry)
        if not all(part.isidentifier() for part in path.parent.relative_to(entry).parts):
            entry = path.parent
    parts = path.relative_to(entry).with_suffix("").parts
    return Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), entry, path, tree)


def _imported(tree: ast.AST) -> set[str]:
    """Return the first names of the modules that code imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {_top(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(_top(node.module))
    return found


def _top(name: str) -> str:
    return name.partition(".")[0]


def _definitions(modules: Iterable[Module]) -> Iterator[tuple[Module, _Definition]]:
    """Yield the public functions and classes of modules."""
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                yield module, node


def _named(name: str, modules: list[Module]) -> tuple[Module, _Definition]:
    """Return the component of that name; LookupError without one."""
    place, _, wanted = name.partition(":")
    for module in modules:
        for node in module.tree.body if place in (module.name, os.path.relpath(module.path)) else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == wanted:
                return module, node
    known = ", ".join(module.name for module in modules[:10])
    raise LookupError(f"no module {place} that defines {wanted}; there is: {known or 'no file'}")


def _runs(tree: ast.Module) -> int:
    """Return the line that does a script's work when it is imported, 0 where there is none."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        called = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if isinstance(node, (ast.For, ast.While)) or called in own:
            return node.lineno
    return 0


# --------------------------------------------------------------------------- a component and its test


def _components(module: Module, node: _Definition, buffer: Found | None, *, named: bool) -> Iterator[Found]:
    """Yield what a definition is measured as; one that is ``named`` is a component by its methods alone."""
    from pytest_rlperf.components.gae import takes_rollout

    if isinstance(node, ast.FunctionDef):
        if node.name.startswith("make_env") and any(isinstance(each, ast.FunctionDef) for each in node.body):
            yield _vecenv(module, node, node, "[{}] * 8")
        elif named or takes_rollout(node.name, *_parameters(node)):
            backend = ', backend="torch"' if re.search(r"\btorch\b|\bTensor\b", ast.unparse(node)) else ""
            yield Found(module, node, "rlperf_gae", (f"rlperf_gae({node.name}{backend})",))
    else:
        yield from _objects(module, node, buffer, named=named)


def _objects(module: Module, node: ast.ClassDef, buffer: Found | None, *, named: bool) -> Iterator[Found]:
    """Yield what the objects of a class are measured as."""
    methods = _methods(module, node)
    bases = " ".join(map(ast.unparse, node.bases))
    if "abstractmethod" in " ".join(ast.unparse(each) for method in methods.values() for each in method.decorator_list):
        return
    make = methods.get("__init__")
    if {"reset", "step"} <= methods.keys():
        if re.search(r"\bEnv\b", bases):
            yield _vecenv(module, node, make, "[lambda: {}] * 8")
        elif named or ("num_envs" in ast.unparse(node) and "Wrapper" not in bases):
            yield _vecenv(module, node, make)
        return
    made, unknown = _call(node.name, make, _VALUES)
    draw = next((name for name in _DRAW if name in methods), "")
    if draw and (named or _first(methods, draw) in ("batch_size", "n", "size")):
        lines, more = _filled(f"buffer = {made}", "buffer", methods)
        drawn = "buffer" if draw == "sample" else f"lambda: buffer.{draw}(256)"
        call = f"rlperf_replay_sample({drawn}, batch_size=256)"
        yield Found(module, node, "rlperf_replay_sample", (*lines, call), (*unknown, *more))
    update = next((name for name in _UPDATE if name in methods), "")
    is_named = named and not _PPO_LIKE.search(node.name)
    is_sac = is_named or _SAC_LIKE.search(node.name) or _first(methods, update) == "batch_size"
    if update and is_sac:
        yield _sac(module, node, methods, update, buffer)
    collect = next((name for name in _COLLECT if name in methods), "")
    if collect and (named or _PPO_LIKE.search(node.name) or _first(methods, collect) == "n_steps"):
        call, more = _call(f"agent.{collect}", methods[collect], _VALUES)
        items = 8 * 128 if "num_envs=8" in made or "n_envs=8" in made else 128
        line = f"rlperf_ppo_collect(lambda: {call}, items={items})"
        if collect == "collect" and _first(methods, collect) == "n_steps":
            line = "rlperf_ppo_collect(agent, n_steps=128)"
        yield Found(module, node, "rlperf_ppo_collect", (f"agent = {made}", line), (*unknown, *more))
    if update and not is_sac and _PPO_LIKE.search(node.name):
        call, more = _call(f"agent.{update}", methods[update], _VALUES)
        line = f"rlperf_ppo_update(lambda: {call})"
        if collect and _first(methods, update) == "rollout":
            line, more = "rlperf_ppo_update(agent, n_steps=128)", []
        yield Found(module, node, "rlperf_ppo_update", (f"agent = {made}", line), (*unknown, *more))


def _vecenv(module: Module, node: _Definition, make: ast.FunctionDef | None, several: str = "") -> Found:
    """Return a vector env whose step is measured; of single envs ``several`` makes a list, around the making of one."""
    made, unknown = _call(node.name, make, _VALUES | {"size": "8"})
    lines = [f"rlperf_vecenv_step(lambda: {made})"]
    if several:
        call = "rlperf_vecenv_step(lambda: gymnasium.vector.SyncVectorEnv(envs))"
        lines = [f"envs = {several.format(made)}", call]
    return Found(module, node, "rlperf_vecenv_step", tuple(lines), tuple(unknown))


def _sac(
    module: Module, node: _Definition, methods: dict[str, ast.FunctionDef], name: str, buffer: Found | None
) -> Found:
    """Return an agent whose update is measured, with a full buffer where it or its update takes one."""
    values = _VALUES | (dict.fromkeys(_BUFFERS, "buffer") if buffer else {})
    made, unknown = _call(node.name, methods.get("__init__"), values)
    agent, unfilled = _filled(f"agent = {made}", "agent", methods)
    update = methods[name]
    call, more = _call(f"agent.{name}", update, values)
    line = f"rlperf_sac_update(lambda: {call})"
    if name == "update" and call in ("agent.update()", "agent.update(batch_size=256)") and _parameters(update)[0]:
        line = "rlperf_sac_update(agent, batch_size=256)"
    buffer = buffer if "=buffer" in f"{made} {call}" else None
    lines = (*(buffer.lines[:-1] if buffer else ()), *agent, line)
    return Found(module, node, "rlperf_sac_update", lines, (*unknown, *unfilled, *more), buffer)


def _filled_buffer(module: Module, node: _Definition) -> Found | None:
    """Return a replay buffer, for agents that take one; None for anything else, and where an argument is unknown."""
    if _runs(module.tree):
        return None  # which a test cannot import
    found = _components(module, node, None, named=False)
    return next((each for each in found if each.fixture == "rlperf_replay_sample" and not each.unknown), None)


def _filled(making: str, name: str, methods: dict[str, ast.FunctionDef]) -> tuple[list[str], list[str]]:
    """Return the lines that make something, and fill it with transitions where it takes them; and what is unknown."""
    fill = next((method for method in _FILL if method in methods), None)
    if fill is None:
        return [making], []
    call, unknown = _call(f"{name}.{fill}", methods[fill], _TRANSITION)
    count = "stored" if "=stored" in making else "10_000"
    return [making, _MAKE_OBS, f"for step in range({count}):", f"    {call}"], unknown


def _call(name: str, function: ast.FunctionDef | None, values: dict[str, str]) -> tuple[str, list[str]]:
    """Return a call with values for the parameters that need one, or set a size; and the names of unknown ones."""
    names, required = _parameters(function) if function else ([], [])
    given = {each: values.get(each.lower(), "...") for each in names}
    given = {each: value for each, value in given.items() if each in required or value in _SIZES}
    call = f"{name}({', '.join(f'{each}={value}' for each, value in given.items())})"
    return call, [each for each, value in given.items() if value == "..."]


def _methods(module: Module, node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return the methods of a class, with those of its bases in the same module."""
    classes = {each.name: each for each in module.tree.body if isinstance(each, ast.ClassDef) and each is not node}
    bases = [ast.unparse(base) for base in node.bases]
    found: dict[str, ast.FunctionDef] = {}
    for base in reversed([classes[name] for name in bases if name in classes]):
        found |= {each.name: each for each in base.body if isinstance(each, ast.FunctionDef)}
    return found | {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def _first(methods: dict[str, ast.FunctionDef], name: str) -> str:
    """Return the first parameter of a method, empty without one."""
    return next(iter(_parameters(methods[name])[0]), "") if name in methods else ""


def _parameters(function: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """Return the names of a function's parameters, less ``self``, and of those without a default."""
    given = function.args
    placed = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    required = placed[: len(placed) - len(given.defaults)]
    keyword = [argument.arg for argument in given.kwonlyargs]
    required += [name for name, default in zip(keyword, given.kw_defaults, strict=True) if default is None]
    names = [name for name in placed + keyword if name != "self"]
    return names, [name for name in required if name != "self"]
