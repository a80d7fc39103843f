"""Exercise: a row-cut linear layer whose bias is added once."""
