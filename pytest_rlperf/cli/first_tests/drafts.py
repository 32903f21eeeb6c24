"""First tests before they are tried: what each measures, calls that may make that, and the file that has them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

KINDS = {
    "rlperf_vecenv_step": "env",
    "rlperf_replay_sample": "replay buffer",
    "rlperf_gae": "GAE function",
    "rlperf_sac_update": "SAC-like agent",
    "rlperf_ppo_collect": "PPO-like agent",
    "rlperf_ppo_update": "PPO-like agent",
    "rlperf": "call",
}
_SIZES = {"stored": "[1_000, 10_000, 100_000]", "num_envs": "[8, 64]"}
"""Tests are parametrised with these sizes: only they show scans of all that is stored, and work for each env."""

_VERSIONS = 4  # of a test, at most
_LONG = 100  # characters of a line
_REASON_MOST = 400  # characters of why a test is skipped
_UNUSED = "  # noqa: F401"
_WORD = r"(?<![\w.])\w+\b(?!=)"  # a word that stands for a value
_NEEDED = {f"{name}.": f"import {name}" for name in ("gymnasium", "pytest", "torch")} | {"np.": "import numpy as np"}

_CAPACITY = ("stored",)
# Values by parameters' names, for a task with three numbers to observe and one to act with. Further values are tried if
# the call fails with the first.
_VALUES: dict[str, tuple[str, ...]] = {
    name: values
    for values, names in {
        _CAPACITY: "capacity buffer_size max_size size maxlen max_len memory_size buffer_capacity max_capacity",
        ("3",): "obs_dim state_dim observation_dim ob_dim obs_size state_size observation_size n_obs input_dim",
        ("1",): "act_dim action_dim ac_dim act_size action_size",
        ("2",): "n_actions num_actions",
        ("8",): "num_envs n_envs",
        ("128",): "n_steps num_steps",
        ("256",): "batch_size",
        ("1_000",): "episode_length max_episode_steps max_steps horizon time_limit",
        ("4",): "n_epochs epochs k_epochs",
        ("(3,)",): "obs_shape state_shape observation_shape",
        ("(1,)",): "act_shape action_shape",
        ("0",): "seed idx",
        ("0.99",): "gamma",
        ("0.005",): "tau",
        ("0.2",): "alpha eps_clip clip_range clip_ratio",
        ("3e-4",): "lr learning_rate actor_lr critic_lr lr_actor lr_critic",
        ("1.0",): "max_action action_scale",
        ("False",): "capture_video",
        ("False", "True"): "has_continuous_action_space continuous discrete",
        ('"cpu"',): "device",
        ('"rlperf"',): "run_name",
        ('"Pendulum-v1"', '"CartPole-v1"'): "env_id env_name",
        (
            'gymnasium.make("Pendulum-v1")',
            'gymnasium.make("CartPole-v1")',
            'gymnasium.make_vec("CartPole-v1", num_envs=8)',
        ): "env",
        (
            'gymnasium.make_vec("Pendulum-v1", num_envs=8)',
            'gymnasium.make_vec("CartPole-v1", num_envs=8)',
        ): "envs vec_env venv",
        ("gymnasium.spaces.Box(-1.0, 1.0, (3,))",): "observation_space obs_space state_space",
        ("gymnasium.spaces.Box(-1.0, 1.0, (1,))", "gymnasium.spaces.Discrete(2)"): "action_space act_space",
    }.items()
    for name in names.split()
}
_ENVS = ("env", "envs", "vec_env", "venv")
_LOCALS = (*_ENVS, "observation_space", "obs_space", "state_space", "action_space", "act_space")
BATCHED = ("add_batch", "store_batch", "extend")
"""Methods of buffers that take several transitions."""

BUFFERS = ("buffer", "replay_buffer", "memory", "replay", "rb")
_OBSERVED = tuple(name for name, values in _VALUES.items() if values in (("3",), ("(3,)",)))
_ACTED = tuple(name for name, values in _VALUES.items() if values in (("1",), ("(1,)",)))
_CHOSEN = tuple(name for name, values in _VALUES.items() if values == ("2",))
# Values for one transition; an episode has ten steps.
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


@dataclass(frozen=True)
class Draft:
    """A test before it is tried: the object that it measures, and its lines, in several versions to try in turn.

    ``uses`` are what the lines import, by modules and names; an empty name imports the module. ``unknown`` are the
    arguments whose values only the author knows; the lines have ``...`` for them. ``given`` are the project's fixtures.
    """

    place: str
    name: str
    fixture: str
    test: str
    uses: tuple[tuple[str, str], ...]
    bodies: tuple[tuple[str, ...], ...]
    unknown: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Return the module that has the object, or makes it."""
        return self.uses[-1][0] if self.uses else ""

    def source(self, version: int, skip: str = "") -> str:
        """Return the test's function; a skipped test, with a reason, imports what it needs by itself."""
        body = "\n".join(self.bodies[version])
        if self.fixture != "rlperf_replay_sample":
            body = re.sub(r"\bstored\b", "10_000", body)
        varied = [name for name in _SIZES if name in re.findall(_WORD, body)]
        marks = "".join(f'@pytest.mark.parametrize("{name}", {_SIZES[name]})\n' for name in varied)
        if skip:
            parts = textwrap.wrap(textwrap.shorten(skip, _REASON_MOST), _LONG, drop_whitespace=False)
            lines = [json.dumps(part, ensure_ascii=False) for part in parts]
            reason = lines[0] if len(lines) == 1 else "".join(f"\n    {line}" for line in lines) + "\n"
            marks = f"@pytest.mark.skip({reason})\n{marks}"
            imports = {f"from {module} import {name}" if name else f"import {module}" for module, name in self.uses}
            body = f"{_block(imports | _needed(body))}\n\n{body}"
        head = f"{marks}def {self.test}({', '.join([self.fixture, *self.given, *varied])}):\n"
        return head + textwrap.indent(body.strip(), "    ")


