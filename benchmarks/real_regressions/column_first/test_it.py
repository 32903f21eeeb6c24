from library import Dataset


def test_item(rlperf):
    dataset = Dataset(20_000)
    rlperf(lambda: dataset.item(9_900), items=50, unit="row")
