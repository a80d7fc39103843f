"""Exercise: the order of ranks with the least traffic between nodes."""
