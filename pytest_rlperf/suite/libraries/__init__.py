"""The suite on libraries: one file each, from which `rlperf init` makes first tests.

Sizes and names of tests are the reference's: ``test_LIBRARY_NAME`` here and its ``test_NAME`` are one row of the table
that a run ends with. A function ``LIBRARY_COMPONENT`` makes what a test measures, and the conformance tests take it,
too. Work is equal: buffers hold the same transitions, networks have two hidden layers, of 256 for SAC and of 64 for
PPO, everything is float32, and a rollout comes with its advantages. Libraries are imported within functions, so that
collecting the tests of all of them loads none.
"""
