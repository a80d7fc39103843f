"""Exercise: data parallelism with buckets and overlap."""
