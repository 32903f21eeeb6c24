"""PPO rollouts by TorchRL's collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchrl import _utils
from torchrl.collectors import BaseCollector, Collector
from torchrl.objectives.value.advantages import ValueEstimatorBase

from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Probe
from pytest_rlperf.probes.attach import Undo, put, together
from pytest_rlperf.timers import hierarchical_timer

_TOLERANCE = 1e-4  # of log-probabilities that are computed again, in one batch
_MASK = ("collector", "mask")
_POLICY = hierarchical_timer("policy")
_ENV_STEP = hierarchical_timer("env_step")
_STORE = hierarchical_timer("store")


class TorchRLRoller:
    """Takes one batch of ``frames_per_batch`` frames after another from a ``collector`` of this process.

    The env was reset when the collector was made. GAE is part of a rollout where the collector has it for ``postproc``.
    """

    def __init__(self, collector: BaseCollector, n_steps: int) -> None:
        __tracebackhide__ = True
        _check_collector(collector, n_steps)
        self.n_steps: int = collector.frames_per_batch
        self.num_envs: int = collector.n_env
        self.setup: Callable[[], None] | None = None
        self._collector = collector
        self._rollouts: Iterator[Any] = iter(collector)
        self._phases = _RolloutPhases(collector)
        self.probes: tuple[Probe, ...] = (self._phases,)

    def collect(self) -> Any:
        """Collect a rollout."""
        rollout = next(self._rollouts)
        self._phases.end()
        return rollout

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite and of the policy that was given; ComponentError says what is not."""
        __tracebackhide__ = True
        expected = self.n_steps * self.num_envs
        if self.env_steps(rollout) != expected:
            raise ComponentError(
                f"the collector returned {self.env_steps(rollout):g} frames, expected {self.n_steps} of each of "
                f"{self.num_envs} envs"
            )
        for key, tensor in rollout.items(include_nested=True, leaves_only=True):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ComponentError(f"the collector returned NaN or infinity in {key!r}")
        _check_policy(self._collector, rollout)

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout is of: a reset has no frame, and padding is masked."""
        mask = rollout.get(_MASK, None) if self._collector.split_trajs else None
        return float(rollout.numel() if mask is None else mask.sum())


class _RolloutPhases:
    """Phases of a collector: ``policy``, ``env_step``, ``store``, and ``gae`` or another ``postproc``.

    What comes after an env step is ``store``, until the policy is asked again: the transition is kept and trajectories
    are numbered, in the end all is stacked and copied. TorchRL's own ranges, where they are on, are let into
    ``env_step`` alone: those of the collector are the same times under other names.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._is_storing = False
        self._has_ranges = False

    def attach(self) -> Undo:
        """Time them from now on."""
        collector = self._collector
        self._has_ranges = bool(_utils._PROFILING_ENABLED)
        undoes = [
            self._shut_ranges(),
            # Past the property's setter, which would have a compiled policy compiled anew.
            put(collector, "_wrapped_policy_maybe_compiled", self._timed(_POLICY, collector._wrapped_policy)),
            put(collector.env, "step_and_maybe_reset", self._env_step(collector.env.step_and_maybe_reset)),
        ]
        if collector.postproc is not None:
            name = "gae" if isinstance(collector.postproc, ValueEstimatorBase) else "postproc"
            postproc = self._timed(hierarchical_timer(name), collector.postproc)
            undoes.append(put(collector, "postproc", self._then_storing(postproc)))
        return together([*undoes, self.end])

    def end(self) -> None:
        """End ``store``, where it has begun."""
        if self._is_storing:
            self._is_storing = False
            _STORE.__exit__(None, None, None)

    def _timed(self, timer: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.end()
            with timer:
                return function(*args, **kwargs)

        return timed

    def _then_storing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._is_storing = True
            _STORE.__enter__()
            return result

        return called

    def _env_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def with_ranges(*args: Any, **kwargs: Any) -> Any:
            if not self._has_ranges:
                return step(*args, **kwargs)
            _utils.set_profiling_enabled(True)
            try:
                return step(*args, **kwargs)
            finally:
                _utils.set_profiling_enabled(False)

        return self._then_storing(self._timed(_ENV_STEP, with_ranges))

    def _shut_ranges(self) -> Undo:
        """Switch TorchRL's ranges off, where they are on."""
        if self._has_ranges:
            _utils.set_profiling_enabled(False)
        return lambda: _utils.set_profiling_enabled(True) if self._has_ranges else None


def _check_collector(collector: BaseCollector, n_steps: int) -> None:
    """Raise ComponentError unless every rollout is one of the policy's, of as many steps, made when it is asked for."""
    __tracebackhide__ = True
    name = type(collector).__qualname__
    if not isinstance(collector, Collector):
        raise ComponentError(
            f"a {name} collects in processes of its own, and may do so before it is asked: its calls are no rollouts. "
            "Give a Collector; or measure what your training waits for: rlperf_ppo_collect(lambda: next(rollouts), "
            "items=frames_per_batch), where rollouts = iter(collector)"
        )
    if collector.total_frames != float("inf"):
        raise ComponentError(
            f"the {name} ends after {collector.total_frames} frames, and measuring takes as many rollouts as there is "
            "time for: make it with total_frames=-1"
        )
    for option, why in (
        ("replay_buffer", "it fills a buffer and returns no rollout"),
        ("trajs_per_batch", "its rollouts are of as many frames as whole trajectories happen to have"),
        ("init_random_frames", "its first rollouts are random, not the policy's"),
    ):
        if getattr(collector, option, None):
            raise ComponentError(f"the {name} has {option}: {why}. Make it without")
    if n_steps != collector.frames_per_batch:
        raise ComponentError(
            f"the {name} collects {collector.frames_per_batch} steps of each of {collector.n_env} envs, not {n_steps}: "
            f"make it with frames_per_batch={n_steps * collector.n_env}, or give n_steps={collector.frames_per_batch}"
        )


def _check_policy(collector: Collector, rollout: Any) -> None:
    """Ask the policy that the collector was given for the log-probabilities of what is stored, where it can tell."""
    __tracebackhide__ = True
    given = collector._orig_policy
    policy = collector.policy if given is None else given
    key = next((key for key in rollout.keys(True, True) if str(key).find("log_prob") >= 0), None)
    if key is None:
        raise ComponentError(
            "the rollout has no log-probabilities, which PPO needs of its policy: "
            "ProbabilisticActor(…, return_log_prob=True)"
        )
    if not hasattr(policy, "get_dist"):
        return
    device = next((parameter.device for parameter in policy.parameters()), None)
    frames = rollout.copy() if device is None else rollout.to(device)
    with torch.no_grad():
        again = policy.get_dist(frames).log_prob(frames.get(policy.dist_sample_keys[0]))
    stored = frames.get(policy.log_prob_keys[0])
    differs = (stored - again).abs() > _TOLERANCE * (1 + again.abs())
    if differs.float().mean() > 0.5:  # a squashed action near its bound may not tell where it came from
        raise ComponentError(
            f"the rollout is not of the policy that the collector was given: {int(differs.sum())} of "
            f"{differs.numel()} log-probabilities are others, as {stored[differs][0]:.6g}, expected "
            f"{again[differs][0]:.6g}. After changing a policy: collector.update_policy_weights_()"
        )
