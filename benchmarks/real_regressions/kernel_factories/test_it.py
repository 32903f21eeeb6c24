from library import Simulator


def test_step(rlperf):
    simulator = Simulator()
    rlperf(simulator.step, unit="step", phases={"kernels": "kernels"})
