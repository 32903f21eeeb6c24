"""``rlox.callbacks.TimingCallback``, with each label bound to the calls that it names.

Use it wherever rlox takes callbacks. The original gives all time between two hooks to one label, whatever runs between
them: PPO's first minibatch is its ``gae_compute``, SAC's updates are its ``env_step``. Here, labels belong to calls:

- ``env_step`` is the environment's step, ``gae_compute`` rlox's functions of that name;
- ``gradient_update`` is the algorithm's ``_update``, or from a call of its ``loss_fn`` to the end of its optimizer's
  step;
- ``collect`` is the rest of its collector's work, such as choosing actions, and ``other`` the rest of the training.

Times are the training thread's, on the host. While a training runs, these methods of its objects and rlox's functions
are replaced. They are put back when it ends; after a failed training, :meth:`TimingCallback.close` or the next does so.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

from pytest_rlperf.probes import put
from pytest_rlperf.probes.functions import proxy_for

ENV_STEP, GAE, UPDATE, COLLECT, OTHER = "env_step", "gae_compute", "gradient_update", "collect", "other"


class TimingCallback:
    """Measures the share of the training that each phase takes; several trainings add up.

    ``counts`` is how often each phase ran.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._phase_times: dict[str, float] = {}
        self._clock: _PhaseClock | None = None
        self._replaced = ExitStack()

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase, which add up to the training's, until now if it still runs."""
        if self._clock is not None:
            self._clock.read()
        return dict(self._phase_times)

    def summary(self) -> dict[str, float]:
        """Return the percentage of the time that each phase took; nothing before a training."""
        seconds = self.seconds
        total = sum(seconds.values())
        return {phase: taken / total * 100 for phase, taken in seconds.items()} if total else {}

    def close(self) -> None:
        """Stop where the last phase ended, and put everything back; for a failed training."""
        self._replaced.close()
        if self._clock is not None:
            self._clock.thread = None
            self._clock = None

    def on_training_start(self, **kwargs: Any) -> None:
        """Find the algorithm that trains, and time its calls."""
        self.close()
        self._clock = _PhaseClock(self._phase_times, self.counts)
        unknown = self._replace(_who_trains(sys._getframe(1)), self._clock)
        if unknown:
            warnings.warn(f"TimingCallback {unknown}: its time is in 'other'", RuntimeWarning, stacklevel=2)

    def on_step(self, **kwargs: Any) -> bool:
        """Return True: the training goes on."""
        self._between_phases()
        return True

    def on_rollout_end(self, **kwargs: Any) -> None:
        """Note that no update is under way."""
        self._between_phases()

    def on_train_batch(self, **kwargs: Any) -> None:
        """Do nothing: updates are recognised by their calls."""

    def on_eval(self, **kwargs: Any) -> None:
        """Do nothing: an evaluation is not a phase of the training."""

    def on_training_end(self, **kwargs: Any) -> None:
        """Put everything back."""
        self._between_phases()
        if self._clock is not None:
            self._clock.read()
        self.close()

    def _between_phases(self) -> None:
        if self._clock is not None:
            self._clock.drop_update()

    # ------------------------------------------------------------------ replacing

    def _replace(self, algorithm: object, clock: _PhaseClock) -> str:
        """Time the algorithm's calls, and return a complaint if something is missing, else ""."""
        if algorithm is None:
            return "does not see what trains"
        collector = getattr(algorithm, "collector", None)
        for owner in (algorithm, collector):
            env = getattr(owner, "env", None)
            name = next((name for name in ("step_all", "step") if callable(getattr(env, name, None))), None)
            if name is not None and not self._time(env, name, clock.phase(ENV_STEP)):
                # A compiled env takes no attribute: its owner gets a proxy instead.
                self._time(owner, "env", clock.phase(ENV_STEP), name)
        for name in ("collect", "collect_step"):
            self._time(collector, name, clock.phase(COLLECT))
        for name in ("compute_gae", "compute_gae_batched", "compute_gae_batched_f32"):
            self._time(sys.modules.get("rlox"), name, clock.phase(GAE))
        if self._time(algorithm, "_update", clock.phase(UPDATE)):
            return ""
        optimizer = getattr(algorithm, "optimizer", None)
        if (
            callable(getattr(algorithm, "loss_fn", None))
            and self._time(optimizer, "step", partial(clock.call, clock.read, clock.end_update, ""))
            and self._time(algorithm, "loss_fn", partial(clock.call, clock.begin_update, clock.read, ""))
        ):
            return ""
        return f"does not know where {type(algorithm).__name__} updates"

    def _time(self, owner: object, name: str, around: Callable[..., Any], method: str = "__call__") -> bool:
        """Put ``around`` around each call of ``owner.name``'s method; return False if the owner takes no attribute."""
        target = getattr(owner, name, None)
        if not callable(getattr(target, method, None)):
            return False
        try:
            proxy = proxy_for(target, {method: partial(around, getattr(target, method))})
            self._replaced.callback(put(owner, name, proxy))
        except (AttributeError, TypeError):
            return False
        return True


class _PhaseClock:
    """Gives all time to the innermost phase in ``running``.

    The first entry there is not a call of a phase, but the training, or an update that is made of several calls.
    """

    def __init__(self, seconds: dict[str, float], counts: Counter[str]) -> None:
        self.running = [OTHER]
        self.thread: int | None = threading.get_ident()  # the training's, until it is over
        self._seconds = seconds
        self._counts = counts
        self._since = time.perf_counter()

    def read(self) -> None:
        """Give the time until now to the innermost phase."""
        phase, now = self.running[-1], time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def phase(self, phase: str) -> Callable[..., Any]:
        """Return a function that calls another as a phase."""
        return partial(self.call, partial(self.enter, phase), self.leave, phase)

    def call(
        self,
        before: Callable[[], None],
        after: Callable[[], None],
        phase: str,
        original: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call ``original``, with ``before`` and ``after`` around it if the call is the training's own.

        A call within a call of the same phase is not a separate phase.
        """
        if threading.get_ident() != self.thread or self.running[-1] == phase:
            return original(*args, **kwargs)
        before()
        try:
            return original(*args, **kwargs)
        finally:
            after()

    def enter(self, phase: str) -> None:
        """Begin a phase within the one that runs."""
        self.drop_update()
        self.read()
        self.running.append(phase)

    def leave(self) -> None:
        """End the innermost phase."""
        self.read()
        self._counts[self.running.pop()] += 1

    def begin_update(self) -> None:
        """Begin an update, unless it has begun."""
        if self.running == [OTHER]:
            self.read()
            self.running = [UPDATE]

    def end_update(self) -> None:
        """End the update, if there is one."""
        if self.running == [UPDATE]:
            self.leave()
            self.running = [OTHER]

    def drop_update(self) -> None:
        """End an update that was never finished."""
        if self.running == [UPDATE]:
            self.read()
            self.running = [OTHER]


def _who_trains(frame: FrameType | None) -> object:
    """Return the first object that called a hook and can train, None if there is none."""
    while frame is not None:
        code = frame.f_code
        caller = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if callable(getattr(type(caller), "train", None)):
            return caller
        frame = frame.f_back
    return None
