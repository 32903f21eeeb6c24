"""How a side to compare with comes to be: a git ref, a pip requirement, a directory, a Python."""
