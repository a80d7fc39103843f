"""One sequence on many ranks: each has some of the positions, and attention sees all of them.

:mod:`.ring` passes keys and values round, :mod:`.ulysses` exchanges heads for positions, :mod:`.split` says
who has which positions and makes a Transformer use either.
"""

from pdtlib.engine.context_parallel.split import ContextSplit, context_parallel

__all__ = ["ContextSplit", "context_parallel"]
