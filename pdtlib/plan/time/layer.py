"""Time of one Transformer layer on one rank: forward, backward, and what recomputation runs again."""

from dataclasses import dataclass
from functools import lru_cache

from pdtlib.plan.ledger import block_bytes, element_bytes
from pdtlib.plan.spec import Job, Parallel, Train
from pdtlib.plan.time.collectives import collective_s
from pdtlib.plan.time.constants import EXPERT_PASSES, HEAD_SIZE_POWER
from pdtlib.plan.time.kernels import matmul_s, moved_s
from pdtlib.plan.time.machine import System


@dataclass(frozen=True)
class Work:
    """Seconds of computation and of exposed communication, for one micro-batch."""

    compute_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0

    @property
    def total(self) -> float:
        return self.compute_s + self.tp_s + self.cp_s + self.ep_s

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.compute_s + other.compute_s,
            self.tp_s + other.tp_s,
            self.cp_s + other.cp_s,
            self.ep_s + other.ep_s,
        )

    def __mul__(self, times: float) -> "Work":
        return Work(self.compute_s * times, self.tp_s * times, self.cp_s * times, self.ep_s * times)


@dataclass(frozen=True)
class LayerTime:
    """One layer and one micro-batch. ``backward`` includes the weights' part, which is ``weight`` alone."""

    forward: Work
    backward: Work
    again: Work
    weight: Work


