"""Steps of envs with many agents, by the two interfaces that PettingZoo defines.

In the parallel interface, all agents act at once, by a mapping from agents to actions. In AEC, agents take turns:
``last()`` returns what the next agent observes, and ``step(action)`` acts for it. An agent whose episode has ended gets
one more turn, with the action None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from numbers import Integral
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute
from pytest_rlperf.components.contracts import (
    ACTIONS,
    ENV_STEP,
    RESET,
    Stepper,
    is_finite,
    reset_by_seed,
    seed_if_possible,
)
from pytest_rlperf.errors import ComponentError


def agents_stepper(env: Any) -> Callable[[Any, int], Stepper] | None:
    """Return the stepper for an env of many agents, by its methods; None for any other object."""
    if isinstance(env, type) or not all(callable(attribute(env, name)) for name in ("reset", "step", "action_space")):
        return None
    if callable(attribute(env, "last")) and callable(attribute(env, "agent_iter")):
        return TurnsStepper
    return ParallelStepper if attribute(env, "possible_agents") is not None else None


class _AgentsStepper(Stepper):
    """Steps the agents of an env by actions that are drawn beforehand, and counts the agents' steps."""

    unit = "agent step"

    def __init__(self, env: Any, seed: int) -> None:
        __tracebackhide__ = True
        self._seed = seed
        self._shares = np.random.default_rng(seed).random(ACTIONS).tolist()
        self._stepped = 0
        self._drawn: dict[Any, tuple[int, list[Any]]] = {}  # by agent: its space's first action, and drawn actions
        super().__init__(env, 1, range(ACTIONS))
        self.reset()
        if not len(env.agents):
            raise ComponentError(f"{type(env).__qualname__} has no agents after reset()")
        possible = attribute(env, "possible_agents")
        for agent in env.agents if possible is None else possible:
            self._draw(agent)

    def reset(self) -> Any:
        """Reset the env, by the seed."""
        __tracebackhide__ = True
        return reset_by_seed(self.env, self._seed)

    def count(self) -> float:
        """Return the agents' steps since the last count."""
        stepped, self._stepped = self._stepped, 0
        return float(stepped)

    def action(self, agent: Any, index: int, observation: Any, info: Any) -> Any:
        """Return an agent's action: one that was drawn, or one that the mask beside its observation allows."""
        first, drawn = self._drawn.get(agent) or self._draw(agent)
        for place in (observation, info):
            mask = place.get("action_mask") if isinstance(place, Mapping) else None
            allowed = () if mask is None else np.flatnonzero(mask)
            if len(allowed):
                return first + allowed[int(self._shares[index] * len(allowed))]
        return drawn[index]

    def _draw(self, agent: Any) -> tuple[int, list[Any]]:
        space = self.env.action_space(agent)
        seed_if_possible(space, self._seed + len(self._drawn))
        first = attribute(space, "start")  # of gymnasium's Discrete
        actions = [space.sample() for _ in range(ACTIONS)]
        self._drawn[agent] = int(first) if isinstance(first, Integral) else 0, actions
        return self._drawn[agent]


class ParallelStepper(_AgentsStepper):
    """Steps all agents at once, and resets the env when none is left."""

    def __init__(self, env: Any, seed: int) -> None:
        super().__init__(env, seed)
        self.num_envs = len(env.agents)
        self._actions = map(self._choose, cycle(range(ACTIONS)))  # each for the agents that are left then

    def _choose(self, index: int) -> dict[Any, Any]:
        """Return an action for each agent that is left."""
        observations, infos = self._seen
        return {
            agent: self.action(agent, index, observations.get(agent), infos.get(agent)) for agent in self.env.agents
        }

    def step(self, actions: Any) -> Any:
        """Step the agents that are left."""
        self._stepped += len(actions)
        return self.env.step(actions)

    def finish(self, results: Any) -> None:
        """Keep the observations, for masks of actions, or reset the env."""
        self._seen = results[0], results[4]
        if self._has_ended(results):
            with RESET:
                self._seen = _first(self.env.reset())

    def reset(self) -> None:
        """Reset the env, by the seed."""
        __tracebackhide__ = True
        self._seen = _first(super().reset())

    def check_step(self, results: Any) -> bool:
        """Check that a step returned five mappings with finite rewards; return whether it ended the episode."""
        __tracebackhide__ = True
        if not isinstance(results, tuple) or [isinstance(each, Mapping) for each in results] != [True] * 5:
            raise ComponentError(
                f"step(actions) of {type(self.env).__qualname__} has to return five mappings from agents: "
                "observations, rewards, terminations, truncations and infos"
            )
        _check_rewards(results[1])
        return self._has_ended(results)

    def _has_ended(self, results: Any) -> bool:
        """Return whether no agent is left, or only ended ones, as in an env that keeps them in ``agents``."""
        _, _, terminations, truncations, _ = results
        return all(terminations.get(agent) or truncations.get(agent) for agent in self.env.agents)


class TurnsStepper(_AgentsStepper):
    """Steps the agent whose turn it is, then the ended agents after it, and resets when none is left."""

    def __init__(self, env: Any, seed: int) -> None:
        __tracebackhide__ = True
        super().__init__(env, seed)
        seen = env.last()
        if not isinstance(seen, tuple) or len(seen) != 5:
            raise ComponentError(
                f"last() of {type(env).__qualname__} has to return an observation, a reward, whether the agent was "
                "terminated, whether it was truncated, and an info"
            )

    def step(self, index: Any) -> Any:
        """Observe, act for the agent whose turn it is, and return the observation and the rewards."""
        env = self.env
        observation, _, _, _, info = env.last()
        env.step(self.action(env.agent_selection, index, observation, info))
        self._stepped += 1
        return observation, dict(env.rewards), info

    def finish(self, results: Any) -> None:
        """Give ended agents their last turn, and reset the env when none is left."""
        __tracebackhide__ = True
        env, left = self.env, len(self.env.agents)
        while len(env.agents) and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            if not left:
                raise ComponentError(f"step(None) of {type(env).__qualname__} has to remove an ended agent from agents")
            left -= 1
            with ENV_STEP:
                env.step(None)
        if not len(env.agents):
            with RESET:
                env.reset()

    def check_step(self, results: Any) -> bool:
        """Check that rewards are finite, and return whether the step ended an agent's episode."""
        __tracebackhide__ = True
        _check_rewards(results[1])
        return any(self.env.terminations.values()) or any(self.env.truncations.values())


def _first(returned: Any) -> tuple[Any, Any]:
    """Return the observations and infos that a reset returned."""
    both = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    return tuple(each if isinstance(each, Mapping) else {} for each in both)  # type: ignore[return-value]


def _check_rewards(rewards: Mapping[Any, Any]) -> None:
    """Raise ComponentError unless each agent's reward is finite."""
    __tracebackhide__ = True
    for agent, reward in rewards.items():
        if not is_finite(reward):
            raise ComponentError(f"step() gave {agent} the reward {reward!r}, which is not finite")
