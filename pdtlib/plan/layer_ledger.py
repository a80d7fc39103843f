"""What one layer sends for one micro-batch: the ledger without the model's ends.

The ledger of a whole stage (:mod:`pdtlib.plan.ledger`) also has what embedding, head and optimizer step
send. A layer in the middle of a pipeline has nothing of that.
"""

from dataclasses import replace

from pdtlib.plan.comm import Message
from pdtlib.plan.ledger import messages
from pdtlib.plan.spec import Job, Model, Parallel

PHASES = ("forward", "recompute", "backward")


def layer_messages(job: Job) -> tuple[Message, ...]:
    """The tensor- and context-parallel messages of one layer and one micro-batch of the job.

    >>> from pdtlib.plan.job import from_dict
    >>> rows = layer_messages(from_dict({"model": {"preset": "llama2-70b"}, "parallel": {"tp": 8}}))
    >>> [(row.collective, row.phase, row.count, row.message_bytes) for row in rows]
    [('all_reduce', 'forward', 2, 67108864.0), ('all_reduce', 'backward', 2, 67108864.0)]
    """
    parallel = job.parallel
    middle = Job(
        model=replace(job.model, layers=3),
        train=replace(job.train, global_batch=job.train.micro_batch),
        parallel=Parallel(tp=parallel.tp, cp=parallel.cp, pp=3, context=parallel.context),
    )
    return tuple(
        message for message in messages(middle, 1) if message.axis in ("tp", "cp") and message.phase in PHASES
    )


def sent_bytes_of_layer(job: Job, *, phases: tuple[str, ...] = PHASES) -> float:
    """Bytes that a rank sends for one layer and one micro-batch in the given phases."""
    return sum(message.sent_bytes_per_rank for message in layer_messages(job) if message.phase in phases)


def ring_hides_from(model: Model, *, flops_per_s: float, bytes_per_s: float) -> float:
    """The fewest positions a rank with which ring attention computes as long as its messages travel.

    Of causal attention dealt out as zigzag, in 16 bits: a step has half of (s/c)² pairs of positions, and
    keys and values of s/c positions travel meanwhile (Liu et al. 2023, section 3). Latency is left out.
    """
    return 2 * model.kv_heads / model.heads * flops_per_s / bytes_per_s
