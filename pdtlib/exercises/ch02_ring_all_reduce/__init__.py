"""Exercise: ring all-reduce from send and receive."""
