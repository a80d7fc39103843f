"""Exercise: gradient descent with late gradients, and the largest step at which it stays stable."""
