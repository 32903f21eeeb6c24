"""The machine, and its stored figures."""
