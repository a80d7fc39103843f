"""How thousands of GPUs train one large model: planning, training and drawing it."""

__version__ = "0.1.0"
