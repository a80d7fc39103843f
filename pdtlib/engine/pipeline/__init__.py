"""Pipeline parallelism: the layers of one model on many ranks, micro-batches passing through them.

Start with :mod:`.executor`, which runs a rank's program of :mod:`pdtlib.plan.schedule`. :mod:`.pipeline`
builds it and is what a training loop calls, :mod:`.links` are the messages, :mod:`.stages` cuts a list of
layers, :mod:`.copies` keeps parameters equal that two ranks hold. :mod:`pdtlib.engine.split_backward` makes
an action of its own of weights' gradients.
"""

from pdtlib.engine.pipeline.pipeline import Pipeline
from pdtlib.engine.pipeline.stages import cut_layers

__all__ = ["Pipeline", "cut_layers"]