def test_name(name: str, fixture: str) -> str:
    """Return the test's name for an object's name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+", "_", name).lower().strip("_")
    words = words.removeprefix("compute_")
    last = "" if fixture == "rlperf" else fixture.rpartition("_")[2]
    return f"test_{words}" if words.endswith(last) else f"test_{words}_{last}"


# --------------------------------------------------------------------------- calls with values for their arguments


@dataclass(frozen=True)
class Making:
    """The lines that make an object, its expression, what they import, and what is unknown.

    ``observed`` and ``acted`` are expressions for an observation and an action that fit the object. ``setup`` is the
    argument that makes it ready for each call. ``bases`` are the names of the object's classes.
    """

    lines: tuple[str, ...]
    expression: str
    uses: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    observed: str = "np.random.rand(3).astype(np.float32)"
    acted: str = "np.random.rand(1).astype(np.float32)"
    setup: str = ""
    bases: frozenset[str] = frozenset()


def makings(
    name: str,
    function: Callable[..., Any] | None,
    known: Mapping[str, Sequence[Making]],
    uses: tuple[tuple[str, str], ...] = (),
    *,
    is_buffer: bool = False,
) -> list[Making]:
    """Return the calls of a function or class to try in turn, with values for the parameters without a default.

    ``known`` are the project's own values for some names, which come before the others. A buffer is given its capacity
    first: tests fill it to several sizes.
    """
    chosen: dict[str, list[Making]] = {}
    unknown = []
    defaults: dict[str, Any] = {}
    for parameter in parameters_of(function):
        lower = parameter.name.lower()
        is_capacity = is_buffer and _VALUES.get(lower) == _CAPACITY
        if parameter.default is not parameter.empty and not (is_capacity and isinstance(parameter.default, int)):
            defaults[lower] = parameter.default
            continue
        values = [*known.get(lower, ()), *(Making((), value) for value in _VALUES.get(lower, ()))]
        values = values[::-1] if is_capacity else values
        named = set(re.findall(r"\w+", str(parameter.annotation)))
        values = [value for value in values if value.bases & named] or values
        if not values and parameter.annotation in (bool, "bool"):
            values = [Making((), "False")]
        chosen[parameter.name] = values or [Making((), "...")]
        unknown += [] if values else [parameter.name]
    count = min(_VERSIONS, max(map(len, chosen.values()), default=1))
    made = [
        _making(name, {each: row[min(index, len(row) - 1)] for each, row in chosen.items()}, defaults, uses, unknown)
        for index in range(count)
    ]
    made = [replace(each, expression=_with_names(each.expression, function)) for each in made]
    others = makings(name, function, known, uses) if is_buffer else []
    return [*made, *(each for each in others if each not in made)]


def _with_names(call: str, function: Callable[..., Any] | None) -> str:
    """Return a call without the names of positional-only arguments."""
    for each in parameters_of(function):
        if each.kind is each.POSITIONAL_ONLY:
            call = re.sub(rf"\b{each.name}=", "", call)
    return call


def _making(
    name: str,
    chosen: Mapping[str, Making],
    defaults: Mapping[str, Any],
    uses: tuple[tuple[str, str], ...],
    unknown: Iterable[str],
) -> Making:
    """Return one call; what a test uses again, such as an env, is made on a separate line."""
    lines: list[str] = []
    arguments = {}
    for each, value in chosen.items():
        lines += [line for line in value.lines if line not in lines]
        arguments[each] = each if each in _LOCALS else value.expression
        if each in _LOCALS and value.expression != each:
            lines.append(f"{each} = {value.expression}")
    needed = tuple(dict.fromkeys([*(use for value in chosen.values() for use in value.uses), *uses]))
    call = f"{name}({', '.join(f'{each}={value}' for each, value in arguments.items())})"
    observed, acted = _samples(
        {**{name: repr(value) for name, value in defaults.items()}, **{k.lower(): v for k, v in arguments.items()}}
    )
    return Making(tuple(lines), call, needed, tuple(unknown), observed, acted)


def _samples(arguments: Mapping[str, str]) -> tuple[str, str]:
    """Return expressions for an observation and an action, for an object made with these arguments."""
    observed, acted = Making.observed, Making.acted
    for name, value in arguments.items():
        if re.fullmatch(r"\d+", value):
            observed = _random(value) if name in _OBSERVED else observed
            acted = f"step % {value}" if name in _CHOSEN else _random(value) if name in _ACTED else acted
        elif re.fullmatch(r"[(\[][\d, ]+[)\]]", value):
            several = value.strip("()[], ")
            observed = _random(several) if name in _OBSERVED else observed
            acted = _random(several) if name in _ACTED else acted
        elif value in _ENVS:
            observed, acted = f"{name}.observation_space.sample()", f"{name}.action_space.sample()"
        elif value in _LOCALS:
            is_action = name.startswith("ac")
            observed, acted = (observed, f"{name}.sample()") if is_action else (f"{name}.sample()", acted)
    return observed, acted


def _random(shape: str) -> str:
    return f"np.random.rand({shape}).astype(np.float32)"


def parameters_of(function: Callable[..., Any] | None) -> list[inspect.Parameter]:
    """Return a function's or class's parameters that take one argument; none if Python does not know them."""
    if function is None:
        return []
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in signature.parameters.values() if each.kind not in variadic and each.name != "self"]


def call_text(name: str, function: Callable[..., Any], values: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return a method's call with values for the parameters that need one, and the names of unknown ones."""
    given = {}
    for parameter in parameters_of(function):
        if parameter.default is parameter.empty:
            lower = parameter.name.lower()
            given[parameter.name] = values.get(lower) or next(iter(_VALUES.get(lower, ())), "...")
    call = f"{name}({', '.join(f'{each}={value}' for each, value in given.items())})"
    return _with_names(call, function), [each for each, value in given.items() if value == "..."]


