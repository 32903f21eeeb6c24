import functools


def busy(times):
    return sum(i * i for i in range(100 * times))


class Buffer:
    __slots__ = ()

    def sample(self, size):
        return busy(2)


class Agent:
    def __init__(self):
        self.buffer = Buffer()

    def update_critic(self):
        return busy(6)

    def update(self, batch_size=4):
        self.buffer.sample(batch_size)
        self.update_critic()
        polyak()


def polyak():
    return busy(3)
