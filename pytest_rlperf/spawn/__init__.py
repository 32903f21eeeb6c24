"""How processes come to be and end: preload server, templates, new interpreters, guardian."""
