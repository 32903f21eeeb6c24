"""skrl's wrapped envs, memories, GAE and SAC updates, of its PyTorch side.

skrl has no call that collects a rollout: its trainers have the loop. A thunk measures one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.arrays import check_device, to_numpy
from pytest_rlperf.components.contracts import (
    ACTION,
    ACTIONS,
    ENV_STEP,
    RESET,
    EveryEnvStepper,
    GaeCall,
    OwedResets,
    Sampler,
    Updater,
    autoreset_mode,
    check_rows,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.components.samples import ACT_DIM, BATCH_SIZE, OBS_DIM, Samples, random_transitions
from pytest_rlperf.errors import ComponentError

if TYPE_CHECKING:
    from skrl.agents.torch.sac import SAC
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import Memory

_CHECKED_STEPS = 256  # at most, until an episode has ended
_TOLERANCE = 1e-3  # of advantages that are normalised again


class SkrlStepper(EveryEnvStepper):
    """Steps a wrapped env, and leaves the calls that reset an env out of the count.

    A vector env resets itself; under gymnasium's NEXT_STEP that takes a call of its own, which is no step. A single env
    is reset as skrl's trainers do it, part of what stepping on takes.
    """

    def __init__(self, env: Wrapper, seed: int) -> None:
        self.mode = _autoreset_mode(env)
        super().__init__(env, env.num_envs, _batches_of_actions(env, seed))
        if "_seed" in vars(env):
            env._seed = seed  # which its first reset takes; there is no other way to seed it

    def check(self) -> None:
        """Reset, step until an episode has ended and once more, and check; ComponentError names what is wrong."""
        __tracebackhide__ = True
        self.env.reset()
        before: Any = None
        for _ in range(_CHECKED_STEPS):
            over = self._check_step(self.env.step(next(self._actions)))
            if self.num_envs == 1 and over.any():
                self.env.reset()
            if before is not None and before.any():
                self._check_reset(before, over)
                break
            before = over
        self._calls, self._ended = 0, []
        self._owed = OwedResets(int(over.sum()) if self.mode == "NextStep" else 0)
        self.call()

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._calls += 1
        if self.mode == "NextStep":
            self._ended.append((terminated, truncated))
        if self.num_envs == 1 and (terminated.any() or truncated.any()):
            with RESET:
                self.env.reset()

    def _n_ended(self, ended: tuple[Any, Any]) -> int:
        terminated, truncated = ended
        return int((terminated | truncated).sum())

    def _check_reset(self, before: Any, over: Any) -> None:
        """Check that no episode ended with the step that should have reset its env."""
        __tracebackhide__ = True
        again = (before & over).flatten().nonzero().flatten().tolist()
        if again and self.mode == "NextStep":
            raise ComponentError(
                f"env {again[0]}'s episode ended, and with the next step again, which should have reset it: does the "
                "env reset itself?"
            )

    def _check_step(self, stepped: tuple[Any, ...]) -> Any:
        """Check one step, and return in which envs an episode ended."""
        __tracebackhide__ = True
        observations, rewards, terminated, truncated, _ = stepped
        flags = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        check_rows(self.num_envs, {"observations": observations.shape}, observations.shape[1:])
        check_rows(self.num_envs, {name: tensor.shape for name, tensor in flags.items()}, (1,))
        for name, tensor in {"observations": observations, **flags}.items():
            check_device(f"step()'s {name}", tensor, self.env.device)
        return terminated | truncated


def _autoreset_mode(env: Wrapper) -> str:
    """Return how a wrapped env resets: gymnasium's name for it, or "Explicit" for a single env."""
    __tracebackhide__ = True
    from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper

    if not getattr(env, "_vectorized", env.num_envs > 1):
        return "Explicit"
    if not isinstance(env, GymnasiumWrapper):
        return "SameStep"  # simulators of many envs do it so, and gymnasium's predecessor
    mode = autoreset_mode(env) or "NextStep"
    if mode == "Disabled":
        raise ComponentError(
            "the vector env does not reset itself (autoreset_mode=DISABLED), and skrl's wrapper resets it but once: "
            "after their first episodes its envs do not go on. Make it with NEXT_STEP or SAME_STEP"
        )
    return mode


