"""The machine, and what is stored about it."""