def fill(name: str, method: str, function: Callable[..., Any], making: Making) -> tuple[list[str], list[str]]:
    """Return the lines that fill an object with transitions, and the names of unknown arguments."""
    values = _TRANSITION
    if method in BATCHED:
        values = {f"{each}{end}": f"np.array([{value}])" for each, value in _TRANSITION.items() for end in ("", "s")}
        values |= dict.fromkeys(("transitions", "experiences"), f"[{_TRANSITION['transition']}]")
    call, unknown = call_text(f"{name}.{method}", function, values)
    parameters = parameters_of(function)
    if len(call) > _LONG and not any(each.kind is each.KEYWORD_ONLY for each in parameters):
        call = re.sub(r"\b\w+=", "", call)
    lines = ["for step in range(stored):"]
    words = {*re.findall(r"\b(obs|action)\b(?!=)", call)}
    if "obs" in words:
        lines.insert(0, f"obs = {making.observed}")
    if "action" in words:
        lines.insert(
            len(lines) if "step" in making.acted else 0, f"{'    ' * ('step' in making.acted)}action = {making.acted}"
        )
    return [*lines, f"    {call}"], unknown


# --------------------------------------------------------------------------- the file


def composed(head: str, drafts: Iterable[tuple[Draft, int]], texts: Iterable[str], skipped: Iterable[str] = ()) -> str:
    """Return the module that has these tests, with the imports of all but the skipped ones at its top."""
    taken: dict[str, tuple[str, str]] = {}
    imports: set[str] = set()
    bodies = []
    for text in texts:
        own, body = _divided(text)
        imports.update(own)
        bodies.append(body)
    for draft, version in drafts:
        source = draft.source(version)
        for module, name in draft.uses:
            if not name:
                is_used = re.search(rf"\b{module}\b", source)
                imports.add(f"import {module}{'' if is_used else _UNUSED}")
                continue
            alias = name
            if taken.setdefault(name, (module, name)) != (module, name):
                alias = f"{module.rpartition('.')[2]}_{name}"
                source = re.sub(rf"(?<![\w.]){name}\b", alias, source)
            imports.add(f"from {module} import {name}" + (f" as {alias}" if alias != name else ""))
        bodies.append(source)
    imports |= _needed("\n".join(bodies)) | ({"import pytest"} if skipped else set())
    bodies += skipped
    blocks = filter(None, [head.rstrip("\n"), _block(imports)])
    return "\n\n\n".join(["\n\n".join(blocks), *bodies]) + "\n"


