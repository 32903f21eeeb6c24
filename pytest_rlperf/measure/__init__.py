"""Slices, workers and the turns they take."""
