"""Which adapter measures a library's object. Only a library that is loaded can have made it, so none is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any, Protocol

from pytest_rlperf.model import Probe


class Stepper(Protocol):
    """Steps one library's vector env with actions drawn beforehand; made with the env and a seed."""

    env: Any
    num_envs: int

    def check(self) -> None:
        """Reset and step, and check what comes back; ComponentError says what is wrong."""

    def call(self) -> None:
        """Step every env once."""

    def count(self) -> float:
        """Return the env steps since this was last asked, resets left out."""


class Sampler(Protocol):
    """Draws batches of one library's replay buffer; made with the buffer and a batch size."""

    def draw(self) -> Any:
        """Draw a batch."""

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the arrays in a batch by name, each with its shape, of which the first dimension is transitions."""


class GaeCall(Protocol):
    """Calls one library's GAE; made with what the user gave, a random rollout (``gae._rollout``), and the backend.

    All arguments are made ready beforehand, in the library's own layout.
    """

    def call(self) -> Any:
        """Compute advantages."""

    def advantages(self, output: Any) -> Any:
        """Return the advantages of a call's output as an array of shape (n_steps, n_envs), raw or normalised."""

    is_normalised: bool


class Updater(Protocol):
    """Does one library's SAC step; made with the agent and a batch size.

    ``owner`` holds the modules and optimizers; ``steps`` is how many optimizer steps one update takes, None where that
    is not known.
    """

    owner: object
    steps: int | None

    def update(self) -> object:
        """Do one gradient step of every part."""


class Roller(Protocol):
    """Collects one library's rollouts; made with the agent and the steps of a rollout, an env each.

    ``setup`` makes ready for a rollout, untimed, where that is needed: buffers are emptied. ``probes`` see the phases
    ``policy``, ``env_step``, ``store`` and ``gae`` from outside.
    """

    n_steps: int
    num_envs: int
    setup: Callable[[], None] | None
    probes: tuple[Probe, ...]

    def collect(self) -> Any:
        """Collect a rollout."""

    def check(self, rollout: Any) -> None:
        """Check that a rollout is full, finite and of the policy that was given; ComponentError says what is wrong."""

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout is of."""


@dataclass(frozen=True)
class Adapter:
    """What a library's class, or function, is measured by."""

    module: str
    name: str
    adapter: str

    def fits(self, value: object) -> bool:
        """Whether ``value`` is an instance of the class, or is the function or a bound method of that name."""
        owner: Any = None
        known: Any = sys.modules.get(self.module)
        for name in self.name.split("."):
            owner, known = known, getattr(known, name, None)
        if known is None:
            return False
        if isinstance(value, MethodType) and isinstance(owner, type):
            # Of an instance; a class of the user's may have a method of its own by that name.
            return isinstance(value.__self__, owner) and value.__name__ == name
        return isinstance(value, known) if isinstance(known, type) else value is known

    def load(self) -> Callable[..., Any]:
        """Return the adapter."""
        module, _, name = self.adapter.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(f"pytest_rlperf.components.libraries.{module}"), name)
        return loaded


@dataclass(frozen=True)
class Holder(Adapter):
    """What an object of the user's own is measured by: it holds an instance of the class, as an attribute or module."""

    def fits(self, value: object) -> bool:
        """Whether an attribute of ``value`` is an instance of the class."""
        held = getattr(value, "__dict__", {})
        members = (*held.values(), *held.get("_modules", {}).values())
        return any(super(Holder, self).fits(member) for member in members)


