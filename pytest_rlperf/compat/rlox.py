"""``rlox.callbacks.TimingCallback``, with each label bound to the calls that it names.

It goes wherever rlox takes callbacks. The original gives all time between two hooks to one label, whatever runs
between them: PPO's first minibatch is its ``gae_compute``, SAC's updates are its ``env_step``. Here labels belong to
calls:

- ``env_step`` is the environment's step, ``gae_compute`` rlox's functions of that name;
- ``gradient_update`` is the algorithm's ``_update``, or from a call of its ``loss_fn`` to the end of its optimizer's
  step;
- ``collect`` is the rest of its collector's work, such as choosing actions, and ``other`` the rest of the training.

Times are the training thread's, on the host. While a training runs, these methods of its objects and rlox's functions
are replaced. They are put back when it ends. Where it fails that is at once, if one of them does; otherwise when one of
them is next called, or :meth:`TimingCallback.summary` or :meth:`TimingCallback.close`.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from pytest_rlperf.probes.attach import Undo, put
from pytest_rlperf.probes.functions import is_proxy, proxy_for

Call = Callable[..., Any]
_replacing = threading.RLock()  # several trainings may replace the same function

ENV_STEP, GAE, UPDATE, COLLECT, OTHER = "env_step", "gae_compute", "gradient_update", "collect", "other"


class TimingCallback:
    """Measures the share of the training that each phase takes; several trainings add up.

    ``counts`` is how often each phase ran.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._phase_times: dict[str, float] = {}
        self._training: _Training | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase, which add up to the training's; of one that still runs, until now."""
        training = self._training
        if training is not None and training.is_over():
            self.close()
        elif training is not None:
            training.clock.read()
        return dict(self._phase_times)

    def summary(self) -> dict[str, float]:
        """Return the percentage of the time that each phase took; nothing before any training."""
        seconds = self.seconds
        total = sum(seconds.values())
        return {phase: taken / total * 100 for phase, taken in seconds.items()} if total else {}

    def close(self) -> None:
        """Stop, and put everything back, whether or not the training has ended."""
        training, self._training = self._training, None
        if training is not None:
            training.end()

    def on_training_start(self, **kwargs: Any) -> None:
        """Find the algorithm that trains, and time its calls."""
        self.close()
        algorithm, frame = _who_trains(sys._getframe(1), kwargs.get("algo"))
        self._training = _Training(_PhaseClock(self._phase_times, self.counts), algorithm, frame)
        unknown = self._training.replace()
        if unknown:
            warnings.warn(f"TimingCallback {unknown}: its time is in 'other'", RuntimeWarning, stacklevel=2)

    def on_step(self, **kwargs: Any) -> bool:
        """Return that the training goes on."""
        self._between_phases()
        return True

    def on_rollout_end(self, **kwargs: Any) -> None:
        """Note that no update is under way."""
        self._between_phases()

    def on_train_batch(self, **kwargs: Any) -> None:
        """Do nothing: updates are recognised by the calls they make."""

    def on_eval(self, **kwargs: Any) -> None:
        """Do nothing: an evaluation is no phase of the training."""

    def on_training_end(self, **kwargs: Any) -> None:
        """Put everything back."""
        self._between_phases()
        self.close()

    def _between_phases(self) -> None:
        training = self._training
        if training is not None:
            training.clock.drop_update()


class _PhaseClock:
    """Gives all time to the innermost phase in ``running``.

    The first entry there is no call of a phase, but the training, or an update that is made of several calls.
    """

    def __init__(self, seconds: dict[str, float], counts: Counter[str]) -> None:
        self.running = [OTHER]
        self._seconds = seconds
        self._counts = counts
        self._since = self._seen = time.perf_counter()

    def read(self) -> None:
        """Give the time until now to the innermost phase."""
        self._give(time.perf_counter())

    def enter(self, phase: str) -> None:
        """Begin a phase within the one that runs."""
        if self.running == [UPDATE]:
            self.drop_update()
        self._give(time.perf_counter())
        self.running.append(phase)

    def leave(self) -> None:
        """End the innermost phase."""
        self._give(time.perf_counter())
        self._counts[self.running.pop()] += 1

    def begin_update(self) -> None:
        """Begin an update, unless it has begun."""
        if self.running == [OTHER]:
            self.read()
            self.running = [UPDATE]

    def see_update(self) -> None:
        """Note that the update has come this far."""
        self._seen = time.perf_counter()

    def end_update(self) -> None:
        """End the update, if there is one."""
        if self.running == [UPDATE]:
            self.leave()
            self.running = [OTHER]

    def drop_update(self) -> None:
        """End an update that was never finished, where it was last seen."""
        if self.running == [UPDATE]:
            self._give(self._seen)
            self.running = [OTHER]

    def _give(self, until: float) -> None:
        phase, taken = self.running[-1], until - self._since
        if taken >= 0:  # else it was given while an update was under way that then was none
            self._seconds[phase] = self._seconds.get(phase, 0.0) + taken
            self._since = until


