"""skrl's components, of its PyTorch side."""

from __future__ import annotations

from typing import Any

from pytest_rlperf.suite.libraries.transitions import (
    ACT_DIM,
    BATCH_SIZE,
    IN_AGENT,
    IN_BUFFER,
    OBS_DIM,
    random_transitions,
)

_NO_FILES = {"write_interval": 0, "checkpoint_interval": 0}
_SIZES = {"observations": OBS_DIM, "actions": ACT_DIM, "rewards": 1, "next_observations": OBS_DIM, "terminated": 1}


def vecenv(num_envs: int) -> Any:
    """Return gymnasium's SyncVectorEnv in skrl's wrapper, which makes tensors of all it returns."""
    from skrl.envs.wrappers.torch import wrap_env

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID, make_vec_env

    return wrap_env(make_vec_env(SYNTHETIC_ID, num_envs), wrapper="gymnasium", verbose=False)


def replay() -> Any:
    """Return a full memory."""
    memory = _memory(IN_BUFFER)
    for name, size in _SIZES.items():
        memory.create_tensor(name=name, size=size)
    _fill(memory)
    return memory


def gae(n_steps: int, n_envs: int) -> Any:
    """Return PPO's function, which also normalises the advantages."""
    from skrl.agents.torch.ppo.ppo import compute_gae

    return compute_gae


def sac() -> Any:
    """Return an agent, made of skrl's model instantiators."""
    from skrl.agents.torch.sac import SAC
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    spaces, models = _spaces(), {}
    both = _layers("concatenate([OBSERVATIONS, ACTIONS])", 256, "relu")
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = deterministic_model(**spaces, network=both, output="ONE")
    policy = _layers("OBSERVATIONS", 256, "relu")
    models["policy"] = gaussian_model(**spaces, network=policy, output="ACTIONS", clip_actions=True)
    cfg = {"batch_size": BATCH_SIZE, "experiment": _NO_FILES}
    agent = SAC(models=models, memory=_memory(IN_AGENT), cfg=cfg, **spaces)
    agent.init()
    _fill(agent.memory)
    return agent


def ppo(num_envs: int, n_steps: int) -> Any:
    """Return a trainer of an agent, made of skrl's model instantiators, that writes nothing."""
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    spaces = _spaces()
    layers = _layers("OBSERVATIONS", 64, "tanh")
    agent = PPO(
        models={
            "policy": gaussian_model(**spaces, network=layers, output="ACTIONS", clip_actions=True),
            "value": deterministic_model(**spaces, network=layers, output="ONE"),
        },
        memory=RandomMemory(memory_size=n_steps, num_envs=num_envs, device="cpu"),
        cfg={"rollouts": n_steps, "experiment": _NO_FILES},
        **spaces,
    )
    cfg = {"headless": True, "close_environment_at_exit": False}
    return SequentialTrainer(env=vecenv(num_envs), agents=agent, cfg=cfg)


def _spaces() -> dict[str, Any]:
    from gymnasium.spaces import Box

    return {
        "observation_space": Box(-1.0, 1.0, (OBS_DIM,)),
        "action_space": Box(-1.0, 1.0, (ACT_DIM,)),
        "device": "cpu",
    }


def _layers(given: str, width: int, activation: str) -> list[dict[str, Any]]:
    """Return a network of two hidden layers, as model instantiators are told it."""
    return [{"name": "net", "input": given, "layers": [width, width], "activations": activation}]


def _memory(count: int) -> Any:
    from skrl.memories.torch import RandomMemory

    return RandomMemory(memory_size=count, num_envs=1, device="cpu")


def _fill(memory: Any) -> None:
    import torch

    tensors = [torch.from_numpy(array) for array in random_transitions(memory.memory_size)]
    columns = [tensor.unsqueeze(-1) if tensor.ndim == 1 else tensor for tensor in tensors]
    memory.add_samples(**dict(zip(_SIZES, columns, strict=True)))
