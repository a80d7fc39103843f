"""Exercise: the shortest schedule under a memory cap."""