class _Training:
    """One run of an algorithm's ``train``, and the methods that are replaced for it."""

    def __init__(self, clock: _PhaseClock, algorithm: object, frame: FrameType | None) -> None:
        self.clock = clock
        self.replaced: list[Undo] = []
        self._algorithm = algorithm
        self._frame = frame  # of train(): while it runs, so does the training
        self._thread = threading.get_ident()

    def replace(self) -> str:
        """Time the algorithm's calls, and return a complaint where something is missing, else an empty text."""
        algorithm, clock = self._algorithm, self.clock
        if algorithm is None:
            return "does not see what trains"
        collector = getattr(algorithm, "collector", None)
        self._time_env(algorithm)
        self._time_env(collector)
        for name in ("collect", "collect_step"):
            self._time_phase(collector, name, COLLECT)
        for name in ("compute_gae", "compute_gae_batched", "compute_gae_batched_f32"):
            self._time_phase(sys.modules.get("rlox"), name, GAE)
        if self._time_phase(algorithm, "_update", UPDATE):
            return ""
        optimizer = getattr(algorithm, "optimizer", None)
        if (
            callable(getattr(algorithm, "loss_fn", None))
            and self._time(optimizer, "step", clock.see_update, clock.end_update)
            and self._time(algorithm, "loss_fn", clock.begin_update, clock.see_update)
        ):
            return ""
        return f"does not know where {type(algorithm).__name__} updates"

    def _time_env(self, owner: object) -> None:
        env = getattr(owner, "env", None)
        name = next((name for name in ("step_all", "step") if callable(getattr(env, name, None))), None)
        if name is not None and not self._time_phase(env, name, ENV_STEP):
            # A compiled one takes no attribute: its owner gets a proxy in its place.
            self._keep(owner, "env", name, partial(self._call, *self._phase(ENV_STEP)))

    def _time_phase(self, owner: object, name: str, phase: str) -> bool:
        return self._time(owner, name, *self._phase(phase))

    def _phase(self, phase: str) -> tuple[Callable[[], None], Callable[[], None], str]:
        return partial(self.clock.enter, phase), self.clock.leave, phase

    def _time(
        self, owner: object, name: str, before: Callable[[], None], after: Callable[[], None], phase: str = ""
    ) -> bool:
        if not callable(getattr(owner, name, None)):
            return False
        return self._keep(owner, name, "__call__", partial(self._call, before, after, phase))

    def _keep(self, owner: object, name: str, method: str, around: Call) -> bool:
        """Put ``around`` about each call of ``owner.name``'s method; False where the owner takes no attribute."""
        try:
            self.replaced.append(_replace(owner, name, method, around))
        except (AttributeError, TypeError):
            return False
        return True

    def _call(
        self,
        before: Callable[[], None],
        after: Callable[[], None],
        phase: str,
        original: Call,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call ``original``, with ``before`` and ``after`` around it where the call is the training's own."""
        if not self._sees(phase):
            return original(*args, **kwargs)
        before()
        try:
            result = original(*args, **kwargs)
        except BaseException:
            after()
            if len(self.clock.running) == 1:
                self.put_back()
            raise
        after()
        return result

    def put_back(self) -> None:
        """Put every replaced method back."""
        while self.replaced:
            self.replaced.pop()()

    def end(self) -> None:
        """Stop counting time."""
        self.put_back()
        if not self.is_over():
            self.clock.read()
        self._frame = None
        self._thread = -1

    def _sees(self, phase: str) -> bool:
        """Whether a call is the training's own, and is not within one of the same phase."""
        running = self.clock.running
        if threading.get_ident() != self._thread or running[-1] == phase:
            return False
        if len(running) == 1 and self.is_over():
            self.put_back()
            return False
        return True

    def is_over(self) -> bool:
        """Whether ``train`` has been left without a call of a hook, as far as its thread shows."""
        if self._frame is None or threading.get_ident() != self._thread:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is None


class _Around:
    """Stands for a method: each call goes through everything that trainings have put around it."""

    def __init__(self, original: Call) -> None:
        self.all: list[Call] = []
        self.put_back: Undo | None = None
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._original
        for around in tuple(self.all):
            call = partial(around, call)
        return call(*args, **kwargs)


def _replace(owner: object, name: str, method: str, around: Call) -> Undo:
    """Replace ``owner.name`` by a proxy that sends calls of ``method`` through ``around``.

    Trainings that replace the same attribute share one proxy, in whatever order they end. The last one to end puts the
    original back, unless somebody else has put something over the proxy, which then adds nothing. AttributeError or
    TypeError where the owner takes no attribute.
    """
    with _replacing:
        proxy = getattr(owner, name)
        shared = proxy._rlperf_timed.get(method) if is_proxy(proxy) else None
        if not isinstance(shared, _Around):
            shared = _Around(getattr(proxy, method))
            proxy = proxy_for(proxy, {method: shared})
            shared.put_back = put(owner, name, proxy)
        shared.all.append(around)

    def leave() -> None:
        with _replacing:
            shared.all.remove(around)
            if not shared.all and shared.put_back is not None and getattr(owner, name, None) is proxy:
                shared.put_back()

    return leave


def _who_trains(frame: FrameType | None, algorithm: object) -> tuple[object, FrameType | None]:
    """Return the algorithm that called a hook, by default the first that can train, and the frame it did so in."""
    while frame is not None:
        code = frame.f_code
        caller = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        found = callable(getattr(type(caller), "train", None)) if algorithm is None else caller is algorithm
        if found:
            return caller, frame
        frame = frame.f_back
    return algorithm, None
