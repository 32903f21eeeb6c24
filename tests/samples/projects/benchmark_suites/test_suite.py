import pytest

TIMES = 1


def work(count, scale=1):
    return sum(range(count * scale * TIMES))


@pytest.mark.benchmark(group="sums")
@pytest.mark.parametrize("count", [500, 1500])
def test_call(benchmark, count):
    benchmark.extra_info["count"] = count
    assert benchmark(work, count, scale=1) == work(count)


def test_decorated(benchmark):
    @benchmark
    def result():
        return work(400)

    assert result == work(400)


@pytest.mark.rlperf(max_time=0.3)
def test_several(benchmark):
    assert benchmark(work, 400) == work(400)


def test_rounds(benchmark):
    ends = []

    def setup():
        assert not ends or len(ends) == setup.begun
        setup.begun += 1
        return ([3, 1, 2] * 100,), {"reverse": True}

    def teardown(items, reverse):
        assert reverse
        ends.append(len(items))

    setup.begun = 0
    result = benchmark.pedantic(sorted, setup=setup, teardown=teardown, rounds=3, warmup_rounds=1)
    assert result == [3] * 100 + [2] * 100 + [1] * 100
    assert len(ends) == setup.begun


def test_iterations(benchmark):
    benchmark.group = "sums"
    assert benchmark.pedantic(work, args=(300,), kwargs={"scale": 2}, iterations=10, rounds=5) == work(600)


def test_without():
    pass
