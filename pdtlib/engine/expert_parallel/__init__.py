"""Experts shared out over ranks: tokens travel to the experts that the router chose, and back.

Start with :mod:`pdtlib.engine.models.moe`, the block itself. :mod:`.exchange` is what it sends,
:mod:`.experts` says who has which expert, and with whom its gradient is averaged.
"""

from pdtlib.engine.expert_parallel.exchange import Exchange
from pdtlib.engine.expert_parallel.experts import expert_parallel, experts_of

__all__ = ["Exchange", "expert_parallel", "experts_of"]
