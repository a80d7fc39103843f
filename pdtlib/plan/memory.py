"""Memory of a rank of every pipeline stage, term by term: states, activations, logits, buffers.

States are what our engine holds (:mod:`pdtlib.plan.flats`). Activations are the formulas of
:mod:`pdtlib.plan.activations` times the micro-batches that the schedule keeps in flight.
"""

from dataclasses import dataclass, replace

from pdtlib.plan.activations import Setting, layer_bytes, logits_bytes
from pdtlib.plan.activations_cpu import cpu_layer_tensors, cpu_outside_bytes
from pdtlib.plan.chunks import chunks_of, has_first, has_last, num_recomputed
from pdtlib.plan.flats import held_bytes
from pdtlib.plan.sharding import shard_numel
from pdtlib.plan.spec import Job
from pdtlib.plan.whole import whole_bytes


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a pipeline stage.

    ``activations`` are what all micro-batches in flight keep for the backward pass, plus the layer that is
    being recomputed. ``logits`` are the loss's fp32 logits; only the last stage has them. ``buffers`` come
    and go: what ZeRO gathers and reduces, and the 16-bit logits beside the fp32 ones.
    """

    params: float
    grads: float
    optimizer: float
    activations: float
    logits: float
    buffers: float

    @property
    def total(self) -> float:
        return self.params + self.grads + self.optimizer + self.activations + self.logits + self.buffers


def setting_of(job: Job) -> Setting:
    """The job's activation setting, with a GPU's kernels: masks of one byte, silu and product in one."""
    train = job.train
    return Setting(
        micro_batch=train.micro_batch,
        seq=job.model.seq,
        tp=job.parallel.tp,
        cp=job.parallel.cp,
        sequence_parallel=train.sequence_parallel,
        recompute=train.recompute,
        flash_attention=train.flash_attention,
        element_bytes=element_bytes(job),
        ulysses=job.parallel.cp > 1 and job.parallel.context == "ulysses",
    )


def element_bytes(job: Job) -> int:
    """Bytes of an activation's element."""
    return 4 if job.train.precision == "fp32" else 2


def chunks_in_flight(job: Job, stage: int) -> int:
    """Most model chunks of this stage whose activations are kept at one time.

    A chunk is one of the stage's ``vpp`` parts. GPipe keeps every micro-batch; 1F1B at most ``pp - stage``
    (Narayanan 2019); interleaved 1F1B what its warm-up of ``2 (pp - stage - 1) + (vpp - 1) pp`` chunks and
    the one after it fill (Narayanan 2021, section 2.2). ZB-H1 keeps what 1F1B's first stage keeps, on all
    stages; ZB-H2 up to ``2 pp - 1``; ZB-V and DualPipe fill ``2 pp`` and ``2 pp + 2`` half-sized chunks
    (Qi 2024; DeepSeek-V3, Table 2).
    """
    p, v, m = job.parallel.pp, job.parallel.vpp, job.gradient_accumulation
    kept = {
        "gpipe": m,
        "1f1b": p - stage,
        "interleaved": 2 * (p - stage - 1) + (v - 1) * p + 1 if v > 1 else p - stage,
        "zb-h1": p,
        "zb-h2": 2 * p - 1,
        "zb-v": 2 * p if v > 1 else p,
        "dualpipe": 2 * p + 2 if v > 1 else p + 1,
    }[job.parallel.schedule]
    return min(kept, m * v)


def stage_memory(job: Job, stage: int) -> StageMemory:
    """Bytes on a rank of this pipeline stage, counted from 0. DualPipe's ranks hold two stages' states."""
    held = held_bytes(job, stage)
    activations, logits = kept_for_backward(job, stage)
    buffers = float(whole_bytes(job, stage))
    if has_last(job, stage):
        tokens = job.train.micro_batch * job.model.seq / job.parallel.cp
        buffers += tokens * shard_numel(job.model.vocab, job.parallel.tp) * element_bytes(job)
    return StageMemory(
        params=held.params,
        grads=held.grads,
        optimizer=held.optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
    )


def kept_for_backward(job: Job, stage: int) -> tuple[float, float]:
    """Bytes of activations, and of fp32 logits, on a rank of this pipeline stage."""
    model, parallel, setting = job.model, job.parallel, setting_of(job)
    in_flight = chunks_in_flight(job, stage)
    chunks = chunks_of(job, stage)
    whole = one_layer_bytes(job, replace(setting, recompute="none"))
    again = one_layer_bytes(job, setting)
    largest = max(
        (len(chunk.layers) - chunk.recomputed) * whole + chunk.recomputed * again for chunk in chunks
    )
    activations = in_flight * largest + recomputed_layer_bytes(job, stage)
    first, last = has_first(job, stage), has_last(job, stage)
    micro_batches = -(-in_flight // parallel.vpp)
    if any(chunk.recomputed < len(chunk.layers) for chunk in chunks):
        setting = replace(setting, recompute="none")  # what such layers share is kept
    activations += micro_batches * outside_bytes(job, setting, first=first, last=last)
    logits = 0.0
    if last:
        tokens = setting.micro_batch * setting.seq / setting.cp
        logits = micro_batches * logits_bytes(tokens, vocab=model.vocab, tp=parallel.tp)
    return activations, logits


def on_cpu(job: Job) -> bool:
    """Whether the run's kernels are torch's CPU ones, whose saved tensors are known one by one."""
    return job.hardware.gpu == "cpu"


def one_layer_bytes(job: Job, setting: Setting) -> float:
    """Bytes that one layer keeps for its backward pass with the kernels that the job runs on."""
    if on_cpu(job):
        return sum(tensor.bytes for tensor in cpu_layer_tensors(job.model, setting=setting))
    return layer_bytes(job.model, setting=setting)


def outside_bytes(job: Job, setting: Setting, *, first: bool, last: bool) -> float:
    """Bytes kept for a micro-batch outside the layers: embedding's mask, inputs of final norm and head."""
    if on_cpu(job):
        return cpu_outside_bytes(job.model, setting=setting, first=first, last=last)
    elements = setting.micro_batch * setting.seq / setting.cp * job.model.hidden
    if setting.sequence_parallel:
        elements /= setting.tp
    mask = elements * setting.mask_bytes if first and job.model.dropout > 0 else 0.0
    return mask + (2 * elements * setting.element_bytes if last else 0.0)


def recomputed_layer_bytes(job: Job, stage: int = 0) -> float:
    """What a fully recomputed layer keeps while its backward pass runs; 0 on a stage without one."""
    if job.train.recompute != "full" or not num_recomputed(job, stage):
        return 0.0
    return one_layer_bytes(job, replace(setting_of(job), recompute="none"))


def stages_memory(job: Job) -> tuple[StageMemory, ...]:
    """Bytes on a rank of every pipeline stage, first to last."""
    return tuple(stage_memory(job, stage) for stage in range(job.parallel.pp))
