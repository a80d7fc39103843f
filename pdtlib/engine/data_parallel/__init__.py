"""One model on many ranks, each with its part of the batch: DDP, and ZeRO's stages 1, 2 and 3.

Start with :mod:`.choose`, which picks a stage. :mod:`.replica` is what all stages share, :mod:`.flat` the
buffers that they send, :mod:`.ddp` stage 0, :mod:`.zero` stages 1 and 2, :mod:`.zero3` stage 3.
"""

from pdtlib.engine.data_parallel.choose import data_parallel

__all__ = ["data_parallel"]
