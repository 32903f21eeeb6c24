"""Measuring one test: slices, one side by itself, live pairs, and the passes that count, trace and attribute."""
