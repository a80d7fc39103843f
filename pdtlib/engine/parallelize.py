"""From one job to a model that trains in its layout: the parallelisms composed, in the order that works.

A rank builds the layers of its pipeline stage alone. In them the sequence is cut first, since attention must
be told; then experts go to their ranks of ep, and layers are cut over tp; then comes the data-parallel
replica, whose buffers hold what is left of each parameter, over dp × cp.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import nn

from pdtlib.engine.compiled import compile_layers
from pdtlib.engine.context_parallel import ContextSplit, context_parallel
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.cut import united
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.dropout import DropoutSeeds
from pdtlib.engine.expert_parallel import expert_parallel, experts_of
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Mesh
from pdtlib.engine.models import Balance, Layer, Transformer
from pdtlib.engine.pipeline import Pipeline
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.plan.chunks import chunks_of
from pdtlib.plan.job import validate
from pdtlib.plan.spec import Job, JobError, Problem


@dataclass(frozen=True)
class Parallelized:
    """A model in its layout.

    Without a pipeline ``replica(tokens)`` gives logits of this rank's positions and vocabulary; with one,
    ``pipeline.step`` runs whatever passes this rank has. Average over ``mesh.data``: it is the group of the
    replica, and the one to give to :class:`pdtlib.engine.loss.TokenMean`.
    """

    job: Job
    mesh: Mesh
    replica: Replica
    pipeline: Pipeline | None
    split: ContextSplit
    dropout: DropoutSeeds

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's positions of tokens or targets ``[B, S]``, whose rows are those of its dp rank."""
        return self.split.take(x)

    @cached_property
    def balances(self) -> list[Balance]:
        """The load-balancing losses of this rank's experts."""
        models = [module for module in self.replica.modules() if isinstance(module, Transformer)]
        return [model.balance for model in models if model.balance is not None]

    def finish_gradients(self) -> None:
        """Return when the gradients are whole: means over dp × cp, sums over whoever has a part or a copy."""
        (self.replica if self.pipeline is None else self.pipeline).finish_gradients()

    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum of the cross-entropy over this rank's valid targets, the same on every tp rank."""
        tp = self.mesh.group("tp")
        if tp.size == 1:
            return token_loss_sum(logits, targets)
        return vocab_parallel_loss_sum(logits, targets, tp, vocab=self.job.model.vocab)


def problems_of(job: Job) -> list[Problem]:
    """What the plan can plan but the engine does not train."""
    found = []
    if job.model.moe is not None and job.model.moe.capacity_factor and job.parallel.cp > 1:
        message = "a rank of cp would drop tokens by its own positions alone; 0 drops none"
        found.append(Problem("model.moe.capacity_factor", message, (0.0,)))
    if job.train.precision == "fp8":
        message = "the engine has no fp8 matrix products"
        found.append(Problem("train.precision", message, ("fp32", "bf16", "fp16")))
    return found


def parallelize(
    job: Job,
    mesh: Mesh,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    compiler: str | None = None,
) -> Parallelized:
    """Build this rank's part of the job's model and wrap it.

    ``dtype`` is that of the initial weights; ``train.precision`` fp32 keeps it. ``compiler`` is a backend of
    ``torch.compile``, such as inductor, for the layers (:mod:`pdtlib.engine.compiled`); None compiles
    nothing. Raises :class:`pdtlib.plan.spec.JobError` for a job that cannot work or that the engine does not
    train.
    """
    problems = [*validate(job), *problems_of(job)]
    if problems:
        raise JobError(problems)
    train, tp, dp = job.train, mesh.group("tp"), mesh.group("dp")
    models = [
        Transformer(
            job.model,
            layers=chunk.layers,
            first=chunk.first,
            last=chunk.last,
            seed=train.seed,
            flash_attention=train.flash_attention,
            recompute=train.recompute,
            recompute_layers=train.recompute_layers or None,
            device=device,
            dtype=dtype,
        )
        for chunk in chunks_of(job, mesh.group("pp").rank)
    ]
    splits = [context_parallel(model, mesh.group("cp"), kind=job.parallel.context) for model in models]
    for model in models:
        expert_parallel(model, mesh)
    cuts = [
        tensor_parallel(
            model,
            tp,
            table=transformer_table(job.model, first=model.first, last=model.last),
            sequence=train.sequence_parallel,
        )
        for model in models
    ]
    pipeline: Pipeline | None
    module: nn.Module
    wrap: Callable[..., Replica]
    if job.parallel.pp == 1:
        pipeline, module, cut, wrap = None, models[0], cuts[0], partial(data_parallel, models[0])
    else:
        pipeline = Pipeline(models, mesh.group("pp"), schedule=job.parallel.schedule)
        module, wrap = pipeline.module, pipeline.data_parallel
        cut = united(cuts, stages=pipeline.group, copied=pipeline.repeated)
    cut = replace(cut, experts=experts_of(module, mesh))
    dropout = DropoutSeeds(
        module,
        seed=train.seed,
        first_micro_batch=dp.rank * job.gradient_accumulation,
        own=tp.rank if train.sequence_parallel else 0,
    )
    replica = wrap(
        mesh.data,
        stage=train.zero_stage,
        blocks=[child for child in module.modules() if isinstance(child, Layer)],
        precision=None if dtype == torch.float64 else train.precision,
        grad_precision=train.grad_precision,
        reshard_after_forward=train.reshard_after_forward,
        cut=cut,
    )
    if compiler is not None:
        compile_layers(module, backend=compiler)
    return Parallelized(job, mesh, replica, pipeline, splits[0], dropout)
