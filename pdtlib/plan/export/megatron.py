"""A job as Megatron-LM's flags (megatron-core 0.12 and later, ``pretrain_gpt.py``)."""

from collections.abc import Iterator

from pdtlib.plan.batch import nearest_batches
from pdtlib.plan.export.common import Export, Rules, recomputes_a_part
from pdtlib.plan.spec import Job

Flag = tuple[str, object]
SHARDED = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}


def to_megatron(job: Job) -> Export:
    """``megatron.args``, a flag a line, for ``torchrun ... pretrain_gpt.py $(cat megatron.args)``."""
    _check(job)
    lines = []
    for name, value in (*_model(job), *_train(job), *_parallel(job)):
        lines.append(f"--{name}" if value is True else f"--{name} {value}")
    notes = (
        f"launch {job.parallel.world_size} processes; data parallelism takes what the other degrees leave: "
        f"{job.parallel.dp}",
        "tokenizer, data and output paths are yours to add",
        "CUDA_DEVICE_MAX_CONNECTIONS: "
        + ("must not be 1" if job.train.zero_stage > 1 else "set it to 1 with tp or cp before Blackwell"),
    )
    return Export({"megatron.args": "\n".join(lines) + "\n"}, notes)


def _model(job: Job) -> Iterator[Flag]:
    model = job.model
    yield "num-layers", model.layers
    yield "hidden-size", model.hidden
    yield "ffn-hidden-size", model.ffn
    yield "num-attention-heads", model.heads
    yield "kv-channels", model.head_dim
    if model.kv_heads != model.heads:
        yield "group-query-attention", True
        yield "num-query-groups", model.kv_heads
    yield "seq-length", model.seq
    yield "max-position-embeddings", model.seq
    yield "position-embedding-type", "rope" if model.positions == "rotary" else "learned_absolute"
    if model.positions == "rotary":
        yield "rotary-base", int(model.rope_theta)
    yield "normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    yield "norm-epsilon", model.norm_eps
    if model.activation == "swiglu":
        yield "swiglu", True
    if not model.tied_embeddings:
        yield "untie-embeddings-and-output-weights", True
    if model.biases != "all":
        yield "disable-bias-linear", True
    if model.biases == "qkv":
        yield "add-qkv-bias", True
    if model.qk_norm:
        yield "qk-layernorm", True
    yield "attention-dropout", model.dropout
    yield "hidden-dropout", model.dropout
    yield "vocab-size", model.vocab
    yield "make-vocab-size-divisible-by", 1
    if model.moe is not None:
        yield "num-experts", model.moe.experts
        yield "moe-router-topk", model.moe.top_k
        yield "moe-ffn-hidden-size", model.moe.ffn
        yield "moe-router-load-balancing-type", "aux_loss" if model.moe.aux_loss else "none"
        if model.moe.aux_loss:
            yield "moe-aux-loss-coeff", model.moe.aux_loss
        if model.moe.capacity_factor:
            yield "moe-expert-capacity-factor", model.moe.capacity_factor


def _train(job: Job) -> Iterator[Flag]:
    train = job.train
    yield "micro-batch-size", train.micro_batch
    yield "global-batch-size", train.global_batch
    yield "train-iters", train.steps
    yield "lr", train.learning_rate
    yield "lr-warmup-iters", train.warmup_steps
    yield "weight-decay", train.weight_decay
    yield "clip-grad", train.clip_grad_norm
    yield "seed", train.seed
    if train.precision in ("bf16", "fp8"):
        yield "bf16", True
    if train.precision == "fp16":
        yield "fp16", True
    if train.precision == "fp8":
        yield "fp8-format", "hybrid"
    if train.grad_precision == "fp32" and train.precision != "fp32":
        yield "accumulate-allreduce-grads-in-fp32", True
    elif train.precision in ("bf16", "fp8"):
        yield "grad-reduce-in-bf16", True  # otherwise bf16 takes fp32 gradients by itself
    yield "attention-backend", "flash" if train.flash_attention else "unfused"
    if train.recompute == "full":
        yield "recompute-granularity", "full"
        # By blocks, the first so many layers of each chunk; uniformly, every layer by itself.
        yield "recompute-method", "block" if train.recompute_layers else "uniform"
        yield "recompute-num-layers", train.recompute_layers or 1
    elif train.recompute == "selective":
        yield "recompute-granularity", "selective"


