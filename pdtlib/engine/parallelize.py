"""From one job to a model that trains in its layout: the parallelisms composed, in the order that works.

The sequence is cut first, since attention must be told; then layers over tp; then the data-parallel replica,
whose buffers hold what is left of each parameter, over dp × cp.
"""

from dataclasses import dataclass

import torch

from pdtlib.engine.context_parallel import ContextSplit, context_parallel
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.dropout import DropoutSeeds
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Mesh
from pdtlib.engine.models import Layer, Transformer
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.plan.spec import Job, JobError, Problem


@dataclass(frozen=True)
class Parallelized:
    """A model in its layout. ``replica(tokens)`` gives logits of this rank's positions and vocabulary.

    Average over ``mesh.data``: it is the group of the replica, and the one to give to
    :class:`pdtlib.engine.loss.TokenMean`.
    """

    job: Job
    mesh: Mesh
    replica: Replica
    split: ContextSplit
    dropout: DropoutSeeds

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's positions of tokens or targets ``[B, S]``, whose rows are those of its dp rank."""
        return self.split.take(x)

    def loss_sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum of the cross-entropy over this rank's valid targets, the same on every tp rank."""
        tp = self.mesh.group("tp")
        if tp.size == 1:
            return token_loss_sum(logits, targets)
        return vocab_parallel_loss_sum(logits, targets, tp, vocab=self.job.model.vocab)


def problems_of(job: Job) -> list[Problem]:
    """What of the job's layout the engine does not train."""
    found = []
    model, parallel = job.model, job.parallel
    if model.moe is not None:
        found.append(
            Problem("model.moe", "the engine trains dense models, not mixtures of experts", ("none",))
        )
    if job.train.precision == "fp8":
        message = "the engine has no fp8 matrix products"
        found.append(Problem("train.precision", message, ("fp32", "bf16", "fp16")))
    for axis in ("pp", "ep"):
        degree = getattr(parallel, axis)
        if degree > 1:
            found.append(Problem(f"parallel.{axis}", f"the engine does not run {axis}={degree} here", (1,)))
    if model.kv_heads % parallel.tp:
        divisors = tuple(size for size in range(1, model.kv_heads + 1) if model.kv_heads % size == 0)
        message = f"{model.kv_heads} key/value heads are not shared out evenly over tp={parallel.tp}"
        found.append(Problem("parallel.tp", message, divisors))
    if parallel.cp > 1 and model.dropout > 0:
        found.append(Problem("model.dropout", f"attention over cp={parallel.cp} has no dropout", (0.0,)))
    heads = model.kv_heads // parallel.tp
    if parallel.cp > 1 and parallel.context == "ulysses" and heads % parallel.cp:
        message = f"ulysses: {heads} key/value heads a rank do not divide by cp={parallel.cp}"
        found.append(Problem("parallel.context", message, ("ring",)))
    return found


def parallelize(
    job: Job, mesh: Mesh, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Parallelized:
    """Build this rank's part of the job's model and wrap it.

    ``dtype`` is that of the initial weights; ``train.precision`` fp32 keeps it. Raises
    :class:`pdtlib.plan.spec.JobError` for a layout that the engine does not train.
    """
    problems = problems_of(job)
    if problems:
        raise JobError(problems)
    train, tp, dp = job.train, mesh.group("tp"), mesh.group("dp")
    model = Transformer(
        job.model,
        seed=train.seed,
        flash_attention=train.flash_attention,
        recompute=train.recompute,
        device=device,
        dtype=dtype,
    )
    split = context_parallel(model, mesh.group("cp"), kind=job.parallel.context)
    table = transformer_table(job.model)
    cut = tensor_parallel(model, tp, table=table, sequence=train.sequence_parallel)
    dropout = DropoutSeeds(
        model,
        seed=train.seed,
        first_micro_batch=dp.rank * job.gradient_accumulation,
        own=tp.rank if train.sequence_parallel else 0,
    )
    replica = data_parallel(
        model,
        mesh.data,
        stage=train.zero_stage,
        blocks=[module for module in model.modules() if isinstance(module, Layer)],
        precision=None if dtype == torch.float64 else train.precision,
        grad_precision=train.grad_precision,
        reshard_after_forward=train.reshard_after_forward,
        cut=cut,
    )
    return Parallelized(job, mesh, replica, split, dropout)
