"""The embedded default: readable NumPy and PyTorch versions of the five components, which others are compared with."""
