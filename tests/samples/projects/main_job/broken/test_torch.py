import torch


class Agent:
    def __init__(self, factor):
        self.net = torch.nn.Linear(2, 2)
        self.factor = factor

    def update(self, batch_size):
        with torch.no_grad():
            self.net.weight.mul_(self.factor)


def test_good_first(rlperf):
    rlperf(int)


def test_idle(rlperf_sac_update):
    rlperf_sac_update(Agent(1.0), batch_size=4)


def test_nan(rlperf_sac_update):
    rlperf_sac_update(Agent(float("nan")), batch_size=4)


def test_no_size(rlperf_sac_update):
    rlperf_sac_update(Agent(0.5))


def test_good_last(rlperf):
    rlperf(int)