def _parallel(job: Job) -> Iterator[Flag]:
    parallel, stage = job.parallel, job.train.zero_stage
    yield "tensor-model-parallel-size", parallel.tp
    yield "pipeline-model-parallel-size", parallel.pp
    if parallel.vpp > 1:
        yield "num-virtual-stages-per-pipeline-rank", parallel.vpp
    yield "context-parallel-size", parallel.cp
    if parallel.cp > 1:
        yield "cp-comm-type", "p2p" if parallel.context == "ring" else "a2a"
    if parallel.ep > 1:
        yield "expert-model-parallel-size", parallel.ep
    if job.train.sequence_parallel and parallel.tp > 1:
        yield "sequence-parallel", True
    if stage:
        yield "use-distributed-optimizer", True
    if stage > 1:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", SHARDED[stage]
        yield "ckpt-format", "fsdp_dtensor"  # the only one that its fully sharded parallelism takes


def _check(job: Job) -> None:
    rules, train, parallel = Rules("Megatron-LM"), job.train, job.parallel
    chunks = parallel.pp * parallel.vpp
    rules.refuse(
        job.model.layers % chunks != 0,
        "parallel.pp",
        f"{job.model.layers} layers must be a multiple of pp x vpp = {chunks}",
        *(pp for pp in range(1, job.model.layers + 1) if job.model.layers % (pp * parallel.vpp) == 0),
    )
    rules.refuse(
        parallel.pp > 1 and parallel.schedule not in ("1f1b", "interleaved"),
        "parallel.schedule",
        f"its schedules are 1F1B and its interleaved form, not {parallel.schedule}",
        "1f1b",
        "interleaved",
    )
    micro_batches = job.gradient_accumulation
    rules.refuse(
        parallel.pp > 1 and parallel.vpp > 1 and micro_batches % parallel.pp != 0,
        "train.global_batch",
        f"interleaving takes rounds of pp = {parallel.pp} micro-batches, and there are {micro_batches}",
        *nearest_batches(train.global_batch, micro_batch=train.micro_batch * parallel.pp, dp=parallel.dp),
    )
    rules.refuse(
        train.zero_stage > 1 and parallel.pp > 1,
        "train.zero_stage",
        "sharding of gradients and parameters does not go with pipelines here",
        0,
        1,
    )
    rules.refuse(
        train.precision == "fp32" and train.zero_stage > 1,
        "train.zero_stage",
        "fully sharded data parallelism needs 16-bit parameters",
        0,
        1,
    )
    rules.refuse(
        parallel.cp > 1 and job.model.seq % (2 * parallel.cp) != 0,
        "model.seq",
        f"{job.model.seq} tokens are no multiple of 2 x cp = {2 * parallel.cp}",
    )
    rules.refuse(
        train.precision == "fp16" and parallel.ep > 1,
        "train.precision",
        "expert parallelism does not go with fp16",
        "bf16",
        "fp32",
    )
    rules.refuse(
        train.flash_attention and train.precision == "fp32",
        "train.flash_attention",
        "its flash attention takes 16-bit numbers",
        False,
    )
    rules.refuse(
        train.recompute == "selective" and recomputes_a_part(job),
        "train.recompute_layers",
        "selective recomputation is of all layers",
    )
    rules.refuse(
        job.model.positions == "rotary" and job.model.rope_theta % 1 != 0,
        "model.rope_theta",
        f"the base of its rotary positions is a whole number, not {job.model.rope_theta:g}",
        int(job.model.rope_theta),
    )
    rules.refuse(
        job.model.rope_scaling is not None,
        "model.rope_scaling",
        "scaled rotary positions are not exported",
    )
    rules.refuse(
        train.warmup_steps >= train.steps,
        "train.warmup_steps",
        f"warm-up of {train.warmup_steps} steps must end before step {train.steps}",
        train.steps - 1,
    )
    rules.refuse(
        train.sequence_parallel is False and parallel.tp > 1 and job.model.moe is not None,
        "train.sequence_parallel",
        "experts with tensor parallelism need sequence parallelism",
        True,
    )
    rules.check()
