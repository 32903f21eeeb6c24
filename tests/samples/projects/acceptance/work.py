ROUNDS = 500


def one():
    return 1


def meant():
    return sum(one() for _ in range(ROUNDS))


def slipped():
    return sum(one() for _ in range(ROUNDS))