def _batches_of_actions(env: Wrapper, seed: int) -> list[Any]:
    """Return actions as an agent gives them: on the env's device, a row an env."""
    import torch
    from skrl.utils.spaces.torch import flatten_tensorized_space, sample_space, tensorize_space

    space = env.action_space
    state = torch.random.get_rng_state()
    batches = []
    for number in range(ACTIONS):
        space.seed(seed + number)  # from which the vector's space, made anew each time, takes its own
        sample = sample_space(space, batch_size=env.num_envs)
        batches.append(flatten_tensorized_space(tensorize_space(space, sample, device=env.device)))
    torch.random.set_rng_state(state)
    return batches


class SkrlSampler(Sampler):
    """Draws one batch of all that a memory has tensors for."""

    def __init__(self, memory: Memory, batch_size: int) -> None:
        if not len(memory):
            raise ComponentError("the memory is empty: memory.add_samples(…) first")
        self.device = memory.device
        self._memory = memory
        self._batch_size = batch_size
        self._names = memory.get_tensor_names()

    def draw(self) -> Any:
        """Draw a batch."""
        return self._memory.sample(self._names, batch_size=self._batch_size)

    def arrays(self, batch: Any) -> Iterable[tuple[str, Any]]:
        """Return the tensors by the memory's names."""
        return zip(self._names, batch[0], strict=True)


class SkrlGae(GaeCall):
    """Calls an agent module's ``compute_gae`` on tensors of shape (n_steps, n_envs, 1), whatever the ``backend``.

    It returns normalised advantages. They are compared with its returns less the values, and those with the reference.
    """

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        import torch

        rewards, values, ends = (
            torch.from_numpy(rollout[name]).unsqueeze(-1) for name in ("rewards", "values", "ends")
        )
        self._function = function
        self._arguments = {
            "rewards": rewards,
            "values": values,
            "terminated": ends.bool(),
            "truncated": torch.zeros_like(ends, dtype=torch.bool),
            "last_values": torch.from_numpy(rollout["last_values"]).unsqueeze(-1),
            "discount_factor": rollout["gamma"],
            "lambda_coefficient": rollout["lam"],
        }

    def call(self) -> Any:
        """Compute returns and advantages."""
        return self._function(**self._arguments)

    def advantages(self, output: Any) -> Any:
        """Return the advantages as they were before they were normalised."""
        __tracebackhide__ = True
        returns, normalised = output
        advantages = returns - self._arguments["values"]
        expected = (advantages - advantages.mean()) / advantages.std()
        if normalised.shape != expected.shape or not normalised.allclose(expected, atol=_TOLERANCE):
            raise ComponentError(
                "the advantages are not those of the returns, normalised: their mean and deviation are "
                f"{normalised.mean():.3g} and {normalised.std():.3g}, expected 0 and 1"
            )
        return to_numpy(advantages).squeeze(-1)


class SkrlUpdater(Updater):
    """Calls ``agent.update`` of one gradient step, with the models in training mode as the agent itself has it.

    Models that are made with their first input are made before anything is timed, by an update.
    """

    def __init__(self, agent: SAC, batch_size: int) -> None:
        from torch.nn.parameter import is_lazy

        cfg = agent.cfg
        if (cfg.batch_size, cfg.gradient_steps) != (batch_size, 1):
            raise ComponentError(
                f"the agent's update is {cfg.gradient_steps} gradient steps of batch size {cfg.batch_size}, expected "
                f"one of {batch_size}: SAC(…, cfg={{'batch_size': {batch_size}, 'gradient_steps': 1}})"
            )
        if not hasattr(agent, "_tensors_names") or not len(agent.memory):
            raise ComponentError(
                "the agent has nothing to update from: call agent.init(), and agent.memory.add_samples(…) first"
            )
        self.owner: SAC = agent
        self.steps = 2 + bool(cfg.learn_entropy)  # the policy, both critics as one, the temperature
        self.batch_size = batch_size
        self.buffers = (agent.memory,)
        self.device = agent.device
        self._times = {"timestep": cfg.learning_starts, "timesteps": cfg.learning_starts + 1}
        agent.enable_models_training_mode(True)
        if any(is_lazy(parameter) for model in agent.models.values() for parameter in model.parameters()):
            self.update()

    def update(self) -> None:
        """Do one gradient step of every part."""
        self.owner.update(**self._times)


