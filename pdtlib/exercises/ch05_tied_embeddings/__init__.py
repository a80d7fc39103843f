"""Exercise: the gradient of tied embeddings on two stages, with a sharded optimizer."""
