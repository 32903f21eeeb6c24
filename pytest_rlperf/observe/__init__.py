"""What runs in a watched process: what it opens, loads and executes."""
