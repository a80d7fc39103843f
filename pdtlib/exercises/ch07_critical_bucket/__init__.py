"""Exercise: the smallest bucket with which the link keeps pace."""
