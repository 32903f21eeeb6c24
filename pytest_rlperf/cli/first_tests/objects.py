"""Drafts of tests for replay buffers, GAE functions and agents, by their classes' methods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from pytest_rlperf.cli.first_tests.drafts import (
    BATCHED,
    BUFFERS,
    Draft,
    Making,
    call_text,
    fill,
    makings,
    parameters_of,
)
from pytest_rlperf.cli.first_tests.project import Buffer, OwnProject, bases_of, method_of, names_of, place_of, steps
from pytest_rlperf.components.gae import takes_rollout

_FILL = ("add", "push", "store", "append", "insert", "put", "remember", "store_transition", "add_transition", *BATCHED)
_DRAW = ("sample", "sample_batch", "random_batch", "sample_transition_batch", "get_batch", "draw")
_UPDATE = ("update", "train_step", "update_parameters", "learn", "train", "gradient_step", "optimize")
_COLLECT = ("collect", "collect_rollout", "collect_rollouts", "rollout")
_ACT = ("select_action", "choose_action", "get_action", "get_action_and_value", "act", "predict")
_RETURNS = ("compute_returns", "compute_returns_and_advantage", "compute_gae", "compute_advantages")
_BATCH = ("batch_size", "n", "size")
_TIMES = ("num_learning_iterations", "n_iterations", "num_iterations")
_SAC_LIKE, _PPO_LIKE = re.compile("SAC|TD3|DDPG|REDQ|DroQ|CrossQ|DQN", re.IGNORECASE), re.compile("PPO|A2C|PPG|TRPO")
_AGENT = re.compile("Agent|Actor|Policy|Network|Model")


def functions(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for GAE functions, with NumPy's and PyTorch's arrays, and for the calls of other named functions."""
    for module, name, of in project.definitions():
        if isinstance(of, type):
            continue
        parameters = parameters_of(of)
        required = [each.name for each in parameters if each.default is each.empty]
        if takes_rollout(name, names_of(of), required):
            bodies = [[f"rlperf_gae({name})"], [f'rlperf_gae({name}, backend="torch")']]
            if "torch" in vars(module):
                bodies.reverse()
            yield project.draft(place_of(of), name, "rlperf_gae", [(module.__name__, name)], bodies)
        elif project.is_wanted(of):
            made = makings(name, of, project.known_in(module), ((module.__name__, name),))
            bodies = [[*each.lines, f"rlperf(lambda: {each.expression})"] for each in made]
            yield project.draft(place_of(of), name, "rlperf", made[0].uses, bodies, made[0].unknown)


# --------------------------------------------------------------------------- replay buffers