# The more special class first, where one library's is another's too.
_ADAPTERS: dict[str, tuple[Adapter, ...]] = {
    "vecenv": (
        Adapter("envpool.python.envpool", "EnvPoolMixin", "envpool:EnvPoolStepper"),
        Adapter("gymnasium.vector", "VectorEnv", "gymnasium:GymnasiumStepper"),
        Adapter("stable_baselines3.common.vec_env", "VecEnv", "stable_baselines3:StableBaselines3Stepper"),
        Adapter("tianshou.env.venvs", "BaseVectorEnv", "tianshou:TianshouStepper"),
        Adapter("torchrl.envs", "EnvBase", "torchrl:TorchRLStepper"),
        Adapter("rlox", "VecEnv", "rlox:RloxStepper"),
        Adapter("rlox", "GymVecEnv", "rlox:RloxStepper"),
        Adapter("rlox", "VecNormalize", "rlox:RloxStepper"),
        Adapter("skrl.envs.wrappers.torch", "Wrapper", "skrl:SkrlStepper"),
    ),
    "replay": (
        Adapter("tianshou.data.buffer.buffer_base", "ReplayBuffer", "tianshou:TianshouSampler"),
        Adapter("stable_baselines3.common.buffers", "ReplayBuffer", "stable_baselines3_learning:ReplaySampler"),
        Adapter("torchrl.data", "ReplayBuffer", "torchrl_learning:TorchRLSampler"),
        Adapter("rlox", "ReplayBuffer", "rlox:RloxSampler"),
        Adapter("rlox", "PrioritizedReplayBuffer", "rlox:RloxSampler"),
        Adapter("rlox", "MmapReplayBuffer", "rlox:RloxSampler"),
        Adapter("rlox", "OfflineDatasetBuffer", "rlox:RloxSampler"),
        Adapter("rlox", "SequenceReplayBuffer", "rlox:RloxSampler"),
        Adapter("rlox", "HERBuffer", "rlox:RloxSampler"),
        Adapter("rlox.gpu_buffer", "GPUReplayBuffer", "rlox:RloxGpuSampler"),
        Adapter("skrl.memories.torch", "Memory", "skrl_learning:SkrlSampler"),
    ),
    "gae": (
        Adapter("tianshou.algorithm.algorithm_base", "Algorithm.compute_episodic_return", "tianshou:TianshouGae"),
        Adapter("stable_baselines3.common.buffers", "RolloutBuffer", "stable_baselines3_learning:RolloutGae"),
        Adapter(
            "stable_baselines3.common.buffers",
            "RolloutBuffer.compute_returns_and_advantage",
            "stable_baselines3_learning:RolloutGae",
        ),
        Adapter("torchrl.objectives.value", "GAE", "torchrl_learning:TorchRLGaeModule"),
        Adapter("torchrl.objectives.value.functional", "generalized_advantage_estimate", "torchrl_learning:TorchRLGae"),
        Adapter(
            "torchrl.objectives.value.functional", "vec_generalized_advantage_estimate", "torchrl_learning:TorchRLGae"
        ),
        Adapter("rlox", "compute_gae", "rlox:RloxGae"),
        Adapter("rlox", "compute_gae_batched", "rlox:RloxBatchedGae"),
        Adapter("rlox", "compute_gae_batched_f32", "rlox:RloxBatchedGae"),
        Adapter("skrl.agents.torch.ppo.ppo", "compute_gae", "skrl_learning:SkrlGae"),
        Adapter("skrl.agents.torch.a2c.a2c", "compute_gae", "skrl_learning:SkrlGae"),
        Adapter("skrl.agents.torch.rpo.rpo", "compute_gae", "skrl_learning:SkrlGae"),
        Adapter("skrl.agents.torch.trpo.trpo", "compute_gae", "skrl_learning:SkrlGae"),
        Adapter("skrl.agents.torch.amp.amp", "compute_gae", "skrl_learning:SkrlGae"),
        Adapter("sample_factory.algo.utils.rl_utils", "gae_advantages", "sample_factory:SampleFactoryGae"),
    ),
    "sac": (
        Adapter("stable_baselines3", "SAC", "stable_baselines3_learning:SacUpdater"),
        Adapter("tianshou.trainer", "OffPolicyTrainer", "tianshou_learning:TianshouUpdater"),
        Adapter("tianshou.algorithm.algorithm_base", "OffPolicyAlgorithm", "tianshou_learning:TianshouUpdater"),
        Holder("torchrl.objectives", "SACLoss", "torchrl_learning:TorchRLUpdater"),
        Adapter("rlox.algorithms.sac", "SAC", "rlox_learning:RloxUpdater"),
        Adapter("skrl.agents.torch.sac", "SAC", "skrl_learning:SkrlUpdater"),
    ),
    "ppo": (
        Adapter("stable_baselines3", "PPO", "stable_baselines3_learning:PpoRoller"),
        Adapter("tianshou.trainer", "OnPolicyTrainer", "tianshou_learning:TianshouRoller"),
        Adapter("tianshou.data.collector", "BaseCollector", "tianshou_learning:TianshouRoller"),
        Adapter("torchrl.collectors", "BaseCollector", "torchrl_rollout:TorchRLRoller"),
        Adapter("rlox.algorithms.ppo", "PPO", "rlox_learning:RloxRoller"),
        Adapter("rlox.collectors", "RolloutCollector", "rlox_learning:RloxRoller"),
        Adapter("skrl.trainers.torch", "Trainer", "skrl_rollout:SkrlRoller"),
    ),
}


def adapter_for(component: str, value: object) -> Callable[..., Any] | None:
    """Return what makes the adapter of ``value`` for a component, None where no library is known to have made it."""
    return next((adapter.load() for adapter in _ADAPTERS[component] if adapter.fits(value)), None)


def libraries_known(component: str) -> str:
    """Return the libraries that there are adapters for, as text."""
    names = dict.fromkeys(adapter.module.partition(".")[0] for adapter in _ADAPTERS[component])
    return ", ".join(names)
