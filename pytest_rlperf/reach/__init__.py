"""What differs between the sides, and which tests run it."""