# --------------------------------------------------------------------------- samples


_NO_FILES = {"write_interval": 0, "checkpoint_interval": 0}
_SIZES = {"observations": OBS_DIM, "actions": ACT_DIM, "rewards": 1, "next_observations": OBS_DIM, "terminated": 1}


def _vecenv(num_envs: int) -> Any:
    """Return gymnasium's SyncVectorEnv in skrl's wrapper, which makes tensors of all it returns."""
    from skrl.envs.wrappers.torch import wrap_env

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID, make_vec_env

    return wrap_env(make_vec_env(SYNTHETIC_ID, num_envs), wrapper="gymnasium", verbose=False)


def _replay(transitions: int) -> Any:
    """Return a full memory."""
    memory = _memory(transitions)
    for name, size in _SIZES.items():
        memory.create_tensor(name=name, size=size)
    _fill(memory)
    return memory


def _gae(n_steps: int, n_envs: int) -> Any:
    """Return PPO's function, which also normalises the advantages."""
    from skrl.agents.torch.ppo.ppo import compute_gae

    return compute_gae


def _sac(transitions: int) -> Any:
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
    agent = SAC(models=models, memory=_memory(transitions), cfg=cfg, **spaces)
    agent.init()
    _fill(agent.memory)
    return agent


def _ppo(num_envs: int, n_steps: int) -> Any:
    """Return a function that collects as skrl's trainers do, and computes advantages as an update would first."""
    import gymnasium
    import torch
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from skrl.agents.torch.ppo import PPO
    from skrl.agents.torch.ppo.ppo import compute_gae
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    spaces = _spaces()
    layers = _layers("OBSERVATIONS", 64, "tanh")
    make = partial(gymnasium.make, SYNTHETIC_ID)
    vector = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)  # each row is an env step
    env = wrap_env(vector, wrapper="gymnasium", verbose=False)
    memory = RandomMemory(memory_size=n_steps, num_envs=num_envs, device="cpu")
    agent = PPO(
        models={
            "policy": gaussian_model(**spaces, network=layers, output="ACTIONS", clip_actions=True),
            "value": deterministic_model(**spaces, network=layers, output="ONE"),
        },
        memory=memory,
        cfg={"rollouts": n_steps, "experiment": _NO_FILES},
        **spaces,
    )
    agent.init()
    agent.enable_training_mode(True)  # or it records nothing
    observations, infos = env.reset()

    @torch.no_grad()
    def collect() -> Any:
        nonlocal observations, infos
        for timestep in range(n_steps):
            times = {"timestep": timestep, "timesteps": n_steps}
            agent.pre_interaction(**times)
            actions, _ = agent.act(observations, None, **times)
            following, rewards, terminated, truncated, infos = env.step(actions)
            agent.record_transition(
                observations=observations,
                states=None,
                actions=actions,
                rewards=rewards,
                next_observations=following,
                next_states=None,
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                **times,
            )
            observations = following
        last_values, _ = agent.value.act({"observations": observations}, role="value")
        arrays = {name: memory.get_tensor_by_name(name) for name in ("rewards", "values", "terminated", "truncated")}
        returns, advantages = compute_gae(
            **arrays, last_values=last_values, discount_factor=0.99, lambda_coefficient=0.95
        )
        memory.set_tensor_by_name("returns", returns)
        memory.set_tensor_by_name("advantages", advantages)
        return memory

    return collect


