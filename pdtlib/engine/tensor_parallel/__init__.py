"""One layer on many ranks: matrices cut by columns and rows, activations cut along the sequence.

Start with :mod:`.regions`, the four moves between replicated and cut activations. :mod:`.layers` builds
linear layers and embeddings on them, :mod:`.loss` the cross-entropy of cut logits, :mod:`.table` says which
module of a model becomes what.
"""

from pdtlib.engine.tensor_parallel.table import tensor_parallel, transformer_table

__all__ = ["tensor_parallel", "transformer_table"]
