from library import Writer


def test_step(rlperf):
    writer = Writer()
    rlperf(writer.step, unit="env step", phases={"write": "write"})
