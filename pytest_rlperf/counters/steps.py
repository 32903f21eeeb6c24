"""Steps: of environments, and of PyTorch's optimizers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from pytest_rlperf.counters.instrument import TotalsInstrument
from pytest_rlperf.probes.attach import Undo, put
from pytest_rlperf.probes.torch import after_steps


class Steps(TotalsInstrument):
    """Counts the steps of environments, by wrapping their methods, and of optimizers, by PyTorch's hooks.

    ``environments`` names base classes of environments, each with the method that is a step of them:
    ``"module:Class.method"``.
    """

    names: tuple[str, ...] = ("env_steps", "optimizer_steps")

    def __init__(self, environments: Sequence[str]) -> None:
        super().__init__()
        self._environments = environments
        self._inside = threading.local()
        self._env_step, self._optimizer_step = self.totals.unit("env_steps"), self.totals.unit("optimizer_steps")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be in place while the body runs."""
        with ExitStack() as stack:
            for undo in self._attach():
                stack.callback(undo)
            yield

    def _attach(self) -> Iterator[Undo]:
        for kind, method in _classes(self._environments):
            try:
                yield put(kind, method, self._around(vars(kind)[method]))
            except TypeError:
                continue  # a class of C++ or Rust that cannot be changed
        if "torch.optim.optimizer" in sys.modules:
            # Registered before the probes' own hooks, so that a step counts within the phase that a probe makes of it.
            yield after_steps(self._note_optimizer)

    def _note_optimizer(self, _: object) -> None:
        self.totals.packed += self._optimizer_step

    def _around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @wraps(step)
        def counted(env: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "env", False):
                return step(env, *args, **kwargs)  # of an env within another: a wrapper's, a vector env's
            self.totals.packed += self._env_step * envs_in(env)
            inside.env = True
            try:
                return step(env, *args, **kwargs)
            finally:
                inside.env = False

        return counted


def _classes(environments: Iterable[str]) -> Iterator[tuple[type, str]]:
    """Yield every class of environments that is loaded and has a step of its own."""
    for environment in environments:
        module, _, path = environment.partition(":")
        name, _, method = path.partition(".")
        pending = [getattr(sys.modules.get(module), name, None)]
        seen: set[type] = set()
        while pending:
            kind = pending.pop()
            if isinstance(kind, type) and kind not in seen:
                seen.add(kind)
                pending += type.__subclasses__(kind)
                if callable(vars(kind).get(method)):
                    yield kind, method


def envs_in(env: Any) -> int:
    """Return how many environments take a step when ``env`` does."""
    number = getattr(env, "num_envs", None)
    number = number() if callable(number) else number
    if isinstance(number, int):
        return number
    sizes = getattr(env, "batch_size", ())
    return int(sizes.numel()) if hasattr(sizes, "numel") else 1