def _spaces() -> dict[str, Any]:
    from gymnasium.spaces import Box

    return {
        "observation_space": Box(-1.0, 1.0, (OBS_DIM,)),
        "action_space": Box(-1.0, 1.0, (ACT_DIM,)),
        "device": "cpu",
    }


def _layers(given: str, width: int, activation: str) -> list[dict[str, Any]]:
    """Return a network of two hidden layers, as model instantiators take it."""
    return [{"name": "net", "input": given, "layers": [width, width], "activations": activation}]


def _memory(count: int) -> Any:
    from skrl.memories.torch import RandomMemory

    return RandomMemory(memory_size=count, num_envs=1, device="cpu")


def _fill(memory: Any) -> None:
    import torch

    tensors = [torch.from_numpy(array) for array in random_transitions(memory.memory_size)]
    columns = [tensor.unsqueeze(-1) if tensor.ndim == 1 else tensor for tensor in tensors]
    memory.add_samples(**dict(zip(_SIZES, columns, strict=True)))


_STARTER = """\
import gymnasium
import torch
from skrl.agents.torch.ppo.ppo import compute_gae as skrl_gae
from skrl.agents.torch.sac import SAC as SkrlSAC
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

SKRL_QUIET = {"write_interval": 0, "checkpoint_interval": 0}  # no TensorBoard files


def skrl_env(name):
    return wrap_env(gymnasium.make_vec(name, num_envs=8), verbose=False)


def skrl_parts(env, memory_size, **models):
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    for name, (make, given, output) in models.items():
        network = [{"name": "net", "input": given, "layers": [64, 64], "activations": "relu"}]
        models[name] = make(**spaces, network=network, output=output)
    memory = RandomMemory(memory_size=memory_size, num_envs=env.num_envs, device=env.device)
    return {"models": models, "memory": memory, **spaces}


def skrl_sac():
    both = (deterministic_model, "concatenate([OBSERVATIONS, ACTIONS])", "ONE")
    critics = dict.fromkeys(("critic_1", "critic_2", "target_critic_1", "target_critic_2"), both)
    parts = skrl_parts(skrl_env("Pendulum-v1"), 200, policy=(gaussian_model, "OBSERVATIONS", "ACTIONS"), **critics)
    agent = SkrlSAC(**parts, cfg={"batch_size": 256, "experiment": SKRL_QUIET})
    agent.init()
    for _ in range(200):
        agent.memory.add_samples(
            observations=torch.randn(8, 3),
            actions=torch.rand(8, 1),
            rewards=torch.randn(8, 1),
            next_observations=torch.randn(8, 3),
            terminated=torch.zeros(8, 1, dtype=torch.bool),
        )
    return agent


def test_skrl_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: skrl_env("CartPole-v1"))


def test_skrl_sample(rlperf_replay_sample):
    rlperf_replay_sample(skrl_sac().memory, batch_size=256)


def test_skrl_gae(rlperf_gae):
    rlperf_gae(skrl_gae)


def test_skrl_sac(rlperf_sac_update):
    rlperf_sac_update(skrl_sac(), batch_size=256)
"""

LIBRARY = Library(
    name="skrl",
    module="skrl",
    requirement="skrl[torch]",
    vecenv=(Adapter("skrl.envs.wrappers.torch:Wrapper", SkrlStepper),),
    replay=(Adapter("skrl.memories.torch:Memory", SkrlSampler),),
    gae=tuple(
        Adapter(f"skrl.agents.torch.{agent}.{agent}:compute_gae", SkrlGae)
        for agent in ("ppo", "a2c", "rpo", "trpo", "amp")
    ),
    sac=(Adapter("skrl.agents.torch.sac:SAC", SkrlUpdater),),
    samples=Samples(vecenv=_vecenv, replay=_replay, gae=_gae, sac=_sac, ppo=_ppo),
    starter=_STARTER,
)
