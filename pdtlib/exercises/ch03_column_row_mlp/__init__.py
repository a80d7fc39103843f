"""Exercise: an MLP cut by columns and rows, with f and g."""
