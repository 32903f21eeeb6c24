"""One measured run, from its tests to its end."""
