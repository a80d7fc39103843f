"""Time of one optimizer step: the pipeline with its stages' real costs, what communication leaves exposed.

The pipeline's length is the closed form of its schedule, with the slowest stage setting the pace and the
others filling and draining it; for equal stages it equals the simulated table
(:mod:`pdtlib.plan.schedule`).
"""

from dataclasses import dataclass

from pdtlib.plan.chunks import num_layers, num_recomputed
from pdtlib.plan.ledger import block_bytes, element_bytes
from pdtlib.plan.params import layer_params, stages
from pdtlib.plan.spec import Job
from pdtlib.plan.states import engine_accounting
from pdtlib.plan.time.collectives import collective_s
from pdtlib.plan.time.kernels import matmul_s, moved_s
from pdtlib.plan.time.layer import Work, layer_time
from pdtlib.plan.time.machine import System


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, and what they are spent on; the parts sum to ``step_s``.

    ``compute_s`` is the busiest stage's: layers, recomputation, loss, optimizer and the software's fixed
    part. ``exposed_s`` is communication that nothing hides, by axis. ``bubble_s`` is the pipeline's.
    """

    step_s: float
    compute_s: float
    bubble_s: float
    bubble_fraction: float
    exposed_s: dict[str, float]
    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True)
class StageWork:
    """One micro-batch on one stage. ``backward`` includes recomputation and the weights' part, ``weight``."""

    forward: Work
    backward: Work
    weight: Work

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total


def stage_work(job: Job, stage: int, *, system: System, fewer_at_ends: int = 0) -> StageWork:
    """What a micro-batch costs on this stage, all its chunks together.

    ``fewer_at_ends`` layers are taken from the first and the last of several stages, which have the embedding
    and the head to carry.
    """
    layers = num_layers(job, stage)
    if stage in (0, job.parallel.pp - 1) and job.parallel.pp > 1:
        layers = max(0, layers - fewer_at_ends)
    again = min(layers, num_recomputed(job, stage))
    return _work(job, layers, again, stage == 0, stage == job.parallel.pp - 1, system)


def stages_work(job: Job, *, system: System, fewer_at_ends: int = 0) -> list[StageWork]:
    """:func:`stage_work` of every stage; stages alike are worked out once."""
    alike: dict[tuple[int, int, bool, bool], StageWork] = {}
    found = []
    for stage in range(job.parallel.pp):
        ends = (stage == 0, stage == job.parallel.pp - 1)
        kind = (num_layers(job, stage), num_recomputed(job, stage), *ends)
        if kind not in alike:
            alike[kind] = stage_work(job, stage, system=system, fewer_at_ends=fewer_at_ends)
        found.append(alike[kind])
    return found


def _work(job: Job, layers: int, again: int, first: bool, last: bool, system: System) -> StageWork:
    times = layer_time(job, system=system)
    forward, weight = times.forward * layers, times.weight * layers
    backward = times.backward * layers + times.again * again
    if last:
        head_forward, head_backward, head_weight = _head(job, system)
        forward, backward, weight = forward + head_forward, backward + head_backward, weight + head_weight
    if first:
        touched = Work(moved_s(3 * block_bytes(job), chip=system.chip, passes=system.software.passes))
        forward, backward = forward + touched, backward + touched
    return StageWork(forward, backward, weight)


