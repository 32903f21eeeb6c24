"""Reports of a run: one wording, one table, and a writer for each form."""
