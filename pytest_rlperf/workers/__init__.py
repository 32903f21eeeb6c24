"""Worker processes: how they are started, what is sent to them, and the pytest session that runs in them."""
