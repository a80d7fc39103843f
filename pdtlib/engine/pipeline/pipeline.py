"""A rank's place in a pipeline: its parts of the model, the program of its schedule, its copies."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.parts import Parts
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.mesh import Group
from pdtlib.engine.pipeline.copies import start_sum, take_over
from pdtlib.engine.pipeline.executor import Executor, Loss
from pdtlib.engine.split_backward import make_splittable
from pdtlib.plan.schedule import FAMILIES, NAMES, Costs, Layout, Program, build, lower


class Pipeline:
    """Trains a model whose positions lie on the ranks of ``group``, by any schedule of the plan.

    ``parts`` are this rank's chunks, chunk 0 first: modules that take and return one tensor, such as a
    :class:`pdtlib.engine.models.Transformer` with ``layers=``, or what
    :func:`pdtlib.engine.pipeline.cut_layers` makes of any list. Where parts have an attribute ``tied_weight``
    that is not None, the first and the last position share that parameter. A step::

        pipeline = Pipeline(parts, mesh.group("pp"), schedule="1f1b")
        replica = pipeline.data_parallel(mesh.data, stage=1)
        optimizer = ShardedAdamW(replica)
        ...
        loss = pipeline.step(micro_batches, loss=lambda output, index: ...)
        pipeline.finish_gradients()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()

    Without :meth:`data_parallel` gradients are left in the parameters, for any optimizer.
    """

    def __init__(
        self, parts: Sequence[nn.Module], group: Group, *, schedule: str = "1f1b", costs: Costs | None = None
    ) -> None:
        """``costs`` are the times for which zb-auto makes its table; every rank gives the same.

        Raises ValueError for a schedule that does not exist or has another number of chunks.
        """
        if schedule not in FAMILIES:
            raise ValueError(f"schedule={schedule!r}; valid: {', '.join(NAMES)}")
        family = FAMILIES[schedule]
        kind = family.layout if group.size > 1 else "loop"
        if len(parts) != (family.chunks or len(parts)):
            raise ValueError(f"parts: {schedule} has {family.chunks} chunks a rank, not {len(parts)}")
        self.group, self.schedule, self.costs = group, schedule, costs
        self.layout = Layout(kind=kind, stages=group.size, chunks=len(parts))
        self.positions = [self.layout.position(group.rank, chunk) for chunk in range(len(parts))]
        self.has_first, self.has_last = 0 in self.positions, self.layout.length - 1 in self.positions
        if family.splits_backward:
            for part in parts:
                make_splittable(part)
        self._mirror = group.size - 1 - group.rank
        self.tied = self._tie(parts)
        by_position = sorted(range(len(parts)), key=lambda chunk: self.positions[chunk])
        apart = [] if self.tied is None else [self.tied]
        self.module = Parts([parts[chunk] for chunk in by_position], apart=apart)
        self._share_initial_values()
        device = next((param.device for param in self.module.parameters()), torch.device("cpu"))
        numbers = [by_position.index(chunk) for chunk in range(len(parts))]
        self.executor = Executor(parts, group, self.layout, numbers=numbers, device=device)
        self._programs: dict[int, Program] = {}

    # --- what ranks have in common ------------------------------------------------------------------------

    def _tie(self, parts: Sequence[nn.Module]) -> nn.Parameter | None:
        """What first and last position share; one and the same parameter where this rank has both."""
        found = [part for part in parts if getattr(part, "tied_weight", None) is not None]
        if not found or self.layout.length == 1:
            return None
        weight = found[0].tied_weight
        assert isinstance(weight, nn.Parameter)
        for part in found[1:]:
            for module in part.modules():
                for name, param in module.named_parameters(recurse=False):
                    if param is part.tied_weight:
                        setattr(module, name, weight)
        return weight

    @property
    def tied_copy(self) -> nn.Parameter | None:
        """The last rank's copy of a parameter that the first rank has too; None elsewhere."""
        return self.tied if self.has_last and not self.has_first else None

    @property
    def repeated(self) -> frozenset[int]:
        """Ids of this rank's parameters of which another rank counts its copy in norms and checkpoints."""
        if self.layout.copies > 1 and self.group.rank > self._mirror:
            return frozenset(id(param) for param in self.module.parameters())
        return frozenset() if self.tied_copy is None else frozenset({id(self.tied_copy)})

    def _share_initial_values(self) -> None:
        if self.layout.copies > 1:
            tensors: Sequence[torch.Tensor] = [*self.module.parameters(), *self.module.buffers()]
        elif self.tied is not None and self.has_first != self.has_last:
            tensors = [self.tied]
        else:
            return
        take_over(tensors, self.group, partner=self._mirror, mine=self.group.rank < self._mirror)

    # --- training -----------------------------------------------------------------------------------------

    def data_parallel(self, group: Group, **options: Any) -> Replica:
        """Let the ranks of ``group``, which hold the same parts, train one model.

        ``options`` are those of :func:`pdtlib.engine.data_parallel.data_parallel`. Without ``cut`` the model
        is cut into stages and nothing else.
        """
        if options.get("cut") is None:
            options["cut"] = ModelCut(
                Group.alone(), frozenset(), frozenset(), stages=self.group, copied=self.repeated
            )
        self.executor.replica = data_parallel(self.module, group, **options)
        return self.executor.replica

    def step(
        self,
        micro_batches: Sequence[Any],
        *,
        loss: Loss,
        begin: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Forward and backward passes of all micro-batches; returns the sum of the losses, detached.

        ``micro_batches`` are the inputs of the first position; other ranks need the number alone.
        ``loss(output, index)`` is called at the last position and returns what is to be minimised;
        ranks without that position return 0. ``begin(index)`` is called before each forward pass.
        """
        program = self._program(len(micro_batches))
        return self.executor.run(program, micro_batches, loss, begin)

    def _program(self, num_micro_batches: int) -> Program:
        if num_micro_batches not in self._programs:
            table = build(
                self.schedule,
                stages=self.layout.stages,
                microbatches=num_micro_batches,
                chunks=self.layout.chunks,
                costs=self.costs,
            )
            self._programs[num_micro_batches] = lower(table).programs[self.group.rank]
        return self._programs[num_micro_batches]

    def finish_gradients(self) -> None:
        """Wait until the replica's gradients are means over its group and, of copies, sums over both.

        Call it once a step, in place of the replica's own.
        """
        replica = self.executor.replica
        assert replica is not None, "call data_parallel() first"
        replica.finish_gradients()
        if self.layout.copies > 1:
            copied, phase = replica.trainable, "copies"
        elif self.tied is not None and self.has_first != self.has_last:
            copied = [flat for flat in replica.trainable if flat.slots[0].param is self.tied]
            phase = "embedding"
        else:
            return
        sums = []
        for flat in copied:
            assert flat.grad_shard is not None
            sums.append(start_sum(flat.grad_shard, self.group, partner=self._mirror, phase=phase))
        for pending in sums:
            pending.wait()
