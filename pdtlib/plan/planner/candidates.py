"""Which layouts are worth a look, and why the others cannot run.

The space is dp x tp x pp x cp x ep x vpp x ZeRO stage x recomputation x micro-batch x schedule. Most of it
fails on a divisibility that one look at the numbers shows; those are counted by their reason and never
become a job.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pdtlib.plan.layout import divisors
from pdtlib.plan.spec import Job, Parallel, Train

USUAL_SCHEDULES = ("1f1b", "interleaved")
"""What every framework has; the zero-bubble schedules and DualPipe are looked at on demand."""
MICRO_BATCHES = (1, 2, 4, 8, 16)
POWERS = (1, 2, 4, 8, 16, 32)
MIN_POSITIONS = 4096
"""Context parallelism leaves each rank at least so many positions: less is not worth its messages."""


def candidates(
    job: Job, *, num_gpus: int, rejected: Counter[str], schedules: Sequence[str] = USUAL_SCHEDULES
) -> Iterator[Job]:
    """Every layout of ``job`` on ``num_gpus`` worth predicting; ``rejected`` counts the others by reason.

    The model, the batch and the precision stay the job's. Sequence parallelism goes with tensor parallelism.
    Layouts that differ in nothing but recomputation follow one another, none first.
    """
    for tp, cp, pp in _model_degrees(job, num_gpus, rejected):
        dp = num_gpus // (tp * cp * pp)
        for ep in _expert_degrees(job, dp * cp, rejected):
            for micro_batch in MICRO_BATCHES:
                if job.train.global_batch % (micro_batch * dp):
                    rejected["the global batch is no multiple of micro-batch x dp"] += 1
                    continue
                parallel = Parallel(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, context=job.parallel.context)
                yield from _variants(job, parallel, micro_batch, schedules, rejected)


def _model_degrees(job: Job, num_gpus: int, rejected: Counter[str]) -> Iterator[tuple[int, int, int]]:
    model, node = job.model, job.hardware.gpus_per_node
    for tp in POWERS:
        if tp > num_gpus:
            break
        if tp > node:
            rejected["tensor parallelism would leave the node"] += 1
            continue
        if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
            rejected["heads do not split over tp"] += 1
            continue
        if model.ffn % tp:
            rejected["the MLP does not split over tp"] += 1
            continue
        for cp in POWERS:
            if num_gpus % (tp * cp):
                rejected["the GPUs are no multiple of tp x cp"] += 1
                continue
            if cp > 1 and model.dropout > 0:
                rejected["attention over several ranks has no dropout"] += 1
                continue
            if cp > 1 and (model.seq % (2 * cp * tp) or model.seq // cp < MIN_POSITIONS):
                rejected["the sequence is too short for context parallelism"] += 1
                continue
            for pp in divisors(num_gpus // (tp * cp), min(model.layers, 128)):
                if model.layers / pp < 1.5 and pp > 1 and model.layers % pp:
                    rejected["stages would differ too much in layers"] += 1
                    continue
                yield tp, cp, pp


def _expert_degrees(job: Job, ranks: int, rejected: Counter[str]) -> Iterator[int]:
    if job.model.moe is None:
        yield 1
        return
    for ep in POWERS:
        if job.model.moe.experts % ep or ranks % ep:
            rejected["the experts do not split over ep"] += 1
        else:
            yield ep


def _variants(
    job: Job, parallel: Parallel, micro_batch: int, schedules: Sequence[str], rejected: Counter[str]
) -> Iterator[Job]:
    """Schedules, chunks, ZeRO stages and recomputation of one layout."""
    micro_batches = job.train.global_batch // (micro_batch * parallel.dp)
    for schedule, vpp in _schedules(job, parallel.pp, micro_batches, schedules, rejected):
        for zero in _zero_stages(parallel):
            for recompute in _recomputations(job):
                train = replace(
                    job.train,
                    micro_batch=micro_batch,
                    zero_stage=zero,
                    recompute=recompute,
                    recompute_layers=0,
                    sequence_parallel=parallel.tp > 1,
                )
                chosen = replace(parallel, schedule=schedule, vpp=vpp)
                yield _job(job, train, chosen)


def _schedules(
    job: Job, pp: int, micro_batches: int, schedules: Sequence[str], rejected: Counter[str]
) -> Iterator[tuple[str, int]]:
    if pp == 1:
        yield "1f1b", 1
        return
    for name in schedules:
        chunks = 2 if name == "zb-v" else 1
        if name == "interleaved":
            yield from _interleavings(job, pp, micro_batches, rejected)
        elif name == "dualpipe" and pp % 2:
            rejected["dualpipe pairs stages, and their number is odd"] += 1
        elif job.model.layers < pp * chunks:
            rejected["too few layers for so many chunks"] += 1
        else:
            yield name, chunks


def _interleavings(
    job: Job, pp: int, micro_batches: int, rejected: Counter[str]
) -> Iterator[tuple[str, int]]:
    for vpp in (2, 4, 8):
        if job.model.layers < pp * vpp:
            rejected["too few layers for so many chunks"] += 1
        elif micro_batches % pp:
            rejected["interleaving needs micro-batches in rounds of pp"] += 1
        else:
            yield "interleaved", vpp


def _zero_stages(parallel: Parallel) -> tuple[int, ...]:
    """Sharding the optimizer's state costs nothing, so stage 0 is left to single replicas; stages 2 and 3
    send in every micro-batch, which no pipeline can afford."""
    if parallel.dp * parallel.cp == 1:
        return (0,)
    return (1, 2, 3) if parallel.pp == 1 else (1,)


def _recomputations(job: Job) -> tuple[str, ...]:
    """Flash attention leaves selective recomputation nothing to drop."""
    return ("none", "full") if job.train.flash_attention else ("none", "selective", "full")


def _job(job: Job, train: Train, parallel: Parallel) -> Job:
    hardware = replace(job.hardware, n_gpus=parallel.world_size)
    return Job(model=job.model, train=train, parallel=parallel, hardware=hardware)
