"""Compiled steps of JAX's functional envs, whose state is a value, mapped over many states.

They are recognised by ``reset``, whose first parameter is a random key. Three interfaces are known. In gymnax's,
``reset(key, params)`` returns an observation and a state, and ``step(key, state, action, params)`` an observation, a
state, a reward, one or two flags of the episode's end, and infos; it resets within the step. In Brax's, ``reset(rng)``
and ``step(state, action)`` return a state that has ``obs``, ``reward`` and ``done``; in Jumanji's, a state and a time
step that has ``observation``, ``reward`` and ``last()``. In these two, an ended state begins again from its first, as
under Brax's own wrapper.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_rlperf.components.checks import attribute, check_takes, refusal, signature_of
from pytest_rlperf.components.contracts import ACTIONS, Stepper, check_observations, check_rows, is_finite
from pytest_rlperf.errors import ComponentError

_KEYS = ("key", "rng", "rng_key", "prng_key")
_NUM_ENVS = 64


def is_functional(env: Any) -> bool:
    """Return whether an object is a functional JAX env: its ``reset`` takes a random key first."""
    env = _with_params(env)[0]
    if "jax" not in sys.modules or isinstance(env, type):
        return False
    return is_keyed(attribute(env, "reset")) and callable(attribute(env, "step"))


def is_keyed(method: Any) -> bool:
    """Return whether a method, of an object or of its class, requires a random key as its first parameter."""
    signature = signature_of(method) if callable(method) else None
    parameters = signature.parameters.values() if signature else ()
    first = next((each for each in parameters if each.name != "self"), None)
    return first is not None and first.name in _KEYS and first.default is first.empty


def _with_params(env: Any) -> tuple[Any, Any]:
    """Return an env and its parameters: a pair of both, as ``gymnax.make`` returns, or an env with its default ones."""
    return env if isinstance(env, tuple) and len(env) == 2 else (env, attribute(env, "default_params"))


def _parts(returned: Any) -> tuple[Any, Any, Any, Any]:
    """Return the state, and the step's observation, reward and flag of the end, None for what is lacking."""
    if isinstance(returned, tuple) and len(returned) == 2 and callable(attribute(returned[1], "last")):
        state, step = returned
        return state, step.observation, step.reward, step.last()
    return returned, *(attribute(returned, name) for name in ("obs", "reward", "done"))


class FunctionalStepper(Stepper):
    """Steps many states of one env at once, by one compiled call, and waits for the result."""

    def __init__(self, env: Any, num_envs: int | None, seed: int) -> None:
        import jax

        num_envs = num_envs or _NUM_ENVS
        env, params = _with_params(env)
        self._jax = jax
        self._is_keyed = is_keyed(env.step)
        self._params = () if params is None else (params,)
        check_takes(
            f"rlperf_vecenv_step calls env.reset(key{', params' if self._params else ''})",
            env.reset,
            (None, *self._params),
            f"rlperf_vecenv_step((env, params), num_envs={num_envs}) gives parameters",
        )
        if attribute(env, "batch_size") is not None and not self._is_keyed:
            raise ComponentError(
                f"{type(env).__qualname__} has batch_size, so it steps several envs itself: make one without "
                f"batch_size, and pass their number: rlperf_vecenv_step(env, num_envs={num_envs})"
            )
        self._begin = jax.random.split(jax.random.PRNGKey(seed), num_envs)
        super().__init__(env, num_envs, self._actions_of(env, num_envs, seed))
        self._reset = jax.jit(jax.vmap(self._reset_one))
        self._step = jax.jit(jax.vmap(self._step_one))

    def _actions_of(self, env: Any, num_envs: int, seed: int) -> list[Any]:
        """Return batches of actions, drawn from the env's space or spec, or from -1 to 1 if it has a number."""
        __tracebackhide__ = True
        random = self._jax.random
        keys = random.split(random.PRNGKey(seed + 1), ACTIONS)
        size, space = attribute(env, "action_size"), attribute(env, "action_space")
        if isinstance(size, int) and not callable(space):
            return [random.uniform(key, (num_envs, size), minval=-1.0, maxval=1.0) for key in keys]
        spec = attribute(env, "action_spec")
        if space is None and attribute(spec, "maximum") is not None:
            shape, low, high = (num_envs, *spec.shape), spec.minimum, spec.maximum
            if self._jax.numpy.issubdtype(spec.dtype, self._jax.numpy.integer):
                return [random.randint(key, shape, low, high + 1, spec.dtype) for key in keys]
            return [random.uniform(key, shape, spec.dtype, low, high) for key in keys]
        function = f"rlperf_vecenv_step(step, num_envs={num_envs})"
        instead = f"pass a zero-argument function that steps it and waits for the result: {function}"
        if callable(space):
            given = () if refusal(space, *self._params) else self._params
            check_takes("rlperf_vecenv_step calls env.action_space()", space, given, instead)
            space = space(*given)
        if not callable(attribute(space, "sample")):
            raise ComponentError(
                f"{type(env).__qualname__} has neither action_space, with sample(key), nor action_size: {instead}"
            )
        sample = self._jax.jit(self._jax.vmap(space.sample))
        return [sample(random.split(key, num_envs)) for key in keys]

    def _reset_one(self, key: Any) -> Any:
        returned = self.env.reset(key, *self._params)
        return returned[1] if self._is_keyed else _parts(returned)[0]

    def _step_one(self, key: Any, first: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
        """Return the next key, the state after a step, and the step's observation, reward and flags of the end."""
        numpy = self._jax.numpy
        following, key = self._jax.random.split(key)
        if self._is_keyed:
            observation, state, reward, *ends, _ = self.env.step(key, state, action, *self._params)
            return following, state, (observation, reward, *ends, None)
        returned = self.env.step(state, action)
        state, observation, reward, ended = _parts(returned)
        if ended is None:
            raise ComponentError(
                f"step(state, action) of {type(self.env).__qualname__} returned {type(returned).__qualname__}, "
                "expected a state with obs, reward and done; for any other env, pass a zero-argument function that "
                f"waits for the result: rlperf_vecenv_step(step, num_envs={self.num_envs})"
            )
        done = numpy.asarray(ended, bool)
        kept = self._jax.tree_util.tree_map(lambda begun, now: numpy.where(done, begun, now), first, state)
        return following, kept, (observation, reward, ended, None)

    def reset(self) -> None:
        """Begin every state again, by the seed."""
        self._keys = self._begin
        self._state = self._first = self._jax.block_until_ready(self._reset(self._keys))

    def step(self, actions: Any) -> Any:
        """Step every state once, and wait for the result."""
        returned = self._jax.block_until_ready(self._step(self._keys, self._first, self._state, actions))
        self._keys, self._state, results = returned
        return results

    def check_step(self, results: Any) -> bool:
        """Check the rows and that rewards are finite, and return whether an episode has ended."""
        __tracebackhide__ = True
        observations, rewards, *ends, _ = results
        check_observations(observations, self.num_envs)
        names = ("dones",) if len(ends) == 1 else ("terminated", "truncated")
        check_rows(self.num_envs, {"rewards": rewards, **dict(zip(names, ends, strict=True))})
        if not is_finite(rewards):
            raise ComponentError(f"step() of {type(self.env).__qualname__} returned rewards that are not finite")
        return any(bool(flags.any()) for flags in ends)
