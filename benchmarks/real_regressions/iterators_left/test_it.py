from library import Demonstrations, first_batch


def test_first_batch(rlperf):
    data = Demonstrations()
    rlperf(lambda: first_batch(data, 128), items=128, unit="step")
