"""Traces of the workers that do rollouts, not of the process that waits for them.

TorchRL's collectors are traced by their own way to profile workers. In a vector env, the tracer is an attribute of the
env in each chosen worker; gymnasium and Stable-Baselines3 have methods to set and to call it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ATTRIBUTE = "rlperf_tracer"


@dataclass(frozen=True)
class _Plan:
    """The workers to trace, the rollouts to record, and the files to write."""

    workers: tuple[int, ...]
    num_rollouts: int
    warmup_rollouts: int
    save_path: str

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_rollouts < self.num_rollouts:
            raise ValueError(
                f"warmup_rollouts={self.warmup_rollouts}: expected at least 0, and less than "
                f"num_rollouts={self.num_rollouts}"
            )
        if len({self.path(worker) for worker in self.workers}) < len(self.workers):
            raise ValueError(f"save_path={self.save_path!r} needs {{worker_idx}}: several workers write a file each")

    def path(self, worker: int) -> Path:
        """Return the file of a worker."""
        return Path(self.save_path.format(worker_idx=worker))


class WorkerTraces(ABC):
    """A context in which workers record their rollouts; leaving it early writes what has been recorded."""

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan

    def __enter__(self) -> WorkerTraces:
        for worker in self.plan.workers:
            self.plan.path(worker).parent.mkdir(parents=True, exist_ok=True)
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @abstractmethod
    def rollout(self) -> None:
        """Note that a rollout has ended: a vector env does not know, a collector does."""

    @abstractmethod
    def _begin(self) -> None:
        """Start recording in the workers."""

    @abstractmethod
    def _end(self) -> None:
        """Make the workers write what they have recorded, and restore everything."""


def trace_workers(
    env_or_collector: Any,
    *,
    workers: Sequence[int] = (0,),
    num_rollouts: int = 3,
    warmup_rollouts: int = 1,
    save_path: str | Path = "worker_{worker_idx}.json",
) -> WorkerTraces:
    """Return the context in which chosen workers record their rollouts with ``torch.profiler``, a Chrome trace each.

    ``workers`` are their numbers, and ``save_path`` has ``{worker_idx}`` for the number. The first ``warmup_rollouts``
    of ``num_rollouts`` are not recorded. TypeError if there are no workers that can be traced.
    """
    plan = _Plan(tuple(workers), num_rollouts, warmup_rollouts, str(Path(save_path).absolute()))
    if callable(getattr(env_or_collector, "enable_profile", None)):
        return _CollectorTraces(plan, env_or_collector)
    return _VectorEnvTraces(plan, env_or_collector)


class _CollectorTraces(WorkerTraces):
    """Traces of a collector's workers, by TorchRL's own hooks."""

    def __init__(self, plan: _Plan, collector: Any) -> None:
        super().__init__(plan)
        self._collector = collector
        self._hook: Any = None

    def rollout(self) -> None:
        """Do nothing: the collector counts its rollouts."""

    def _begin(self) -> None:
        self._hook = self._collector.post_collect_hook
        self._collector.enable_profile(
            workers=list(self.plan.workers),
            num_rollouts=self.plan.num_rollouts,
            warmup_rollouts=self.plan.warmup_rollouts,
            save_path=self.plan.save_path,
        )

    def _end(self) -> None:
        self._collector.disable_profile()
        if self._hook is not None:
            self._collector.post_collect_hook = self._hook  # for collectors with processes, TorchRL has removed it


class _VectorEnvTraces(WorkerTraces):
    """Traces of a vector env's workers, by an attribute of the env in each."""

    def __init__(self, plan: _Plan, env: Any) -> None:
        super().__init__(plan)
        self._set: Callable[[list[Any]], object]
        self._call: Callable[[str], object]
        sets = callable(getattr(env, "set_attr", None))
        if sets and callable(getattr(env, "env_method", None)):  # Stable-Baselines3
            self._set = lambda values: [env.set_attr(_ATTRIBUTE, each, i) for i, each in enumerate(values)]
            self._call = lambda what: env.env_method(_ATTRIBUTE, what)
        elif sets and callable(getattr(env, "call", None)):  # gymnasium
            self._set = lambda values: env.set_attr(_ATTRIBUTE, values)
            self._call = lambda what: env.call(_ATTRIBUTE, what)
        else:
            raise TypeError(
                f"{type(env).__qualname__} has no workers that can be traced: pass a TorchRL collector, or a "
                "vector env of gymnasium or Stable-Baselines3"
            )
        self._num_envs = int(env.num_envs)
        missing = [worker for worker in plan.workers if not 0 <= worker < self._num_envs]
        if missing:
            raise ValueError(f"workers={list(plan.workers)}: the env has workers 0 to {self._num_envs - 1}")

    def rollout(self) -> None:
        """Note that a rollout of all workers has ended."""
        self._call("rollout")

    def _begin(self) -> None:
        chosen = [
            _Tracer(self.plan, worker) if worker in self.plan.workers else _idle for worker in range(self._num_envs)
        ]
        self._set(chosen)
        self._call("begin")

    def _end(self) -> None:
        self._call("end")
        self._set([_idle] * self._num_envs)


def _idle(what: str) -> None:
    """Stand for the tracer of a worker that is not traced."""


class _Tracer:
    """Records the rollouts of one worker, in its process."""

    def __init__(self, plan: _Plan, worker: int) -> None:
        self._plan, self._worker = plan, worker
        self._ended = 0  # rollouts
        self._profiler: Any = None

    def __call__(self, what: str) -> None:
        """Follow the traced env: tracing begins, a rollout ends, or tracing ends."""
        self._ended += what == "rollout"
        if self._profiler is not None and (what == "end" or self._ended == self._plan.num_rollouts):
            self._write()
        elif what != "end" and self._ended == self._plan.warmup_rollouts:
            self._record()

    def _record(self) -> None:
        from torch.profiler import profile

        self._profiler = profile(with_stack=True)
        self._profiler.start()

    def _write(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        profiler.export_chrome_trace(str(self._plan.path(self._worker)))
