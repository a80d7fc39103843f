"""Exercise: the gradients of a LayerNorm whose tokens are spread over the ranks."""
