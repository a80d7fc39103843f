"""Random numbers in a tensor-parallel group: the same on every rank where activations are, else a rank's own.

Dropout on activations that all ranks have must drop the same elements everywhere; on a rank's own heads, or
on its slice of the sequence, each rank must draw for itself. The ranks share the default stream; a rank's own
stream begins at a number drawn from it, so that a checkpointed forward pass, which restores the default
stream, finds its own numbers again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pdtlib.engine.mesh import Group


@contextmanager
def own_stream(group: Group) -> Iterator[None]:
    """Draw random numbers that other ranks of the group do not draw."""
    number = int(torch.randint(2**48, ()))
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        seed_streams(number * group.size + group.rank)
        yield


def seed_streams(number: int) -> None:
    """Let the default streams of the CPU and of this rank's GPU begin at ``number``.

    ``torch.manual_seed`` does so for every kind of device there is, and of one that is not in use it notes
    who called: a thousand Python calls.
    """
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def with_own_stream(module: nn.Module, group: Group) -> None:
    """Let the module's forward pass draw from this rank's own stream."""
    forward = module.forward

    def drawing_for_itself(*args: Any, **kwargs: Any) -> Any:
        with own_stream(group):
            return forward(*args, **kwargs)

    module.forward = drawing_for_itself
