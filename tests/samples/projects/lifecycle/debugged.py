calls = 0


def work():
    global calls
    calls += 1
    return calls


def test_wrong(rlperf):
    rlperf(work, check=lambda found: found / 0)


def test_work(rlperf):
    assert not rlperf(work).measured


def test_plain():
    assert calls
