"""The suite on libraries: every component that there is a builder for, at the sizes of the reference's tests.

A module here makes one library's components, and imports that library only when it does. It has these functions, as
far as the library has such a thing; what each returns is what the fixture is to measure:

``vecenv(num_envs)``, ``native_vecenv(num_envs)``
    a vector env, or a function that steps one
``replay()``
    a buffer full of random transitions, or a function that samples it
``gae(n_steps, n_envs)``
    the library's function, or a buffer that has it
``sac()``
    an agent whose buffer holds random transitions, or a function that does one update
``ppo(num_envs, n_steps)``, ``native_ppo(num_envs, n_steps)``
    an agent, or a function that collects one rollout

``native`` ones step the library's own CartPole; all others
:class:`~pytest_rlperf.components.reference.SyntheticEnv`, as ``gymnasium.make`` makes it. Work is equal: buffers hold
the same transitions, networks have two hidden layers, of 256 for SAC and of 64 for PPO, everything is float32, and a
rollout comes with its advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True)
class Library:
    """A library: its builder's name, which test ids have too, the module to import, and what pip installs."""

    name: str
    module: str
    requirement: str

    @property
    def builder(self) -> ModuleType:
        """The module that makes its components."""
        return import_module(f"{__name__}.{self.name}")


BASIS = "pytest-rlperf[rl]"
"""What all need: gymnasium, for the environment, and PyTorch."""

LIBRARIES = (
    Library("reference", "torch", BASIS),
    Library("sb3", "stable_baselines3", "stable-baselines3"),
    Library("torchrl", "torchrl", "torchrl"),
    Library("tianshou", "tianshou", "tianshou"),
    Library("rlox", "rlox", "rlox"),
    Library("skrl", "skrl", "skrl[torch]"),
    Library("envpool", "envpool", "envpool"),
)


def libraries_with(component: str) -> list[Library]:
    """Return the libraries whose builders have a function for a component."""
    return [library for library in LIBRARIES if hasattr(library.builder, component)]
