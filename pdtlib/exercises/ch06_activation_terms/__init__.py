"""Exercise: what a layer keeps for its backward pass, term by term, with and without sequence parallelism."""
