import mylib


def test_work(rlperf):
    rlperf(mylib.work)


def test_rest(rlperf):
    rlperf(mylib.rest)
