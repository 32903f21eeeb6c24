def test_twice(benchmark):
    benchmark(int)
    benchmark(int)


def test_none(benchmark):
    benchmark.pedantic(int, rounds=0)


def test_both(benchmark):
    benchmark.pedantic(int, args=("1",), setup=lambda: (("2",), {}))


def test_raises(benchmark):
    benchmark(lambda: 1 / 0)
