"""Training on torch: a mesh, collectives, every kind of parallelism, checkpoints, the loop."""
