"""Components to measure: the components of a reinforcement-learning library, made ready as workloads."""
