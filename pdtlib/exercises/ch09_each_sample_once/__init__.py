"""Exercise: after a restart on another number of workers, every sample is read once and none is left out."""
