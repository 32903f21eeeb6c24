from work import meant, slipped


def test_meant(rlperf):
    rlperf(meant)


def test_slipped(rlperf):
    rlperf(slipped)
