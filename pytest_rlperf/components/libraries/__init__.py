"""One thin adapter a library; each imports its own library and ``model``, and only when it is asked to."""
