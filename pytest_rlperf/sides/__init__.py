"""Preparation of a comparison's sides: a git ref, pip requirements, a directory or an interpreter beside today's."""
