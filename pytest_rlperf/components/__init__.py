"""What is measured: the five components of a reinforcement-learning library, made ready as workloads."""
