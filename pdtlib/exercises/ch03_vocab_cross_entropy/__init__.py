"""Exercise: cross-entropy of logits that are cut along the vocabulary."""
