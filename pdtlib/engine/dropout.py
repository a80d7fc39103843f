"""Dropout masks that know nothing of the layout: a layer's are drawn from (seed, step, micro-batch, layer).

So a micro-batch has the same masks whatever rank computes it, on whatever pipeline stage the layer lies, and
after a resume. Where tensor parallelism gives each rank activations of its own, the rank is part of the draw
(:mod:`pdtlib.engine.tensor_parallel.random` does that for attention heads).
"""

import hashlib
import re
from typing import Any

from torch import nn

from pdtlib.engine.models import Layer, Transformer
from pdtlib.engine.tensor_parallel.random import seed_streams


class DropoutSeeds:
    """Seeds the default random stream before each layer of ``module``, and before what comes ahead of them.

    ``first_micro_batch`` is the number, within the global batch, of this rank's first micro-batch.
    ``own`` makes draws differ between the ranks of a group whose activations are slices (sequence
    parallelism); 0 where they are the same. A model without dropout is left alone.
    """

    def __init__(self, module: nn.Module, *, seed: int, first_micro_batch: int, own: int = 0) -> None:
        self._seed, self._first, self._own = seed, first_micro_batch, own
        self._key = ""
        for name, child in module.named_modules():
            if isinstance(child, Transformer | Layer) and isinstance(child.dropout, nn.Dropout):
                child.register_forward_pre_hook(self._hook(_place(name)))

    def begin(self, step: int, micro_batch: int) -> None:
        """The next forward passes are those of this rank's ``micro_batch`` in ``step``."""
        self._key = f"dropout:{self._seed}:{step}:{self._first + micro_batch}:{self._own}"

    def _hook(self, place: str) -> Any:
        def seed(module: nn.Module, args: Any) -> None:
            if module.training:
                digest = hashlib.sha256(f"{self._key}:{place}".encode()).digest()
                seed_streams(int.from_bytes(digest[:8], "little") >> 1)

        return seed


def _place(name: str) -> str:
    """The number of the layer that a module's name ends in; "" outside the layers."""
    found = re.search(r"layers\.(\d+)$", name)
    return found[1] if found else ""
