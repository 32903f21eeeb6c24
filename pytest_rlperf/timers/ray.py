"""What tells processes of Ray apart, which all are a MainProcess to Python."""

from __future__ import annotations

import sys

_names: dict[str, str] = {}  # by the actor's or the worker's id


def worker_name() -> str | None:
    """Return what an actor, or a worker that runs tasks, is called; None in a driver and where there is no Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    actor: str | None = context.get_actor_id()
    identity: str = actor or context.get_worker_id()
    if identity not in _names:
        kind = (context.get_task_name() or "").partition(".")[0] if actor else ""
        given: str = context.get_actor_name() or "" if actor else ""
        # An actor may be named for each of its calls; the first name stays, so that reports add up.
        _names[identity] = given or f"{kind or ('actor' if actor else 'worker')} {identity[:8]}"
    return _names[identity]
