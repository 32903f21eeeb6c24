"""TorchRL's envs, replay buffers, GAE, and PPO rollouts by its collectors.

A SAC update composed of its loss is the user's own method, and is measured like any other agent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.checks import attribute
from pytest_rlperf.components.contracts import (
    ACTIONS,
    ENV_STEP,
    Cuts,
    GaeCall,
    Roller,
    Stepper,
    autoreset_mode,
    check_finite,
    check_of_policy,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.timers import hierarchical_timer

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torchrl.collectors import BaseCollector, Collector
    from torchrl.data import ReplayBuffer
    from torchrl.envs import EnvBase
    from torchrl.objectives.value import GAE

_TOLERANCE = 1e-4  # for log-probabilities that are computed again, in one batch
_POLICY = hierarchical_timer("policy")
_STORE = hierarchical_timer("store")


class TorchRLStepper(Stepper):
    """Steps an env by ``step_and_maybe_reset``, without gradients, as collectors do.

    Ended envs are reset within the call, so every call is a step of every env. But gymnasium's vector envs under
    NEXT_STEP take a call to reset, which TorchRL passes on as a step. An env of batch size () is one env.
    """

    def __init__(self, env: EnvBase, seed: int) -> None:
        import torch

        env.set_seed(seed)  # starts processes, if there are any, before a check measures how long a call takes
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            actions = [env.full_action_spec.rand() for _ in range(ACTIONS)]
        super().__init__(env, env.batch_size.numel(), actions)
        self._no_grad = torch.no_grad
        self._carried: Any = None  # from step to step: what the next one starts from
        self._has_reset_calls = _has_reset_calls(env)

    def reset(self) -> None:
        """Reset every env; the seed is set."""
        self._carried = self.env.reset()

    def step(self, actions: Any) -> Any:
        """Step every env once with these actions, and keep what the next step starts from."""
        self._carried.update(actions)
        with self._no_grad():
            stepped, self._carried = self.env.step_and_maybe_reset(self._carried)
        return stepped

    def finish(self, results: Any) -> None:
        """Note the envs that reset in the next call."""
        if self._has_reset_calls:
            self._ended.append(results.get(("next", "done")))

    def check_step(self, results: Any) -> bool:
        """Check one step, and return whether an episode ended with it."""
        __tracebackhide__ = True
        for key in self.env.done_keys:
            ended = int(self._carried.get(key).sum())
            if ended:
                raise ComponentError(
                    f"step_and_maybe_reset() left {ended} of {self.num_envs} envs {key!r}: it has to reset those that "
                    "have ended, or steps after their end are timed"
                )
        return bool(results.get(("next", "done")).any())

    def _n_ended(self, done: Any) -> int:
        return 0 if done.all() else int(done.sum())  # if all end together, TorchRL resets them itself


def _has_reset_calls(env: EnvBase) -> bool:
    """Whether an env wraps a gymnasium env that resets in a separate call, as ``GymEnv(num_envs=…)`` makes it."""
    from torchrl.envs import GymWrapper, TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return isinstance(env, GymWrapper) and autoreset_mode(env._env) == "NextStep"


def _drawing(buffer: ReplayBuffer, batch_size: int) -> Callable[[], Any]:
    """Return what draws from a buffer, whatever batch size it was made with; ComponentError if it prefetches."""
    __tracebackhide__ = True
    ahead = getattr(buffer, "_prefetch_cap", 0)
    if ahead:
        raise ComponentError(
            f"the {type(buffer).__qualname__} prefetches: sample() returns batches prefetched by threads, so its "
            f"time is not the time to sample; create it without prefetch={ahead}"
        )
    return partial(buffer.sample, batch_size)


def _gae(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of a GAE function on tensors of shape [n_envs, n_steps, 1], whatever the ``backend``.

    The function has the signature of ``generalized_advantage_estimate``. No episode is truncated.
    """
    call = partial(
        function,
        gamma=rollout["gamma"],
        lmbda=rollout["lam"],
        state_value=_envs_first(rollout["values"]),
        next_state_value=_envs_first(rollout["next_values"]),
        reward=_envs_first(rollout["rewards"]),
        done=_envs_first(rollout["ends"]).bool(),
        terminated=_envs_first(rollout["ends"]).bool(),
    )
    return GaeCall(call, lambda output: output[0].squeeze(-1).T)


