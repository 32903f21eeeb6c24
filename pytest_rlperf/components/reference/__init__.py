"""The embedded default: readable NumPy and PyTorch versions of the five components, to compare others with."""
