from library import Game


def test_game_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: Game())
