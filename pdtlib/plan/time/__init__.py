"""How long a step takes: kernels, collectives, the pipeline, and constants fitted to published runs."""
