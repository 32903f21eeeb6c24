"""SAC's critic in JAX: several gradient steps on the batches of one update, compiled as one function."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

OBSERVATION, ACTION, HIDDEN = 3, 1, 64


def initial(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (OBSERVATION + ACTION, HIDDEN)) * 0.1,
        "out": jax.random.normal(second, (HIDDEN, 1)) * 0.1,
    }


def q_value(parameters: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    inputs = jnp.concatenate([batch["obs"], batch["action"]], 1)
    return jax.nn.relu(inputs @ parameters["in"]) @ parameters["out"]


def gradient_step(batches, number, carry):
    """Move the critic towards the targets of its batch, and the target network towards the critic."""
    parameters, target = carry
    batch = jax.tree.map(lambda part: part[number], batches)

    def loss(parameters):
        wanted = batch["reward"] + 0.99 * q_value(target, batch)
        return jnp.mean((q_value(parameters, batch) - jax.lax.stop_gradient(wanted)) ** 2)

    gradients = jax.grad(loss)(parameters)
    parameters = jax.tree.map(lambda value, slope: value - 1e-3 * slope, parameters, gradients)
    target = jax.tree.map(lambda old, new: 0.995 * old + 0.005 * new, target, parameters)
    return parameters, target


@partial(jax.jit, static_argnames="steps")
def train(parameters, target, batches, steps: int):
    return jax.lax.fori_loop(0, steps, partial(gradient_step, batches), (parameters, target))


class Critic:
    """The networks, and the buffer that they learn from."""

    def __init__(self, gradient_steps: int) -> None:
        self.gradient_steps = gradient_steps
        self.parameters = self.target = initial(jax.random.key(0))
        generator = np.random.default_rng(0)
        self.buffer = {
            "obs": generator.normal(size=(10_000, OBSERVATION)).astype(np.float32),
            "action": generator.normal(size=(10_000, ACTION)).astype(np.float32),
            "reward": generator.normal(size=(10_000, 1)).astype(np.float32),
        }

    def update(self, batch_size: int) -> dict[str, jax.Array]:
        rows = np.random.randint(10_000, size=(self.gradient_steps, batch_size))
        batches = {name: part[rows] for name, part in self.buffer.items()}
        self.parameters, self.target = train(self.parameters, self.target, batches, self.gradient_steps)
        return self.parameters
