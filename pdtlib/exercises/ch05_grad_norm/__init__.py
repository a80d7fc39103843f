"""Exercise: the norm of a gradient whose parts lie on many ranks."""
