"""Exercise: the largest micro-batch that fits."""
