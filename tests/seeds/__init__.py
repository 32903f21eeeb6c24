"""What users of four RL systems, and of the design card, were promised: a file for each, a test for each promise."""