def _gae_module(given: GAE, rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of a GAE module's copy, with the rollout's gamma and lambda, on values computed beforehand.

    The copy has no value network: its forward pass is not part of GAE, and would take most of the time.
    """
    import torch

    own = {"gamma": torch.tensor(rollout["gamma"]), "lmbda": torch.tensor(rollout["lam"])}
    module = copy.copy(given)
    module._buffers = {**given._buffers, **own}
    module.__dict__["value_network"] = None  # as its own __init__ does it: the network is not one of its modules
    is_time_first = module.time_dim in (0, -2)

    def advantages(output: Any) -> Any:
        found = output.get(module.tensor_keys.advantage).squeeze(-1)
        return found if is_time_first else found.T

    batch = _batch(module.tensor_keys, rollout, is_time_first)
    return GaeCall(partial(module, batch), advantages, is_normalised=module.average_gae)


def _batch(keys: Any, rollout: Mapping[str, Any], is_time_first: bool) -> TensorDict:
    """Return a rollout as collectors make it, with batch size [n_envs, n_steps], under a module's keys."""
    from tensordict import TensorDict

    tensors = {name: _envs_first(value) for name, value in rollout.items() if name not in ("gamma", "lam")}
    if is_time_first:
        tensors = {name: value.transpose(0, 1).contiguous() for name, value in tensors.items() if value.ndim > 2}
    ends = tensors["ends"].bool()
    following = {
        keys.value: tensors["next_values"],
        keys.reward: tensors["rewards"],
        keys.done: ends,
        keys.terminated: ends.clone(),
        "truncated": ends.new_zeros(ends.shape),
    }
    batch = TensorDict({keys.value: tensors["values"]}, ends.shape[:2])
    for key, tensor in following.items():
        batch.set(("next", key), tensor)
    return batch


def _envs_first(array: Any) -> Any:
    """Return an array of shape (n_steps, n_envs) as a tensor of shape [n_envs, n_steps, 1]."""
    import torch

    return torch.from_numpy(array).movedim(0, -1).contiguous().unsqueeze(-1)


class TorchRLRoller(Roller):
    """Takes one batch of ``frames_per_batch`` frames after another from a ``collector`` in this process.

    The env was reset when the collector was made. GAE is part of a rollout if the collector has it as ``postproc``.
    """

    def __init__(self, collector: BaseCollector, n_steps: int) -> None:
        __tracebackhide__ = True
        _check_collector(collector, n_steps)
        self.n_steps: int = collector.frames_per_batch
        self.num_envs: int = collector.n_env
        self._collector = collector
        self._rollouts: Iterator[Any] = iter(collector)
        self._phases = _RolloutPhases(collector)
        self.probes = (self._phases,)

    def collect(self) -> Any:
        """Collect a rollout."""
        rollout = next(self._rollouts)
        self._phases.switch()
        return rollout

    def check(self, rollout: Any) -> None:
        """Check that the rollout is full, finite and made by the given policy; ComponentError names what is wrong."""
        __tracebackhide__ = True
        expected = self.n_steps * self.num_envs
        if self.env_steps(rollout) != expected:
            raise ComponentError(
                f"the rollout is not full: it has {self.env_steps(rollout):.0f} frames, expected {self.n_steps} of "
                f"each of {self.num_envs} envs"
            )
        check_finite((repr(key), tensor) for key, tensor in rollout.items(include_nested=True, leaves_only=True))
        _check_policy(self._collector, rollout)

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout has: a reset has no frame."""
        return float(rollout.numel())


class _RolloutPhases(Cuts):
    """Phases of a collector: ``policy``, ``env_step``, ``store``, and ``gae`` or another ``postproc``.

    ``store`` lasts from an env step until the next policy call: the collector keeps the transition, numbers
    trajectories, and in the end stacks and copies them.
    """

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = collector

    def attach(self) -> Undo:
        """Time them from now on."""
        return together(self._replace())

    def _replace(self) -> Iterator[Undo]:
        from torchrl.objectives.value.advantages import ValueEstimatorBase

        collector = self._collector
        step = collector.env.step_and_maybe_reset
        # Past the property's setter, which would compile a compiled policy again.
        yield put(collector, "_wrapped_policy_maybe_compiled", self.around(_POLICY)(collector._wrapped_policy))
        yield put(collector.env, "step_and_maybe_reset", self.around(ENV_STEP, _STORE)(step))
        if collector.postproc is not None:
            name = "gae" if isinstance(collector.postproc, ValueEstimatorBase) else "postproc"
            yield put(collector, "postproc", self.around(hierarchical_timer(name), _STORE)(collector.postproc))
        yield self.switch


def _check_collector(collector: BaseCollector, n_steps: int) -> None:
    """Raise ComponentError unless every call makes a rollout of the policy with ``n_steps`` steps."""
    __tracebackhide__ = True
    from torchrl.collectors import Collector

    name = type(collector).__qualname__
    if not isinstance(collector, Collector):
        raise ComponentError(
            f"a {name} collects in processes of its own, before and between calls, so the time of a call is not that "
            "of a rollout. Give a Collector; or measure how long your training waits: "
            "rlperf_ppo_collect(lambda: next(rollouts), items=frames_per_batch), where rollouts = iter(collector)"
        )
    if collector.total_frames != float("inf"):
        raise ComponentError(
            f"the {name} ends after {collector.total_frames} frames, and measuring takes as many rollouts as there is "
            "time for: make it with total_frames=-1"
        )
    for option in ("replay_buffer", "trajs_per_batch", "split_trajs", "init_random_frames"):
        if getattr(collector, option, None) not in (None, False, 0):  # an empty buffer is false
            raise ComponentError(f"the {name} has {option}, so a call is not its policy's rollout: make it without")
    if n_steps != collector.frames_per_batch:
        raise ComponentError(
            f"the {name} collects {collector.frames_per_batch} steps of each of {collector.n_env} envs, not {n_steps}: "
            f"make it with frames_per_batch={n_steps * collector.n_env}, or give n_steps={collector.frames_per_batch}"
        )


def _check_policy(collector: Collector, rollout: Any) -> None:
    """Compare the stored log-probabilities with those of the collector's policy, if it computes them."""
    __tracebackhide__ = True
    import torch

    given = collector._orig_policy
    policy = collector.policy if given is None else given
    key = next((key for key in rollout.keys(True, True) if str(key).find("log_prob") >= 0), None)
    if key is None:
        raise ComponentError(
            "the rollout has no log-probabilities, which PPO needs of its policy: "
            "ProbabilisticActor(…, return_log_prob=True)"
        )
    if not callable(attribute(policy, "get_dist")):
        return
    device = next((parameter.device for parameter in policy.parameters()), None)
    frames = rollout.copy() if device is None else rollout.to(device)
    with torch.no_grad():
        again = policy.get_dist(frames).log_prob(frames.get(policy.dist_sample_keys[0]))
    check_of_policy(
        {"log_probs": frames.get(policy.log_prob_keys[0])},
        {"log_probs": again},
        tolerance=_TOLERANCE,
        exceptions=0.5,  # a squashed action near its bound does not determine the action before squashing
        advice=". After changing a policy: collector.update_policy_weights_()",
    )


LIBRARY = Library(
    name="torchrl",
    module="torchrl",
    requirement="torchrl",
    vecenv=(Adapter("torchrl.envs:EnvBase", TorchRLStepper),),
    replay=(Adapter("torchrl.data:ReplayBuffer", _drawing, attrgetter("batch_size")),),
    gae=(
        Adapter("torchrl.objectives.value:GAE", _gae_module),
        Adapter("torchrl.objectives.value.functional:generalized_advantage_estimate", _gae),
        Adapter("torchrl.objectives.value.functional:vec_generalized_advantage_estimate", _gae),
    ),
    ppo=(Adapter("torchrl.collectors:BaseCollector", TorchRLRoller, attrgetter("frames_per_batch")),),
    environments=("torchrl.envs:EnvBase.step",),
    starter="test_torchrl.py",
)