def _needed(text: str) -> set[str]:
    """Return the imports for the libraries that a text names."""
    return {statement for word, statement in _NEEDED.items() if re.search(rf"(?<![\w.]){re.escape(word)}", text)}


def _block(imports: Collection[str]) -> str:
    """Return imports in one block: whole modules, then each module's names on one line."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        module, _, name = line.removeprefix("from ").partition(" import ")
        if name:
            names.setdefault(module, []).append(name)
        elif line.removesuffix(_UNUSED) == line or line.removesuffix(_UNUSED) not in imports:
            names[line] = []
    lines = [_names_of(module, several) if several else module for module, several in names.items()]
    return "\n".join(sorted(lines, key=lambda line: line.startswith("from ")))


def _names_of(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= _LONG else f"from {module} import (\n    {f',{chr(10)}    '.join(names)},\n)"


def _divided(source: str) -> tuple[list[str], str]:
    """Return the imports at the top of a module, and the text below them."""
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    last = max((node.end_lineno or 0 for node in imports), default=0)
    return list(map(ast.unparse, imports)), "\n".join(source.splitlines()[last:]).strip("\n")


def without(text: str, dropped: Collection[str]) -> str:
    """Return a module's text without some of its tests."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in dropped:
            del lines[min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines))


def tests_in(text: str) -> list[str]:
    """Return the names of the tests in a module."""
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
