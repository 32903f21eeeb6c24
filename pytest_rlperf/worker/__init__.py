"""The process with the user's test: session, meter, rounds, passes, device, and what it holds."""
