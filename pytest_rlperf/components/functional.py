"""Steps of functional envs of JAX, whose state is a value: compiled, and mapped over many states.

They are recognised by ``reset``, whose first parameter is a random key. Two interfaces are known. In gymnax's,
``reset(key, params)`` returns an observation and a state, and ``step(key, state, action, params)`` an observation, a
state, a reward, whether the episode is done, and more; it resets within the step. In Brax's, ``reset(rng)`` and
``step(state, action)`` return a state that has ``obs``, ``reward`` and ``done``; an ended state begins again from its
first, as under Brax's own wrapper.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_rlperf.components.checks import attribute, signature_of
from pytest_rlperf.components.contracts import ACTIONS, Stepper, check_observations, check_rows, is_finite
from pytest_rlperf.errors import ComponentError

KEYS = ("key", "rng", "rng_key", "prng_key")
_NUM_ENVS = 64


def is_functional(env: Any) -> bool:
    """Return whether an object is a functional env of JAX: its ``reset`` takes a random key first."""
    if "jax" not in sys.modules or isinstance(env, type):
        return False
    return _first_parameter(env, "reset") in KEYS and callable(attribute(env, "step"))


def _first_parameter(env: Any, name: str) -> str:
    """Return the name of a method's first parameter, empty without one."""
    method = attribute(env, name)
    signature = signature_of(method) if callable(method) else None
    return next(iter(signature.parameters), "") if signature else ""


class FunctionalStepper(Stepper):
    """Steps many states of one env at once, by one compiled call, and waits for the result."""

    def __init__(self, env: Any, num_envs: int | None, seed: int) -> None:
        import jax

        num_envs = num_envs or _NUM_ENVS
        self._jax = jax
        self._is_keyed = _first_parameter(env, "step") in KEYS
        self._params = attribute(env, "default_params")
        self._begin = jax.random.split(jax.random.PRNGKey(seed), num_envs)
        super().__init__(env, num_envs, self._actions_of(env, num_envs, seed))
        self._reset = jax.jit(jax.vmap(self._reset_one))
        self._step = jax.jit(jax.vmap(self._step_one))

    def _actions_of(self, env: Any, num_envs: int, seed: int) -> list[Any]:
        """Return batches of actions, drawn from the env's space, or between -1 and 1 where it has a number of them."""
        __tracebackhide__ = True
        random = self._jax.random
        keys = random.split(random.PRNGKey(seed + 1), ACTIONS)
        size, space = attribute(env, "action_size"), attribute(env, "action_space")
        if isinstance(size, int) and not callable(space):
            return [random.uniform(key, (num_envs, size), minval=-1.0, maxval=1.0) for key in keys]
        space = space if not callable(space) else space() if self._params is None else space(self._params)
        if not callable(attribute(space, "sample")):
            raise ComponentError(
                f"{type(env).__qualname__} has neither action_space, with sample(key), nor action_size: step it by a "
                f"thunk that waits for the result: rlperf_vecenv_step(step, num_envs={num_envs})"
            )
        sample = self._jax.jit(self._jax.vmap(space.sample))
        return [sample(random.split(key, num_envs)) for key in keys]

    def _reset_one(self, key: Any) -> Any:
        given = () if self._params is None else (self._params,)
        returned = self.env.reset(key, *given)
        return returned[1] if self._is_keyed else returned

    def _step_one(self, key: Any, first: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
        """Return the next key, the state after a step, and its observation, reward and whether the episode ended."""
        numpy = self._jax.numpy
        following, key = self._jax.random.split(key)
        if self._is_keyed:
            given = () if self._params is None else (self._params,)
            observation, state, reward, done, *_ = self.env.step(key, state, action, *given)
            return following, state, (observation, reward, done, None)
        state = self.env.step(state, action)
        done = numpy.asarray(state.done, bool)
        kept = self._jax.tree_util.tree_map(lambda begun, now: numpy.where(done, begun, now), first, state)
        return following, kept, (state.obs, state.reward, state.done, None)

    def reset(self) -> None:
        """Begin every state anew, by the seed."""
        self._keys = self._begin
        self._state = self._first = self._jax.block_until_ready(self._reset(self._keys))

    def step(self, actions: Any) -> Any:
        """Step every state once, and wait for it."""
        returned = self._jax.block_until_ready(self._step(self._keys, self._first, self._state, actions))
        self._keys, self._state, results = returned
        return results

    def check_step(self, results: Any) -> bool:
        """Check the rows and that rewards are finite, and return whether an episode has ended."""
        __tracebackhide__ = True
        observations, rewards, done, _ = results
        check_observations(observations, self.num_envs)
        check_rows(self.num_envs, {"rewards": rewards, "dones": done})
        if not is_finite(rewards):
            raise ComponentError(f"step() of {type(self.env).__qualname__} returned rewards that are not finite")
        return bool(done.any())
