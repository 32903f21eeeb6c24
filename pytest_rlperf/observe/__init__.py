"""Code that runs in an observed process: it notes what the process opens, loads and executes."""
