"""Exercise: a plan within 5 % of the best, with few predictions."""
