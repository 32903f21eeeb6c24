"""The contracts of components: what an adapter of a library does, and the checks that all adapters share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import cycle
from typing import Any

from pytest_rlperf.components.checks import attribute, check_device, leaves, to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.timers import Timer, hierarchical_timer

ACTIONS = 64  # distinct batches of actions, drawn before anything is timed
ACTION = hierarchical_timer("action")
ENV_STEP = hierarchical_timer("env_step")
RESET = hierarchical_timer("reset")
_POLICY_TOLERANCE = 1e-3  # of log-probabilities and values that are computed again, in batches of another size


def timed_call(timer: Timer, function: Callable[[], object]) -> Callable[[], object]:
    """Return a call of ``function`` within a phase, for a workload."""

    def call() -> object:
        with timer:
            return function()

    return call


# --------------------------------------------------------------------------- vector envs


class Stepper(ABC):
    """Steps every env of a vector env in each call, by actions drawn beforehand; made with the env and a seed.

    It does not count calls that only reset an env.

    Where an env spends a call on a reset, as under gymnasium's NEXT_STEP, the subclass appends to ``_ended``, once a
    call, a value for ``_n_ended``.
    """

    def __init__(self, env: Any, num_envs: int, actions: Iterable[Any]) -> None:
        self.env = env
        self.num_envs = num_envs
        self._actions = cycle(actions)
        self._calls = 0
        self._ended: list[Any] = []
        self._due = 0  # resets that the next call makes, which may belong to another slice

    @abstractmethod
    def check(self) -> object:
        """Reset and step, and check what comes back; ComponentError names what is wrong."""

    def call(self) -> object:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            results = self.step(actions)
        self._calls += 1
        return results

    def step(self, actions: Any) -> object:
        """Step every env once with these actions."""
        return self.env.step(actions)

    def count(self) -> float:
        """Return the env steps since the last count, resets left out; of a check's, those of its last call."""
        calls, self._calls = self._calls, 0
        *resets, self._due = [self._due, *(self._n_ended(ended) for ended in self._ended)]
        self._ended.clear()
        return float(calls * self.num_envs - sum(resets))

    def _n_ended(self, ended: Any) -> int:
        """Return how many episodes ended with a call, by its entry in ``_ended``."""
        return int(ended.sum())


def autoreset_mode(env: Any) -> str | None:
    """Return the autoreset mode in an env's metadata, as gymnasium spells it; None where they name none.

    Metadata hold the enum's member or its value. gymnasium 1.0 knows NEXT_STEP alone, and does not name it.
    """
    metadata = attribute(env, "metadata")
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    return None if mode is None else str(getattr(mode, "value", mode))


def check_observations(observations: Any, num_envs: int) -> None:
    """Raise ComponentError unless every array of a step's observations has a row an env."""
    __tracebackhide__ = True
    for path, array in leaves(observations, "observation"):
        if tuple(array.shape[:1]) != (num_envs,):
            raise ComponentError(
                f"step() returned {path} of shape {tuple(array.shape)}; {num_envs} envs have as many rows"
            )


def check_rows(num_envs: int, shapes: Mapping[str, Sequence[int]], columns: tuple[int, ...] = ()) -> None:
    """Raise ComponentError unless every array of a step, named with its shape, has a row of ``columns`` an env."""
    __tracebackhide__ = True
    for name, shape in shapes.items():
        if tuple(shape) != (num_envs, *columns):
            raise ComponentError(
                f"step() returned {name} of shape {tuple(shape)}; a vector env of {num_envs} envs returns "
                f"{(num_envs, *columns)}"
            )


# --------------------------------------------------------------------------- replay buffers


class Sampler:
    """Draws batches of a replay buffer; made with the buffer and a batch size.

    Where ``device`` is known, every array of a batch has to be on it.
    """

    device: Any = None

    def __init__(self, buffer: Any, batch_size: int) -> None:
        self.buffer = buffer
        self.batch_size = batch_size

    def draw(self) -> Any:
        """Draw a batch."""
        return self.buffer.sample(self.batch_size)

    def arrays(self, batch: Any) -> Iterable[tuple[str, Any]]:
        """Yield the arrays of a batch, each with its name; their first dimension is transitions."""
        return leaves(batch)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the shapes of a batch's arrays by name; ComponentError where one is not on the device."""
        __tracebackhide__ = True
        for name, array in self.arrays(batch):
            if self.device is not None:
                check_device(f"the batch's {name}", array, self.device)
            yield name, tuple(array.shape)


# --------------------------------------------------------------------------- generalized advantage estimation


class GaeCall(ABC):
    """Calls a library's GAE; made with what the user gave, a random rollout (see ``gae``), and the backend.

    ``call`` computes advantages from arguments that are made ready beforehand, in the library's own layout.
    ``convention`` is the meaning of ``dones[t] = 1``, None where the rollout is not the one given and only shapes can
    be checked.
    """

    is_normalised: bool = False
    convention: str | None = "the episode ended with step t"
    call: Callable[[], Any]

    @abstractmethod
    def advantages(self, output: Any) -> Any:
        """Return the advantages of a call's output as an array of shape (n_steps, n_envs), raw or normalised."""


# --------------------------------------------------------------------------- SAC updates


