"""The driver of one pair: turns, a pair's figures, when it ends, and who counts."""
