import time


def busy(seconds):
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(1000))
    return total