def buffers(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for replay buffers, and keep those whose arguments are all known, for agents."""
    for module, name, of in project.classes():
        draw = method_of(of, _DRAW)
        first = next(iter(names_of(getattr(of, draw, None))), "")
        if not draw or not (first in _BATCH or project.is_wanted(of)):
            continue
        made = makings(name, of, project.known_in(module), ((module.__name__, name),), is_buffer=True)
        # Many buffers take the number of an action only.
        filled = [_filled("buffer", of, each) for each in (*made, *(replace(each, acted="step % 2") for each in made))]
        unknown = [*made[0].unknown, *filled[0][1]]
        call = "buffer" if draw == "sample" else f"lambda: buffer.{draw}(256)"
        bodies = [[*lines, f"rlperf_replay_sample({call}, batch_size=256)"] for lines, _ in filled]
        if not unknown:
            project.buffers.append(Buffer(module.__name__, tuple(filled[0][0]), made[0].uses))
        yield project.draft(place_of(of), name, "rlperf_replay_sample", made[0].uses, bodies, unknown)


def _filled(name: str, of: type, making: Making) -> tuple[list[str], list[str]]:
    """Return the lines that make an object and fill it, if it takes transitions, and what is unknown."""
    method = method_of(of, _FILL)
    begin = [*making.lines, f"{name} = {making.expression}"]
    if not method:
        return begin, []
    lines, unknown = fill(name, method, getattr(of, method), making)
    return [*begin, *lines], unknown


# --------------------------------------------------------------------------- agents


def agents(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for agents, rollout storages and whatever else a class's methods show."""
    for module, name, of in project.classes():
        if steps(of):
            continue
        known = project.known_in(module)
        buffer = min(project.buffers, key=lambda each: each.module != module.__name__, default=None)
        if buffer is not None:
            known |= {each: [Making(buffer.lines, "buffer", buffer.uses)] for each in BUFFERS}
        made = makings(name, of, known, ((module.__name__, name),))
        yield from Agent(project, module, of, made, known).drafts()


@dataclass(frozen=True)
class Agent:
    """A class whose objects learn or act, and the ways to make one.

    ``is_ready`` is for objects that a project's own tests make: the lines of their makings define ``agent``.
    """

    project: OwnProject
    module: ModuleType
    of: type
    made: Sequence[Making]
    known: Mapping[str, Sequence[Making]]
    is_ready: bool = False

    @property
    def _is_wanted(self) -> bool:
        return self.project.is_wanted(self.of)

    @property
    def _is_observed(self) -> bool:
        """Whether an observation fits: if the object is ready, only one that a test has beside it does."""
        return not self.is_ready or self.made[0].observed == "obs"

    def drafts(self) -> Iterator[Draft]:
        """Yield drafts for its update, its rollout, its choice of an action, and its returns."""
        update, collect, act, returns = (method_of(self.of, names) for names in (_UPDATE, _COLLECT, _ACT, _RETURNS))
        if update:
            yield from self._update(update, collect)
        if collect:
            yield from self._collect(collect)
        is_agent = update or _AGENT.search(self.of.__name__) or "Module" in bases_of(self.of)
        if act and is_agent and self._is_observed:
            yield from self._act(act)
        if returns and self._is_observed and not self.made[0].unknown:
            zeros = "torch.zeros(1)" if {"torch", "th"} & vars(self.module).keys() else "np.zeros(1)"
            last = self.made[0].observed if self.is_ready else zeros
            values = {
                **dict.fromkeys(("last_values", "last_value", "obs"), last),
                "dones": "np.zeros(1)",
                "lam": "0.95",
            }
            yield self._draft("rlperf", returns, 'rlperf(lambda: {call}, unit="rollout")', values)

    def _update(self, update: str, collect: str) -> Iterator[Draft]:
        names = names_of(getattr(self.of, update))
        first = next(iter(names), "")
        is_sac = _SAC_LIKE.search(self.of.__name__) or first == "batch_size" or set(names) & {*BUFFERS}
        if first in _TIMES:
            line = 'rlperf(lambda: {call}, unit="iteration")'
            yield self._draft("rlperf", update, line, dict.fromkeys(_TIMES, "1"))
        elif _PPO_LIKE.search(self.of.__name__):
            whole = collect and first == "rollout"
            line = "rlperf_ppo_update(agent, n_steps=128)" if whole else "rlperf_ppo_update(lambda: {call})"
            yield self._draft("rlperf_ppo_update", update, line, {"rollout": "rollout"} if whole else {})
        elif is_sac or self._is_wanted:
            plain = update == "update" and len(names) == 1 and first == "batch_size"
            line = "rlperf_sac_update(agent, batch_size=256)" if plain else "rlperf_sac_update(lambda: {call})"
            yield self._draft("rlperf_sac_update", update, line, {})
        elif self.is_ready:
            yield self._draft("rlperf", update, 'rlperf(lambda: {call}, unit="update")', {})

    def _collect(self, collect: str) -> Iterator[Draft]:
        takes_steps = names_of(getattr(self.of, collect))[:1] == ["n_steps"]
        if not (_PPO_LIKE.search(self.of.__name__) or self._is_wanted or self.is_ready or takes_steps):
            return
        items = 128 * (8 if re.search(r"n(um)?_envs=8", self.made[0].expression) else 1)
        plain = collect == "collect" and takes_steps
        line = f"rlperf_ppo_collect({'agent, n_steps=128' if plain else f'lambda: {{call}}, items={items}'})"
        yield self._draft("rlperf_ppo_collect", collect, line, {})

    def _act(self, act: str) -> Iterator[Draft]:
        """Yield the draft for choosing an action for one observation, as an array and as a batch in a tensor."""
        if sum(each.default is each.empty for each in parameters_of(getattr(self.of, act))) != 1:
            return
        bodies = []
        for making in self.made:
            begin = self._made(making)
            tensor = f"torch.as_tensor({making.observed}, dtype=torch.float32)"
            batch = tensor if "make_vec(" in "".join(begin) else f"{tensor}[None]"
            forms = [[]] if self.is_ready else [[f"obs = {making.observed}"], [f"obs = {batch}"]]
            bodies += [[*begin, *form, f'rlperf(lambda: agent.{act}(obs), unit="action")'] for form in forms]
        name, unknown = f"{self.of.__name__}.{act}", self.made[0].unknown
        yield self.project.draft(place_of(self.of), name, "rlperf", self.made[0].uses, bodies, unknown)

    def _made(self, making: Making) -> list[str]:
        """Return the lines that make ``agent``."""
        return [*making.lines] if self.is_ready else [*making.lines, f"agent = {making.expression}"]

    def _draft(self, fixture: str, method: str, line: str, values: Mapping[str, str]) -> Draft:
        """Return the draft for one method's call, with a full buffer if the method or the object takes one."""
        function = getattr(self.of, method)
        buffer = self.known["buffer"][0] if "buffer" in self.known and {*BUFFERS} & {*names_of(function)} else None
        bodies, unknown = [], [*self.made[0].unknown]
        for making in self.made:
            given = {"obs": making.observed, **dict.fromkeys(BUFFERS if buffer else (), "buffer"), **values}
            call, missing = call_text(f"agent.{method}", function, given)
            lines = self._made(making)
            if method in _UPDATE and not self.is_ready and method_of(self.of, _FILL):
                lines, more = _filled("agent", self.of, making)
                missing = [*missing, *more]
            if buffer and not any(each.startswith("buffer = ") for each in lines):
                lines = [*buffer.lines, *lines]
            unknown += missing
            setup = f", {making.setup})" if making.setup and method in _UPDATE else ")"
            bodies.append([*lines, line.format(call=call).removesuffix(")") + setup])
        uses = (*(buffer.uses if buffer else ()), *self.made[0].uses)
        name = f"{self.of.__name__}.{method}" if fixture == "rlperf" else self.of.__name__
        return self.project.draft(place_of(self.of), name, fixture, uses, bodies, unknown)
