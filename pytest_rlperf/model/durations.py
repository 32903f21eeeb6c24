"""The durations of the parts of a measurement, in seconds: a driver orders the parts and a worker carries them out."""

SLICE_S = 0.015
TURN_S = 0.0075  # a slice in turn with another process: the machine's pace changes within tens of milliseconds
WARM_UP_S = 0.15
WARM_UP_MOST_S = 2.0
PAIR_WARM_UP_S = 0.06  # of a pair: both sides are equally old, so neither has to be at its full speed
WARM_UP_AGAIN_S = 0.06
