"""How processes start and end: preload server, templates, new interpreters, guardian."""
