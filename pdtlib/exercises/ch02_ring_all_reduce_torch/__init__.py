"""Exercise: ring all-reduce on real processes."""
