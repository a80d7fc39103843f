"""Exercise: which heads a tensor-parallel rank has, with grouped key and value heads."""
