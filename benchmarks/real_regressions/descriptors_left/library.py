"""A simulator's client: agents' sensors write into shared memory, which the client maps."""

from __future__ import annotations

import mmap
import os

import numpy as np


class SharedBlock:
    """A block of shared memory that is read as an array."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        size = 4 * int(np.prod(shape))
        self.file = os.memfd_create(name)
        os.ftruncate(self.file, size)
        self.memory = mmap.mmap(self.file, size)
        self.array = np.frombuffer(self.memory, np.float32).reshape(shape)

    def close(self) -> None:
        del self.array
        self.memory.close()
        os.close(self.file)


class Sensor:
    """What an agent senses, in a block of its own."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.block = SharedBlock(f"HOLO_{name}", shape)

    def read(self) -> np.ndarray:
        return self.block.array.copy()


SENSORS = {"camera": (32, 32, 4), "place": (3,), "speed": (3,), "reward": (1,)}


class World:
    """One agent with its sensors, as a context."""

    def __init__(self) -> None:
        self.sensors = [Sensor(name, shape) for name, shape in SENSORS.items()]

    def reset(self) -> dict[str, np.ndarray]:
        for sensor in self.sensors:
            sensor.block.array.fill(0)
        return {sensor.name: sensor.read() for sensor in self.sensors}

    def step(self, action: int) -> dict[str, np.ndarray]:
        for sensor in self.sensors:
            sensor.block.array += action
        return {sensor.name: sensor.read() for sensor in self.sensors}

    def close(self) -> None:
        for sensor in self.sensors:
            sensor.block.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
