"""Steps of envs with many agents, by the two interfaces that PettingZoo defines.

In the parallel one, all agents act at once, by a mapping from agents to actions. In the other, AEC, agents take turns:
``last()`` returns what the next agent observes, and ``step(action)`` acts for it. An agent whose episode has ended gets
one more turn there, with the action None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute
from pytest_rlperf.components.contracts import ACTIONS, RESET, Stepper, is_finite
from pytest_rlperf.errors import ComponentError


def agents_stepper(env: Any) -> Callable[[Any, int], Stepper] | None:
    """Return the stepper for an env of many agents, by its methods; None for any other object."""
    if isinstance(env, type) or not all(callable(attribute(env, name)) for name in ("reset", "step", "action_space")):
        return None
    if callable(attribute(env, "last")) and callable(attribute(env, "agent_iter")):
        return TurnsStepper
    return ParallelStepper if attribute(env, "possible_agents") is not None else None


class _AgentsStepper(Stepper):
    """Steps the agents of an env by actions that are drawn beforehand, and counts the steps of each."""

    unit = "agent step"

    def __init__(self, env: Any, seed: int) -> None:
        env.reset(seed=seed)
        self._seed = seed
        self._drawn: dict[Any, list[Any]] = {}
        self._shares = np.random.default_rng(seed).random(ACTIONS).tolist()
        self._stepped = 0
        super().__init__(env, self.acting(), range(ACTIONS))

    def acting(self) -> int:
        """Return how many agents act in one call."""
        return 1

    def reset(self) -> None:
        """Reset the env, by the seed."""
        self.env.reset(seed=self._seed)

    def count(self) -> float:
        """Return the steps of agents since the last count."""
        stepped, self._stepped = self._stepped, 0
        return float(stepped)

    def action(self, agent: Any, index: int, observation: Any, info: Any) -> Any:
        """Return an agent's action: one that was drawn, or one that the mask beside its observation allows."""
        for place in (observation, info):
            mask = place.get("action_mask") if isinstance(place, Mapping) else None
            if mask is not None:
                allowed = np.flatnonzero(mask)
                return allowed[int(self._shares[index] * len(allowed))]
        if agent not in self._drawn:
            space = self.env.action_space(agent)
            space.seed(self._seed + len(self._drawn))
            self._drawn[agent] = [space.sample() for _ in range(ACTIONS)]
        return self._drawn[agent][index]


class ParallelStepper(_AgentsStepper):
    """Steps all agents at once, and resets the env when none is left."""

    def __init__(self, env: Any, seed: int) -> None:
        super().__init__(env, seed)
        self._seen: tuple[Any, Any] = ({}, {})

    def acting(self) -> int:
        """Return how many agents act in one call: all that the env begins with."""
        return max(1, len(self.env.agents))

    def step(self, index: Any) -> Any:
        """Step the agents that are left."""
        (observations, infos), agents = self._seen, self.env.agents
        self._stepped += len(agents)
        actions = {each: self.action(each, index, observations.get(each), infos.get(each)) for each in agents}
        return self.env.step(actions)

    def finish(self, results: Any) -> None:
        """Keep the observations, for masks of actions, or reset the env."""
        self._seen = results[0], results[4]
        if not self.env.agents:
            with RESET:
                self._seen = _first(self.env.reset())

    def reset(self) -> None:
        """Reset the env, by the seed."""
        self._seen = _first(self.env.reset(seed=self._seed))

    def check_step(self, results: Any) -> bool:
        """Check that a step returned five mappings with finite rewards, and return whether it was an episode's last."""
        __tracebackhide__ = True
        if not isinstance(results, tuple) or len(results) != 5:
            raise ComponentError(
                f"step(actions) of {type(self.env).__qualname__} has to return five mappings from agents: "
                "observations, rewards, terminations, truncations and infos"
            )
        _check_rewards(results[1])
        return not self.env.agents


class TurnsStepper(_AgentsStepper):
    """Steps the agent whose turn it is, with the turns of ended agents behind it, and resets when none is left."""

    def step(self, index: Any) -> Any:
        """Observe, and act for the agent whose turn it is."""
        env = self.env
        seen = observation, _, _, _, info = env.last()
        env.step(self.action(env.agent_selection, index, observation, info))
        self._stepped += 1
        return seen

    def finish(self, results: Any) -> None:
        """Give ended agents their last turn, and reset the env when none is left."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if not env.agents:
            with RESET:
                env.reset()

    def check_step(self, results: Any) -> bool:
        """Check that rewards are finite, and return whether the step was an episode's last."""
        __tracebackhide__ = True
        _check_rewards(self.env.rewards)
        return any(self.env.terminations.values()) or any(self.env.truncations.values())


def _first(returned: Any) -> tuple[Any, Any]:
    """Return the observations and infos that a reset returned."""
    return returned if isinstance(returned, tuple) and len(returned) == 2 else ({}, {})


def _check_rewards(rewards: Mapping[Any, Any]) -> None:
    """Raise ComponentError unless each agent's reward is finite."""
    __tracebackhide__ = True
    for agent, reward in rewards.items():
        if not is_finite(reward):
            raise ComponentError(f"step() gave {agent} the reward {reward!r}, which is not finite")
