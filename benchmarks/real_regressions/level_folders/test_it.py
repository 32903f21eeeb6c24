from library import Dungeon


def test_dungeon_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: Dungeon())