def _head(job: Job, system: System) -> tuple[Work, Work, Work]:
    """The product with the output embedding and the loss: forwards, backwards, and its weights' part."""
    model, tp, chip = job.model, job.parallel.tp, system.chip
    tokens = max(1, job.train.micro_batch * model.seq // job.parallel.cp)
    peak = chip.matmul_flops / (8 if job.train.precision == "fp32" else 1) * system.software.matmul_share
    columns = -(-model.vocab // tp)
    out = matmul_s(tokens, columns, model.hidden, chip=chip, flops=peak)
    back = matmul_s(tokens, model.hidden, columns, chip=chip, flops=peak)
    weight = matmul_s(model.hidden, columns, tokens, chip=chip, flops=peak)
    logits = tokens * columns
    # Forwards: written in 16 bit, read, written and read in fp32; backwards: read and written in fp32, then
    # 16 bit.
    loss_forward = moved_s(logits * (2 * element_bytes(job) + 8), chip=chip, passes=system.software.passes)
    loss_backward = moved_s(logits * (8 + 2 * element_bytes(job)), chip=chip, passes=system.software.passes)
    return Work(out + loss_forward), Work(back + weight + loss_backward), Work(weight)


def step_time(job: Job, *, system: System, fewer_at_ends: int = 0) -> StepTime:
    """Seconds of one step of ``job`` on ``system``; for ``fewer_at_ends`` see :func:`stage_work`."""
    parallel, m = job.parallel, job.gradient_accumulation
    work = stages_work(job, system=system, fewer_at_ends=fewer_at_ends)
    slowest = max(work, key=lambda stage: stage.total)
    send_s, exposed_send_s = _sends(job, system)
    bubble_s = _bubble_s(job, work, slowest) + (2 * (parallel.pp - 1) * send_s if parallel.pp > 1 else 0.0)
    pace = slowest.forward + slowest.backward
    optimizer_s = _optimizer_s(job, system)
    compute_s = m * pace.compute_s + optimizer_s + system.software.step_s
    exposed = {
        "dp": _data_parallel_s(job, slowest, system),
        "tp": m * pace.tp_s,
        "pp": m * exposed_send_s,
        "cp": m * pace.cp_s,
        "ep": m * pace.ep_s,
    }
    return StepTime(
        step_s=compute_s + bubble_s + sum(exposed.values()),
        compute_s=compute_s,
        bubble_s=bubble_s,
        bubble_fraction=bubble_fraction(job, work),
        exposed_s=exposed,
        forward_s=slowest.forward.total,
        backward_s=slowest.backward.total,
        optimizer_s=optimizer_s,
    )


def bubble_fraction(job: Job, work: list[StageWork] | None = None) -> float:
    """Idle share of stages x pipeline time, without transfers; stages are equal where ``work`` is not given.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "gpt2"}, "train": {"global_batch": 2}, "parallel": {"pp": 4}}
    >>> round(bubble_fraction(from_dict(tables)), 3)  # (p-1) / (m+p-1)
    0.6
    """
    if work is None:
        work = [StageWork(Work(1.0), Work(2.0), Work(1.0))] * job.parallel.pp
    slowest = max(work, key=lambda stage: stage.total)
    m = job.gradient_accumulation
    length = m * slowest.total + _bubble_s(job, work, slowest)
    return 1 - m * sum(stage.total for stage in work) / (len(work) * length)


def _bubble_s(job: Job, work: list[StageWork], slowest: StageWork) -> float:
    """Idle time of the slowest stage while the pipeline fills and drains."""
    others = len(work) - 1
    if not others:
        return 0.0
    whole = sum(stage.total for stage in work) - slowest.total
    weight = sum(stage.weight.total for stage in work) - slowest.weight.total
    schedule = job.parallel.schedule
    if schedule in ("gpipe", "1f1b"):
        return whole
    if schedule == "interleaved":
        return whole / job.parallel.vpp
    if schedule == "zb-h1":  # (p-1)(T_F + T_B - T_W), where T_B is without the weights' part
        return whole - 2 * weight
    if schedule == "zb-h2":
        return max(0.0, whole - 3 * weight)
    if schedule == "zb-v":  # nothing idles where the three parts are equal
        return max(0.0, whole - 3 * weight) / 2
    # dualpipe: (p/2 - 1)(F&B + B - 3W), with F&B as long as both and B the whole backward pass
    forward = sum(stage.forward.total for stage in work) - slowest.forward.total
    pairs = (job.parallel.pp / 2 - 1) / others
    return max(0.0, pairs * (whole + (whole - forward) - 3 * weight))


def _sends(job: Job, system: System) -> tuple[float, float]:
    """Seconds of one send between stages, and of those of one micro-batch that stay exposed."""
    parallel = job.parallel
    if parallel.pp == 1:
        return 0.0, 0.0
    size = (
        block_bytes(job) / parallel.tp
    )  # split over the tensor-parallel ranks (Narayanan 2021, section 4.1)
    stage_ranks = parallel.tp * parallel.cp * parallel.dp
    near = 2 if stage_ranks * 2 <= system.gpus_per_node else 1
    send_s = collective_s("send", size, 2, fabric=system.links, ranks_per_node=near)
    return send_s, 2 * parallel.vpp * send_s * (1 - system.software.overlap_pp)


def _largest_stage_params(job: Job) -> float:
    return max(stage.params for stage in stages(job)) / job.parallel.tp


def _optimizer_s(job: Job, system: System) -> float:
    """AdamW moves gradient, master copy, moments and working copy; the norm reads the gradient too."""
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    shared = job.parallel.dp * job.parallel.cp if job.train.zero_stage else 1
    moved = 2 * accounting.optimizer + 2 * accounting.grads + accounting.params
    return moved_s(_largest_stage_params(job) / shared * moved, chip=system.chip)


def _data_parallel_s(job: Job, slowest: StageWork, system: System) -> float:
    """Seconds that gradients and parameters keep the step waiting."""
    ranks = job.parallel.dp * job.parallel.cp
    if ranks == 1:
        return 0.0
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    params, overlap = _largest_stage_params(job), system.software.overlap_dp

    def seconds(collective: str, width: float) -> float:
        near = max(1, system.gpus_per_node // job.parallel.tp)
        return collective_s(collective, params * width, ranks, fabric=system.links, ranks_per_node=near)

    if job.train.zero_stage == 3:
        return _sharded_s(job, slowest, system)
    if job.train.zero_stage == 0:
        reduce, gather, reductions = seconds("all_reduce", accounting.grads), 0.0, 1
    else:
        reduce, gather = seconds("reduce_scatter", accounting.grads), seconds("all_gather", accounting.params)
        reductions = job.gradient_accumulation if job.train.zero_stage == 2 else 1
    hidden = overlap * slowest.backward.total, overlap * slowest.forward.total
    return reductions * max(0.0, reduce - hidden[0]) + max(0.0, gather - hidden[1])


def _sharded_s(job: Job, slowest: StageWork, system: System) -> float:
    """ZeRO-3: layers are gathered one ahead, gradients reduced one behind; the excess waits."""
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    ranks = job.parallel.dp * job.parallel.cp
    near = max(1, system.gpus_per_node // job.parallel.tp)
    layers = max(num_layers(job, stage) for stage in range(job.parallel.pp))

    def seconds(collective: str, num_bytes: float) -> float:
        return collective_s(collective, num_bytes, ranks, fabric=system.links, ranks_per_node=near)

    each = layer_params(job.model) / job.parallel.tp
    gather = seconds("all_gather", each * accounting.params)
    reduce = seconds("reduce_scatter", each * accounting.grads)
    overlap = system.software.overlap_dp
    forward = max(0.0, gather - overlap * slowest.forward.total / layers)
    again = gather if job.train.reshard_after_forward else 0.0
    backward = max(0.0, again + reduce - overlap * slowest.backward.total / layers)
    rest = _largest_stage_params(job) - each * layers
    root = seconds("all_gather", rest * accounting.params) + seconds(
        "reduce_scatter", rest * accounting.grads
    )
    return job.gradient_accumulation * (layers * (forward + backward) + gather + (1 - overlap) * root)
