def work():
    return sum(i * i for i in range(400))
