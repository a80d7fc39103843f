"""The rules that tie a job's fields together: what divides what, what needs what."""

import math
from collections.abc import Callable, Iterator, Set

from pdtlib.plan import presets
from pdtlib.plan.batch import nearest_batches
from pdtlib.plan.spec import Job, Problem


def check_layout(job: Job, *, unknown: Set[str] = frozenset()) -> list[Problem]:
    """Every rule that the job breaks; its fields must each be of the right kind already.

    ``unknown`` are the dotted paths of fields whose value is not known, so that a rule which reads one of
    them has nothing to say. A section's name stands for all its fields.
    """
    return [
        problem
        for rule, reads in RULES.items()
        if not any(field in unknown or field.partition(".")[0] in unknown for field in reads)
        for problem in rule(job)
    ]


def divisors(number: int, limit: int = 64) -> tuple[int, ...]:
    """The divisors of ``number`` up to ``limit``, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def _multiples(value: int, unit: int) -> tuple[int, ...]:
    return nearest_batches(value, micro_batch=unit, dp=1)


def _heads(job: Job) -> Iterator[Problem]:
    model = job.model
    if model.heads % model.kv_heads:
        message = f"{model.kv_heads} KV heads cannot be shared evenly by {model.heads} heads"
        yield Problem("model.kv_heads", message, divisors(model.heads, model.heads))
    if model.head_dim < 1:
        yield Problem("model.heads", f"{model.heads} heads are more than the hidden size {model.hidden}")
    elif model.head_dim == model.hidden // model.heads and model.hidden % model.heads:
        message = f"{model.hidden} is not a multiple of {model.heads} heads; give head_dim or change hidden"
        yield Problem("model.hidden", message, _multiples(model.hidden, model.heads))
    elif model.positions == "rotary" and model.head_dim % 2:
        message = f"rotary positions turn pairs, so head_dim must be even, not {model.head_dim}"
        yield Problem("model.head_dim", message, _multiples(model.head_dim, 2))


def _rope_scaling(job: Job) -> Iterator[Problem]:
    model, scaling = job.model, job.model.rope_scaling
    if scaling is None:
        return
    if model.positions != "rotary":
        yield Problem(
            "model.rope_scaling", f"positions are {model.positions}, and only rotary ones are scaled"
        )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        message = f"must be above low_freq_factor = {scaling.low_freq_factor:g}"
        yield Problem("model.rope_scaling.high_freq_factor", message)


def _moe_sizes(job: Job) -> Iterator[Problem]:
    model, moe = job.model, job.model.moe
    if moe is None:
        return
    if moe.top_k > moe.experts:
        message = f"a token cannot go through {moe.top_k} of {moe.experts} experts"
        yield Problem("model.moe.top_k", message, tuple(range(1, min(moe.experts, 16) + 1)))
    if model.ffn != moe.ffn:
        message = f"every layer is a mixture of experts, whose size is moe.ffn = {moe.ffn}"
        yield Problem("model.ffn", message, (moe.ffn,))


def _hardware(job: Job) -> Iterator[Problem]:
    hardware = job.hardware
    known = ("cpu", *presets.GPUS)
    if hardware.gpu not in known and hardware.measured is None:
        yield Problem("hardware.gpu", f"{hardware.gpu!r} is not a known GPU", known)
    if hardware.inter and hardware.inter not in presets.LINKS:
        yield Problem("hardware.inter", f"{hardware.inter!r} is not a known link", tuple(presets.LINKS))
    if hardware.measured is not None and not hardware.measured.compute:
        yield Problem("hardware.measured.compute", "holds no rates; run pdt calibrate again")
    spread = hardware.n_gpus > hardware.gpus_per_node
    if hardware.measured is not None and spread and not hardware.inter:
        message = (
            f"{hardware.n_gpus} ranks need nodes of {hardware.gpus_per_node}: name the link between them"
        )
        yield Problem("hardware.inter", message, tuple(presets.LINKS))


def _fp8(job: Job) -> Iterator[Problem]:
    gpu = job.hardware.gpu
    able = {name for name, item in presets.GPUS.items() if item.peak_fp8_flops is not None}
    if job.train.precision == "fp8" and gpu not in able:
        yield Problem("train.precision", f"{gpu} has no fp8 units", ("fp32", "bf16", "fp16"))


def _world(job: Job) -> Iterator[Problem]:
    parallel, n_gpus = job.parallel, job.hardware.n_gpus
    if parallel.world_size != n_gpus:
        product = f"dp x tp x pp x cp = {parallel.dp} x {parallel.tp} x {parallel.pp} x {parallel.cp}"
        yield Problem(
            "hardware.n_gpus",
            f"{n_gpus} processes, but {product} = {parallel.world_size}",
            (parallel.world_size,),
        )


def _valid_tp(job: Job) -> tuple[int, ...]:
    model = job.model
    common = math.gcd(model.heads, model.ffn)
    return tuple(n for n in divisors(common) if model.kv_heads % n == 0 or n % model.kv_heads == 0)


def _attention_split(job: Job) -> Iterator[Problem]:
    model, tp = job.model, job.parallel.tp
    if model.heads % tp:
        yield Problem("parallel.tp", f"{model.heads} heads cannot be split over {tp} ranks", _valid_tp(job))
    elif model.kv_heads % tp and tp % model.kv_heads:
        message = f"{model.kv_heads} KV heads can be neither split over nor repeated on {tp} ranks"
        yield Problem("parallel.tp", message, _valid_tp(job))


def _matrix_split(job: Job) -> Iterator[Problem]:
    model, tp = job.model, job.parallel.tp
    if model.ffn % tp:
        yield Problem("parallel.tp", f"an MLP of {model.ffn} cannot be split over {tp} ranks", _valid_tp(job))


def _sequence_split(job: Job) -> Iterator[Problem]:
    seq, ranks = job.model.seq, job.parallel.cp * job.parallel.tp
    if job.train.sequence_parallel and seq % job.parallel.cp == 0 and seq % ranks:
        message = f"sequence parallelism cannot split {seq} positions over cp x tp = {ranks}"
        yield Problem("model.seq", message, _multiples(seq, ranks))


def _context(job: Job) -> Iterator[Problem]:
    model, cp, tp = job.model, job.parallel.cp, job.parallel.tp
    if cp == 1:
        return
    ring = job.parallel.context == "ring"
    if model.seq % (2 * cp if ring else cp):
        pieces = f"2 x cp = {2 * cp} pieces, two a rank" if ring else f"{cp} ranks"
        message = f"{model.seq} positions cannot be split into {pieces}"
        yield Problem("parallel.cp", message, divisors(model.seq // 2 if ring else model.seq))
    heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
    if not ring and model.heads % tp == 0 and (heads % cp or kv_heads % cp):
        message = (
            f"Ulysses deals out the {heads} heads and {kv_heads} KV heads of a tensor-parallel rank, which "
            f"{cp} ranks cannot share evenly"
        )
        yield Problem("parallel.cp", message, divisors(math.gcd(heads, kv_heads)))


def _context_dropout(job: Job) -> Iterator[Problem]:
    if job.parallel.cp > 1 and job.model.dropout > 0:
        message = f"attention that is split over {job.parallel.cp} ranks has no dropout"
        yield Problem("model.dropout", message, (0.0,))


def _stages(job: Job) -> Iterator[Problem]:
    layers, parallel = job.model.layers, job.parallel
    chunks = parallel.pp * parallel.vpp
    if parallel.pp > layers:
        message = f"{layers} layers cannot fill {parallel.pp} stages"
        yield Problem("parallel.pp", message, tuple(range(1, min(layers, 64) + 1)))
    elif parallel.pp == 1 and parallel.vpp > 1:
        message = f"one stage has nothing to interleave its {parallel.vpp} chunks with"
        yield Problem("parallel.vpp", message, (1,))
    elif chunks > layers:
        message = f"{layers} layers cannot fill pp x vpp = {parallel.pp} x {parallel.vpp} = {chunks} chunks"
        yield Problem("parallel.vpp", message, tuple(range(1, layers // parallel.pp + 1)))


def _schedule(job: Job) -> Iterator[Problem]:
    parallel, schedule = job.parallel, job.parallel.schedule
    if parallel.vpp > 1 and schedule not in ("interleaved", "zb-v"):
        message = f"{schedule} runs one chunk a stage, not {parallel.vpp}"
        yield Problem("parallel.schedule", message, ("interleaved",))
    if schedule == "zb-v" and parallel.pp > 1 and parallel.vpp != 2:
        yield Problem("parallel.vpp", f"zb-v runs two chunks a stage, not {parallel.vpp}", (2,))
    if schedule == "dualpipe" and parallel.pp > 1 and parallel.pp % 2:
        message = f"dualpipe pairs stages, so it needs an even number of them, not {parallel.pp}"
        yield Problem("parallel.schedule", message, ("1f1b", "zb-h1"))


def _recompute(job: Job) -> Iterator[Problem]:
    train, layers = job.train, job.model.layers
    if train.recompute_layers and train.recompute == "none":
        message = f"{train.recompute_layers} layers to recompute, but recompute is none"
        yield Problem("train.recompute_layers", message)
    elif train.recompute_layers > layers:
        message = f"{train.recompute_layers} layers of each chunk, and the model has {layers}"
        yield Problem("train.recompute_layers", message, tuple(range(1, min(layers, 16) + 1)))


def _experts(job: Job) -> Iterator[Problem]:
    moe, ep = job.model.moe, job.parallel.ep
    if ep == 1:
        return
    if moe is None:
        yield Problem("parallel.ep", "the model has no experts to spread", (1,))
        return
    ranks = job.parallel.dp * job.parallel.cp
    valid = divisors(math.gcd(moe.experts, ranks))
    if moe.experts % ep:
        yield Problem("parallel.ep", f"{moe.experts} experts cannot be spread over {ep} ranks", valid)
    if ranks % ep:
        yield Problem(
            "parallel.ep", f"expert parallelism takes its ranks from dp x cp = {ranks}, not {ep}", valid
        )


def _batch(job: Job) -> Iterator[Problem]:
    train, dp = job.train, job.parallel.dp
    if train.global_batch % (train.micro_batch * dp):
        message = (
            f"{train.global_batch} is not a multiple of "
            f"micro_batch x dp = {train.micro_batch} x {dp} = {train.micro_batch * dp}"
        )
        near = nearest_batches(train.global_batch, micro_batch=train.micro_batch, dp=dp)
        yield Problem("train.global_batch", message, near)


_DEGREES = ("parallel.dp", "parallel.tp", "parallel.pp", "parallel.cp")
_BATCH = ("train.global_batch", "train.micro_batch", "parallel.dp")

RULES: dict[Callable[[Job], Iterator[Problem]], tuple[str, ...]] = {
    # rule: the fields that it reads
    _heads: ("model.hidden", "model.heads", "model.kv_heads", "model.head_dim", "model.positions"),
    _rope_scaling: ("model.rope_scaling", "model.positions"),
    _moe_sizes: ("model.moe", "model.ffn"),
    _hardware: (
        *("hardware.gpu", "hardware.inter", "hardware.measured"),
        *("hardware.n_gpus", "hardware.gpus_per_node"),
    ),
    _fp8: ("hardware.gpu", "train.precision"),
    _world: (*_DEGREES, "hardware.n_gpus"),
    _attention_split: ("model.heads", "model.kv_heads", "parallel.tp"),
    _matrix_split: ("model.ffn", "model.moe", "parallel.tp"),
    _sequence_split: ("model.seq", "train.sequence_parallel", "parallel.tp", "parallel.cp"),
    _context: (
        *("model.seq", "model.heads", "model.kv_heads"),
        *("parallel.tp", "parallel.cp", "parallel.context"),
    ),
    _context_dropout: ("model.dropout", "parallel.cp"),
    _stages: ("model.layers", "parallel.pp", "parallel.vpp"),
    _schedule: ("parallel.pp", "parallel.vpp", "parallel.schedule"),
    _recompute: ("model.layers", "train.recompute", "train.recompute_layers"),
    _experts: ("model.moe", "parallel.ep", "parallel.dp", "parallel.cp"),
    _batch: _BATCH,
}
