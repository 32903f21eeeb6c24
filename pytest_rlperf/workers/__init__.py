"""Worker processes: their start and their end, the messages between them and the run, and their pytest session."""
