"""rlox's SAC update and PPO rollout."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import rlox
from rlox.collectors import RolloutCollector

from pytest_rlperf.components.arrays import leaves, to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Probe
from pytest_rlperf.probes.attach import Undo, put, together
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.timers import hierarchical_timer

_TOLERANCE = 1e-3  # of log-probabilities and values that are computed again, in one batch


class RloxUpdater:
    """Calls ``agent._update``, which is one gradient step; its argument is the seed to sample with."""

    def __init__(self, agent: Any, batch_size: int) -> None:
        if agent.batch_size != batch_size:
            raise ComponentError(
                f"the agent samples {agent.batch_size} transitions an update, not batch_size={batch_size}: "
                f"SAC(…, batch_size={batch_size})"
            )
        if len(agent.buffer) < batch_size:
            raise ComponentError(
                f"the agent's buffer holds {len(agent.buffer)} transitions, too few for a batch of {batch_size}: "
                "agent.buffer.push(…) or push_batch(…) more first"
            )
        self.owner: Any = agent
        self.steps: int | None = 3 + bool(agent.auto_entropy)  # the actor, two critics, the temperature
        self._batch_size = batch_size
        self._seeds = count(random.getrandbits(31))

    def update(self) -> object:
        """Do one gradient step of every part."""
        return self.owner._update(next(self._seeds))

    def check(self) -> None:
        """Check that an update draws one batch of the size it is said to be of."""
        __tracebackhide__ = True
        sizes: list[int] = []
        undo = replace_method(self.owner, self.owner.buffer, "sample", partial(_noting_size, sizes))
        try:
            self.update()
        finally:
            undo()
        if sizes != [self._batch_size]:
            raise ComponentError(f"one update drew batches of {sizes} transitions, expected one of {self._batch_size}")


def _noting_size(sizes: list[int], sample: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        batch = sample(*args, **kwargs)
        sizes.append(len(batch["rewards"]))
        return batch

    return noted


class RloxRoller:
    """Calls the collector of a PPO with its policy; the first collect, the check's, resets the envs."""

    def __init__(self, agent: Any, n_steps: int) -> None:
        if isinstance(agent, RolloutCollector):
            raise ComponentError(
                "rlox's RolloutCollector is told its policy by each call: give rlperf_ppo_collect the PPO that has "
                "both, or a thunk: rlperf_ppo_collect(lambda: collector.collect(policy, n_steps), items=…)"
            )
        self.n_steps = n_steps
        self.num_envs: int = agent.collector.n_envs
        self.setup: Callable[[], None] | None = None
        self.probes: tuple[Probe, ...] = (_RolloutPhases(agent),)
        self._agent = agent

    def collect(self) -> Any:
        """Collect a rollout."""
        return self._agent.collector.collect(self._agent.policy, n_steps=self.n_steps)

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite, and what the agent's policy does; ComponentError says what is not."""
        __tracebackhide__ = True
        rows = self.n_steps * self.num_envs
        for name, array in leaves(rollout):
            if array.shape[0] != rows:
                raise ComponentError(
                    f"the rollout is not full: {name} has {array.shape[0]} rows, expected {rows}, {self.n_steps} steps "
                    f"of {self.num_envs} envs"
                )
            if not np.isfinite(to_numpy(array)).all():
                raise ComponentError(f"the rollout has NaN or infinity in {name}")
        policy = self._agent.policy
        log_probs, _ = policy.get_logprob_and_entropy(rollout.obs, rollout.actions)
        for name, again in (("log_probs", log_probs), ("values", policy.get_value(rollout.obs))):
            stored, now = to_numpy(getattr(rollout, name)), to_numpy(again)
            worst = int(np.abs(stored - now).argmax())
            if not np.allclose(stored, now, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise ComponentError(
                    f"the rollout is not of the agent's policy: it has {name} of {stored[worst]:.6g}, expected "
                    f"{now[worst]:.6g} by the policy as it is"
                )

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps the rollout is of: envs reset within the step, so every row is one."""
        return float(rollout.rewards.shape[0])


class _RolloutPhases:
    """Times the collector's calls of policy, envs and GAE, and as ``store`` what it does after envs and GAE.

    That is making tensors, statistics, and stacking; it goes on until the policy or GAE is next called, or the end.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._store = hierarchical_timer("store")
        self._is_storing = False

    def attach(self) -> Undo:
        """Time them from now on."""
        return together(self._replace())

    def _replace(self) -> Iterator[Undo]:
        agent, collector = self._agent, self._agent.collector
        yield replace_method(agent, collector, "collect", self._whole)
        for name in ("get_action_value", "get_action_and_logprob", "get_value"):
            if hasattr(agent.policy, name):
                # A value between storing is of an episode that was cut off, or of the rollout's end.
                resumes = name == "get_value"
                yield replace_method(agent, agent.policy, name, partial(self._around, "policy", resumes))
        yield replace_method(collector, collector.env, "step_all", partial(self._around, "env_step", True))
        yield put(rlox, "compute_gae_batched", self._around("gae", True, rlox.compute_gae_batched))

    def _whole(self, collect: Callable[..., Any]) -> Callable[..., Any]:
        def collected(*args: Any, **kwargs: Any) -> Any:
            try:
                return collect(*args, **kwargs)
            finally:
                self._switch(False)

        return collected

    def _around(self, name: str, stores_after: bool, function: Callable[..., Any]) -> Callable[..., Any]:
        timer = hierarchical_timer(name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            stores = stores_after and (self._is_storing or name != "policy")
            self._switch(False)
            with timer:
                result = function(*args, **kwargs)
            self._switch(stores)
            return result

        return timed

    def _switch(self, stores: bool) -> None:
        """Begin or end storing."""
        if stores and not self._is_storing:
            self._store.__enter__()
        elif self._is_storing and not stores:
            self._store.__exit__(None, None, None)
        self._is_storing = stores
