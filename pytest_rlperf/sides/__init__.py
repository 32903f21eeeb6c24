"""Preparation of the sides of a comparison: a git ref, pip requirements, a directory or an interpreter beside today."""