def products(job: Job) -> tuple[tuple[int, int, int, int], ...]:
    """The layer's products with weights, forwards: (batch, m, n, k), on one rank."""
    model, parallel, tp = job.model, job.parallel, job.parallel.tp
    tokens = max(1, job.train.micro_batch * model.seq // parallel.cp)
    query = model.heads * model.head_dim // tp
    key = max(model.kv_heads // tp, 1) * model.head_dim
    first = 2 if model.activation == "swiglu" else 1  # gate and up are one product
    attention = ((1, tokens, query + 2 * key, model.hidden), (1, tokens, model.hidden, query))
    if model.moe is None:
        inner = model.ffn // tp
        return (*attention, (1, tokens, first * inner, model.hidden), (1, tokens, model.hidden, inner))
    # Every rank of the expert group sends top_k copies of its tokens out and gets as many back.
    local = max(1, model.moe.experts // parallel.ep)
    each = max(1, tokens * model.moe.top_k // local)
    inner = max(1, model.moe.ffn // tp)
    return (
        *attention,
        (1, tokens, model.moe.experts, model.hidden),
        (local, each, first * inner, model.hidden),
        (local, each, model.hidden, inner),
    )


def layer_time(job: Job, *, system: System) -> LayerTime:
    """The layer's times under the job's precision, attention kernel, recomputation and parallelism."""
    return _layer_time(_only_what_matters(job), system)


def _only_what_matters(job: Job) -> Job:
    """The job without what no layer's time depends on, so that equal layers meet in the cache."""
    parallel = Parallel(
        tp=job.parallel.tp,
        cp=job.parallel.cp,
        ep=job.parallel.ep,
        context=job.parallel.context,
    )
    train = Train(
        micro_batch=job.train.micro_batch,
        precision=job.train.precision,
        recompute=job.train.recompute,
        sequence_parallel=job.train.sequence_parallel,
        flash_attention=job.train.flash_attention,
    )
    return Job(model=job.model, train=train, parallel=parallel)


@lru_cache(maxsize=4096)
def _layer_time(job: Job, system: System) -> LayerTime:
    chip, software = system.chip, system.software
    narrow = job.train.precision == "fp8"
    peak = chip.fp8_flops * software.fp8_share if narrow else chip.matmul_flops
    if job.train.precision == "fp32":
        peak = chip.matmul_flops * chip.fp32_share
    flops = peak * software.matmul_share
    shapes = products(job)
    width = 1 if narrow else element_bytes(job)
    linear = input_grad = weight_grad = 0.0
    for batch, m, n, k in shapes:
        # Experts' products are many small ones, and the host, which waits for the tokens' counts in every
        # layer, cannot launch them ahead.
        least = batch * software.kernel_s if batch > 1 else 0.0
        each = {"chip": chip, "flops": flops, "batch": batch, "element_bytes": width}
        linear += max(least, matmul_s(m, n, k, **each))
        input_grad += max(least, matmul_s(m, k, n, **each))
        weight_grad += max(least, matmul_s(k, n, m, **each))
    core_forward, core_backward, core_kernels = _attention_core(job, system)
    moved = _element_wise_bytes(job)
    touched = moved_s(moved, chip=chip, passes=software.passes)
    kernels = len(shapes) + core_kernels + 8 + (4 if software.passes > 1.5 else 0)
    device_s = linear + core_forward + touched
    forward_s = _bounded(device_s, kernels, system)
    weight_s = _bounded(weight_grad, len(shapes), system)
    device_back_s = input_grad + core_backward + 2 * touched
    rest_s = _bounded(device_back_s, 2 * kernels - len(shapes), system)
    tp_forward, tp_backward = _tensor_parallel(job, system)
    # What keeps the device waiting for the host hides messages, too.
    beside = core_forward + forward_s - device_s, core_backward + rest_s - device_back_s
    cp_forward, cp_backward = _context_parallel(job, system, *beside)
    ep_one_way = _expert_parallel(job, system) * (1 - software.overlap_ep)
    forward = Work(forward_s, tp_forward, cp_forward, ep_one_way)
    again = Work()
    if job.train.recompute == "full":
        again = forward
        if software.stops_early:
            batch, *last = shapes[-1]
            last_s = matmul_s(*last, chip=chip, flops=flops, batch=batch, element_bytes=width)
            needed = max(0.0, linear - last_s) + core_forward + touched
            again = Work(_bounded(needed, kernels - 1, system), tp_forward, cp_forward, ep_one_way)
    elif job.train.recompute == "selective":
        again = Work(0.0 if job.train.flash_attention else core_forward)
    weight = Work(weight_s)
    return LayerTime(forward, Work(rest_s, tp_backward, cp_backward, ep_one_way) + weight, again, weight)


def _bounded(device_s: float, kernels: int, system: System) -> float:
    """The device's time, or the host's to launch the kernels where that is longer."""
    return max(device_s, kernels * system.software.kernel_s)


def _attention_core(job: Job, system: System) -> tuple[float, float, int]:
    """Seconds forwards and backwards of scores, softmax and weighted sum, and the number of kernels."""
    model, train, chip = job.model, job.train, system.chip
    heads = max(1, model.heads // job.parallel.tp) * train.micro_batch
    rows, columns, d = max(1, model.seq // job.parallel.cp), model.seq, model.head_dim
    base = chip.matmul_flops * system.software.matmul_share
    if train.precision == "fp32":
        base *= chip.fp32_share
    if train.flash_attention:
        # Two products forwards; five backwards, since the scores are computed again.
        share = 0.5 if system.software.skips_masked_half else 1.0
        fill = 1.0 if chip.rates else min(1.0, rows / (rows + 512)) * min(1.0, (d / 128) ** HEAD_SIZE_POWER)
        forward = share * 4 * heads * rows * columns * d / (base * system.software.attention_share * fill)
        return forward, 2.5 * forward * 1.15, 1
    scores = matmul_s(rows, columns, d, chip=chip, flops=base, batch=heads)
    values = matmul_s(rows, d, columns, chip=chip, flops=base, batch=heads)
    square = heads * rows * columns * element_bytes(job)
    passes = 2 + (2.5 if model.dropout > 0 else 0)  # softmax with mask; dropout with its mask
    touched = moved_s(passes * square, chip=chip, passes=system.software.passes)
    return scores + values + touched, 2 * (scores + values) + 1.2 * touched, 4


def _element_wise_bytes(job: Job) -> float:
    """Bytes that norms, residual sums, dropout, rotary turns and the MLP's activation move, forwards."""
    model, tp = job.model, job.parallel.tp
    tokens = job.train.micro_batch * model.seq / job.parallel.cp
    split = tp if job.train.sequence_parallel else 1
    block = tokens * model.hidden * element_bytes(job) / split
    heads = tokens * (model.heads + model.kv_heads) * model.head_dim * element_bytes(job) / tp
    copies = 1 if model.moe is None else model.moe.top_k
    inner = copies * tokens * model.ffn * element_bytes(job) / tp
    moved = 2 * 2 * block  # norms
    moved += 2 * (3 + (0.5 if model.dropout > 0 else 0)) * block  # residual sums, with dropout masks
    moved += 2 * heads if model.positions == "rotary" else 0
    moved += (3 if model.activation == "swiglu" else 2) * inner
    if model.moe is not None:
        # Permuted, sorted by expert, quantised, padded, weighted, put back in order: see EXPERT_PASSES.
        moved += EXPERT_PASSES * copies * tokens * model.hidden * element_bytes(job) / tp
    return moved


def _tensor_parallel(job: Job, system: System) -> tuple[float, float]:
    """Exposed seconds of the layer's tensor-parallel messages, forwards and backwards."""
    tp = job.parallel.tp
    if tp == 1:
        return 0.0, 0.0

    def seconds(collective: str) -> float:
        return collective_s(
            collective, block_bytes(job), tp, fabric=system.links, ranks_per_node=system.gpus_per_node
        )

    if job.train.sequence_parallel:
        one_way = 2 * (seconds("all_gather") + seconds("reduce_scatter"))
    else:
        one_way = 2 * seconds("all_reduce")
    back = max(system.software.overlap_tp, system.software.overlap_tp_back)
    return one_way * (1 - system.software.overlap_tp), one_way * (1 - back)


def _context_parallel(job: Job, system: System, forward: float, backward: float) -> tuple[float, float]:
    """Exposed seconds: ring steps hide behind the attention on the block before; Ulysses hides nothing."""
    model, parallel, cp = job.model, job.parallel, job.parallel.cp
    if cp == 1:
        return 0.0, 0.0
    tokens = job.train.micro_batch * model.seq / cp
    width = model.head_dim * element_bytes(job)
    key = tokens * max(model.kv_heads / parallel.tp, 1) * width
    query = tokens * model.heads / parallel.tp * width
    near = max(1, system.gpus_per_node // parallel.tp)

    def seconds(collective: str, size: float) -> float:
        return collective_s(collective, size, cp, fabric=system.links, ranks_per_node=near)

    if parallel.context == "ulysses":
        one_way = 2 * seconds("all_to_all", query) + 2 * seconds("all_to_all", key)
        return one_way, one_way
    one_way = (cp - 1) * seconds("send", 2 * key)
    hidden = (cp - 1) / cp
    return max(0.0, one_way - hidden * forward), max(0.0, 2 * one_way - hidden * backward)


def _expert_parallel(job: Job, system: System) -> float:
    """Seconds of the two all-to-alls of one direction."""
    if job.model.moe is None or job.parallel.ep == 1:
        return 0.0
    near = max(1, system.gpus_per_node // job.parallel.tp)
    block = block_bytes(job) / (job.parallel.tp if job.train.sequence_parallel else 1)
    top_k, ep, links = job.model.moe.top_k, job.parallel.ep, system.links
    if ep <= near:
        return 2 * collective_s("all_to_all", block * top_k, ep, fabric=links, ranks_per_node=near)
    # A token crosses the network once for every other node that an expert of its is on, and is copied there.
    nodes = ep / near
    reached = (nodes - 1) * (1 - (1 - 1 / nodes) ** top_k)
    out = block * reached * ep / (ep - near)  # of which all_to_all sends the part that leaves the node
    inside = collective_s("all_to_all", block * top_k, near, fabric=links, ranks_per_node=near)
    across = collective_s("all_to_all", out, ep, fabric=links, ranks_per_node=near)
    return 2 * (inside + across)
