"""Components to measure: the five components of a reinforcement-learning library, made ready as workloads."""
