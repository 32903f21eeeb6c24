"""skrl's six components, of its PyTorch side; its trainers have the loop of a rollout, so a function collects one."""

from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work

SKRL_QUIET = {"write_interval": 0, "checkpoint_interval": 0}
SKRL_SIZES = {
    "observations": work.OBS_DIM,
    "actions": work.ACT_DIM,
    "rewards": 1,
    "next_observations": work.OBS_DIM,
    "terminated": 1,
}


def skrl_vecenv(num_envs: int, env_id: str = work.ENV_ID) -> Any:
    """Return gymnasium's SyncVectorEnv, which resets within a step, in skrl's wrapper, which makes tensors."""
    import gymnasium
    from skrl.envs.wrappers.torch import wrap_env

    resets = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec(env_id, num_envs, vectorization_mode="sync", vector_kwargs=resets)
    return wrap_env(envs, wrapper="gymnasium", verbose=False)


def skrl_replay(transitions: int) -> Any:
    """Return a full memory."""
    memory = skrl_memory(transitions)
    for name, size in SKRL_SIZES.items():
        memory.create_tensor(name=name, size=size)
    skrl_fill(memory)
    return memory


def skrl_gae(n_steps: int, n_envs: int) -> Any:
    """Return PPO's function, which also normalises the advantages."""
    from skrl.agents.torch.ppo.ppo import compute_gae

    return compute_gae


def skrl_sac(transitions: int) -> Any:
    """Return an agent, made of skrl's model instantiators."""
    from skrl.agents.torch.sac import SAC
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    spaces, models = skrl_spaces(), {}
    both = skrl_layers("concatenate([OBSERVATIONS, ACTIONS])", 256, "relu")
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = deterministic_model(**spaces, network=both, output="ONE")
    policy = skrl_layers("OBSERVATIONS", 256, "relu")
    models["policy"] = gaussian_model(**spaces, network=policy, output="ACTIONS", clip_actions=True)
    cfg = {"batch_size": work.BATCH_SIZE, "experiment": SKRL_QUIET}
    agent = SAC(models=models, memory=skrl_memory(transitions), cfg=cfg, **spaces)
    agent.init()
    skrl_fill(agent.memory)
    return agent


def skrl_ppo_update(num_envs: int, n_steps: int) -> Any:
    """Return an agent whose memory holds a rollout."""
    agent = skrl_ppo_agent(num_envs, n_steps)
    skrl_collecting(agent, n_steps)()
    return agent


def skrl_ppo(num_envs: int, n_steps: int) -> Any:
    """Return a function that collects, and computes advantages as an update would first."""
    return skrl_collecting(skrl_ppo_agent(num_envs, n_steps), n_steps)


def skrl_collecting(agent: Any, n_steps: int) -> Any:
    """Return a function that collects as skrl's trainers do."""
    import torch
    from skrl.agents.torch.ppo.ppo import compute_gae

    env = skrl_vecenv(agent.memory.num_envs)
    last = {"observations": env.reset()[0], "states": None}

    @torch.no_grad()
    def collect() -> Any:
        for timestep in range(n_steps):
            times = {"timestep": timestep, "timesteps": n_steps}
            agent.pre_interaction(**times)
            actions, _ = agent.act(last["observations"], None, **times)
            observations, rewards, terminated, truncated, infos = env.step(actions)
            moved = {"next_observations": observations, "next_states": None, "rewards": rewards, "infos": infos}
            ends = {"terminated": terminated, "truncated": truncated}
            agent.record_transition(**last, actions=actions, **moved, **ends, **times)
            last["observations"] = observations
        values, _ = agent.value.act(last, role="value")
        names = ("rewards", "values", "terminated", "truncated")
        stored = {name: agent.memory.get_tensor_by_name(name) for name in names}
        discounts = {"discount_factor": 0.99, "lambda_coefficient": 0.95}
        returns, advantages = compute_gae(**stored, last_values=values, **discounts)
        agent.memory.set_tensor_by_name("returns", returns)
        agent.memory.set_tensor_by_name("advantages", advantages)
        return agent.memory

    return collect


def skrl_ppo_agent(num_envs: int, n_steps: int) -> Any:
    """Return an agent, made of skrl's model instantiators."""
    from skrl.agents.torch.ppo import PPO
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    spaces = skrl_spaces()
    layers = skrl_layers("OBSERVATIONS", 64, "tanh")
    models = {
        "policy": gaussian_model(**spaces, network=layers, output="ACTIONS", clip_actions=True),
        "value": deterministic_model(**spaces, network=layers, output="ONE"),
    }
    updates = {"learning_epochs": work.EPOCHS, "mini_batches": work.MINIBATCHES}
    cfg = {"rollouts": n_steps, "experiment": SKRL_QUIET, **updates}
    agent = PPO(models=models, memory=skrl_memory(n_steps, num_envs), cfg=cfg, **spaces)
    agent.init()
    agent.enable_training_mode(True)  # or it records nothing
    return agent


def skrl_spaces() -> dict[str, Any]:
    """Return the spaces of the synthetic env, and the device."""
    from gymnasium.spaces import Box

    return {
        "observation_space": Box(-1.0, 1.0, (work.OBS_DIM,)),
        "action_space": Box(-1.0, 1.0, (work.ACT_DIM,)),
        "device": "cpu",
    }


def skrl_layers(given: str, width: int, activation: str) -> list[dict[str, Any]]:
    """Return a network with two hidden layers, in the form that model instantiators take."""
    return [{"name": "net", "input": given, "layers": [width, width], "activations": activation}]


def skrl_memory(count: int, num_envs: int = 1) -> Any:
    """Return an empty memory with ``count`` rows."""
    from skrl.memories.torch import RandomMemory

    return RandomMemory(memory_size=count, num_envs=num_envs, device="cpu")


def skrl_fill(memory: Any) -> None:
    """Fill a memory with random transitions."""
    import torch

    tensors = [torch.from_numpy(array) for array in work.random_transitions(memory.memory_size)]
    columns = [tensor.unsqueeze(-1) if tensor.ndim == 1 else tensor for tensor in tensors]
    memory.add_samples(**dict(zip(SKRL_SIZES, columns, strict=True)))


@pytest.mark.parametrize("num_envs", [8, 64])
def test_skrl_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env, in one process."""
    rlperf_vecenv_step(lambda: skrl_vecenv(num_envs))


def test_skrl_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch of tensors."""
    rlperf_replay_sample(skrl_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_skrl_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout."""
    rlperf_gae(skrl_gae(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


def test_skrl_sac_update(rlperf_sac_update: Measure) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(skrl_sac(work.IN_AGENT), batch_size=work.BATCH_SIZE)


def test_skrl_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(skrl_ppo(8, 128), items=8 * 128)


def test_skrl_ppo_update(rlperf_ppo_update: Measure) -> None:
    """All epochs on one rollout."""
    rlperf_ppo_update(skrl_ppo_update(8, 128), n_steps=128)
