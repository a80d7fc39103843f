"""What data parallelism must know of a model that is cut along other axes of the mesh."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pdtlib.engine.data_parallel.experts import Experts
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.mesh import Group
from pdtlib.engine.transfers import start_all_reduce


@dataclass(frozen=True)
class ModelCut:
    """What the optimizer must know of a cut model. Parameters are named by ``id``.

    ``replicated`` parameters are whole on every rank and must count once in the gradient's norm; the
    gradients of ``partial`` ones, a subset, are a part of a sum: this rank's positions' (sequence
    parallelism) or heads'. ``repeated`` ones are the same on the ranks of ``repeaters`` alone, neighbours
    within the group that share a key/value head, and their gradients are partial there. ``stages`` are the
    ranks of the pipeline, of which each has other layers; ``copied`` parameters are also on another stage,
    which counts them. ``experts`` are parameters that not all replicas have.
    """

    group: Group
    replicated: frozenset[int]
    partial: frozenset[int]
    repeated: frozenset[int] = frozenset()
    repeaters: Group | None = None
    stages: Group | None = None
    copied: frozenset[int] = frozenset()
    experts: Experts | None = None

    def is_expert(self, param: nn.Parameter) -> bool:
        """Whether the parameter is an expert's."""
        return self.experts is not None and id(param) in self.experts.params

    def counts(self, param: nn.Parameter) -> bool:
        """Whether this rank counts the parameter in the gradient's norm."""
        if id(param) in self.copied:
            return False
        if self.repeaters is not None and id(param) in self.repeated:
            return self.repeaters.rank == 0
        return self.group.rank == 0 or id(param) not in self.replicated

    def sum_partial_gradients(self, flats: Sequence[Flat]) -> None:
        """Sum the gradients of partial parameters over their ranks, in one message for each group; after
        their reduction over dp."""
        _sum(flats, self.partial, self.group)
        if self.repeaters is not None:
            _sum(flats, self.repeated, self.repeaters)


def united(cuts: Iterable[ModelCut], *, stages: Group, copied: frozenset[int]) -> ModelCut:
    """What the cuts of a pipeline stage's parts say of them all."""
    found = list(cuts)
    return ModelCut(
        group=found[0].group,
        replicated=frozenset().union(*(cut.replicated for cut in found)),
        partial=frozenset().union(*(cut.partial for cut in found)),
        repeated=frozenset().union(*(cut.repeated for cut in found)),
        repeaters=found[0].repeaters,
        stages=stages,
        copied=copied,
    )


def _sum(flats: Sequence[Flat], params: frozenset[int], group: Group) -> None:
    views = []
    for flat in flats:
        for slot in flat.slots:
            first, last = flat.span(slot)
            if id(slot.param) in params and first < last:
                assert flat.grad_shard is not None
                views.append(flat.grad_shard[first:last])
    if views and group.size > 1:
        message = torch.cat(views)
        start_all_reduce(message, group, phase="grads").wait()
        for view, part in zip(views, message.split([view.numel() for view in views]), strict=True):
            view.copy_(part)
