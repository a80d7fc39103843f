"""Exercise: the two ends of a region under sequence parallelism: an all-reduce in two halves."""