class Updater(ABC):
    """Does a library's SAC step; made with the agent and a batch size.

    ``owner`` holds the modules and optimizers; ``steps`` is how many optimizer steps one update takes, None where that
    is not known. ``buffers`` are those that an update samples once, to ``device`` where that is known.
    """

    owner: object
    steps: int | None = None
    batch_size: int
    buffers: tuple[Any, ...] = ()
    device: Any = None

    @abstractmethod
    def update(self) -> object:
        """Do one gradient step of every part."""

    def check(self) -> None:
        """Where its buffers are known, do one update, and check the batch that it draws."""
        __tracebackhide__ = True
        if not self.buffers:
            return
        with drawn(self.owner, self.buffers) as batches:
            self.update()
        sizes = [next((len(array) for _, array in leaves(batch)), 0) for batch in batches]
        if sizes != [self.batch_size]:
            raise ComponentError(f"one update drew batches of {sizes} transitions, expected one of {self.batch_size}")
        if self.device is not None:
            for name, array in leaves(batches[0]):
                check_device(f"the batch's {name}", array, self.device)


@contextmanager
def drawn(owner: object, buffers: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a list that gets every batch drawn from ``buffers``, which ``owner`` holds, while the body runs."""
    batches: list[Any] = []

    def noting(sample: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            batch = sample(*args, **kwargs)
            batches.append(batch)
            return batch

        return noted

    with ExitStack() as stack:
        for buffer in buffers:
            stack.callback(replace_method(owner, buffer, "sample", noting))
        yield batches


# --------------------------------------------------------------------------- PPO rollouts


class Roller(ABC):
    """Collects rollouts; made with the agent, or what else collects, and the steps of a rollout, an env each.

    ``setup`` prepares a rollout, untimed, where that is needed: it empties buffers. ``probes`` time the phases
    ``policy``, ``env_step``, ``store`` and ``gae`` from outside.
    """

    n_steps: int
    num_envs: int
    setup: Callable[[], None] | None = None
    probes: tuple[Probe, ...] = ()

    @abstractmethod
    def collect(self) -> Any:
        """Collect a rollout."""

    @abstractmethod
    def check(self, rollout: Any) -> None:
        """Check that a rollout is full, finite and of the policy that was given; ComponentError names what is not."""

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout has: all of its rows, where envs reset within the step."""
        return float(self.n_steps * self.num_envs)


# --------------------------------------------------------------------------- PPO updates and whole iterations


class Learner(ABC):
    """Does a library's PPO updates, and whole iterations of its training; made with the agent and a rollout's steps.

    ``owner`` holds the modules and optimizers. ``probes`` time parts of an update from outside: ``forward``,
    ``backward`` and ``step``; where there are none, modules, backward passes and optimizers are timed.
    ``iteration_probes`` time the two parts of an iteration, ``collect`` and ``update``.
    """

    owner: object
    probes: tuple[Probe, ...] = ()
    iteration_probes: tuple[Probe, ...] = ()

    @abstractmethod
    def collect(self) -> None:
        """Have the full rollout that every update is of; ComponentError where it is not full."""

    @abstractmethod
    def update(self) -> object:
        """Do one update: all epochs and minibatches."""

    def restore(self) -> None:  # noqa: B027 - most updates leave the rollout as it was
        """Give back what an update has used up of the rollout."""

    @abstractmethod
    def iterate(self) -> object:
        """Collect a rollout and update, as the agent's own training does."""

    @abstractmethod
    def env_steps(self) -> Any:
        """Return how many env steps the last iteration took."""


# --------------------------------------------------------------------------- what rollouts are checked by


def check_finite(arrays: Iterable[tuple[str, Any]]) -> None:
    """Raise ComponentError where an array of a rollout, each with its name, holds NaN or infinity."""
    __tracebackhide__ = True
    import numpy as np

    for name, array in arrays:
        values = to_numpy(array)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ComponentError(f"the rollout has NaN or infinity in {name}")


def check_of_policy(
    stored: Mapping[str, Any],
    again: Mapping[str, Any],
    *,
    tolerance: float = _POLICY_TOLERANCE,
    exceptions: float = 0.0,
    advice: str = "",
) -> None:
    """Raise ComponentError unless a rollout stores the log-probabilities and values the policy gives ``again``.

    Up to the share ``exceptions`` of each array may differ.
    """
    __tracebackhide__ = True
    import numpy as np

    for name, array in stored.items():
        kept, now = to_numpy(array).ravel(), to_numpy(again[name]).ravel()
        differs = ~np.isclose(kept, now, rtol=tolerance, atol=tolerance)
        if differs.mean() > exceptions:
            worst = int(np.abs(kept - now).argmax())
            count = np.count_nonzero(differs)
            raise ComponentError(
                f"the agent's current policy did not produce this rollout: {count} of {differs.size} {name} differ, "
                f"most of all {kept[worst]:.6g} where the policy now gives {now[worst]:.6g}{advice}"
            )


class Cuts:
    """Phases of a loop without timers: calls of some functions begin and end them.

    A phase that begins after a call, such as storing, lasts until the next of these calls.
    """

    def __init__(self) -> None:
        self._open: AbstractContextManager[object] | None = None

    def around(
        self,
        during: AbstractContextManager[object] | None,
        after: AbstractContextManager[object] | None = None,
        *,
        resumes: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: the phase ``during`` is the call's, ``after`` begins with its end.

        With ``resumes`` the phase that was open before the call goes on after it.
        """
        return partial(self._cutting, during, after, resumes)

    def _cutting(self, during: Any, after: Any, resumes: bool, function: Callable[..., Any]) -> Callable[..., Any]:
        def cutting(*args: Any, **kwargs: Any) -> Any:
            before = self._open
            self.switch(during)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before if resumes else after)

        return cutting

    def switch(self, phase: AbstractContextManager[object] | None = None) -> None:
        """End the open phase, and begin another, if any."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = phase
        if phase is not None:
            phase.__enter__()
