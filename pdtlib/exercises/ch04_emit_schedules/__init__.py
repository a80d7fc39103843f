"""Exercise: emit the tables of GPipe, 1F1B and interleaved 1F1B."""
