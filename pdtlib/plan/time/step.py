"""Time of one optimizer step: the pipeline with its chunks' real costs, what communication leaves exposed.

The pipeline's length is that of its schedule's table, which the simulator runs
(:mod:`pdtlib.plan.time.pipeline`).
"""

from dataclasses import dataclass

from pdtlib.plan.chunks import layout_of, num_layers, passed_chunks
from pdtlib.plan.ledger import block_bytes
from pdtlib.plan.schedule import Costs, Timeline, build, simulate
from pdtlib.plan.spec import Job
from pdtlib.plan.states import engine_accounting, optimizer_traffic
from pdtlib.plan.time.collectives import collective_s
from pdtlib.plan.time.held import Held, held_layer, held_most
from pdtlib.plan.time.kernels import moved_s
from pdtlib.plan.time.layer import Work
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.pipeline import MOST_ACTIONS, Times, pipeline_s
from pdtlib.plan.time.stage import NO_ENDS, Ends, StageWork, places_work, stages_of


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


def step_time(
    job: Job, *, system: System, fewer_at_ends: Ends = NO_ENDS, most_actions: int = MOST_ACTIONS
) -> StepTime:
    """Seconds of one step of ``job`` on ``system``.

    For ``fewer_at_ends`` see :func:`~pdtlib.plan.time.stage.places_work`; for ``most_actions``, which trades
    exactness for speed, :func:`~pdtlib.plan.time.pipeline.pipeline_s`. With 0 of them no stage waits for
    another, which no real step can better.
    """
    parallel, m = job.parallel, job.gradient_accumulation
    places = places_work(job, system=system, fewer_at_ends=fewer_at_ends)
    work = stages_of(job, places)
    slowest = max(work, key=lambda stage: stage.total)
    send_s, blocked_s = _sends(job, system)
    exposed_send_s = 2 * blocked_s * parallel.vpp
    length_s = m * (slowest.total + exposed_send_s)
    if most_actions:
        length_s = pipeline_s(
            parallel.schedule,
            _times(places, blocked_s),
            micro_batches=m,
            transfer_s=send_s - blocked_s,
            most_actions=most_actions,
        )
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
    bubble_s = max(0.0, length_s - m * (slowest.total + exposed_send_s))
    return StepTime(
        step_s=compute_s + bubble_s + sum(exposed.values()),
        compute_s=compute_s,
        bubble_s=bubble_s,
        bubble_fraction=_idle_share(job, work, length_s - m * exposed_send_s),
        exposed_s=exposed,
        forward_s=slowest.forward.total,
        backward_s=slowest.backward.total,
        optimizer_s=optimizer_s,
    )


def step_timeline(job: Job, *, system: System, micro_batches: int) -> Timeline:
    """The first so many micro-batches of the job's schedule, as a pipeline of their own, in seconds.

    What :func:`step_time` simulates, action by action; for figures. ``job`` must have several stages.
    """
    parallel = job.parallel
    send_s, blocked_s = _sends(job, system)
    table = build(
        parallel.schedule, stages=parallel.pp, microbatches=micro_batches, chunks=layout_of(job).chunks
    )
    places = _times(places_work(job, system=system), blocked_s)
    return simulate(table, Costs.of_places(table, places, transfer=send_s - blocked_s))


def _times(places: list[list[StageWork]], blocked_s: float) -> list[list[Times]]:
    return [[chunk.times(blocked_s=blocked_s) for chunk in chunks] for chunks in places]


def bubble_fraction(job: Job) -> float:
    """Idle share of stages x pipeline time for equal stages whose backward takes twice their forward.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "gpt2"}, "train": {"global_batch": 2}, "parallel": {"pp": 4}}
    >>> round(bubble_fraction(from_dict(tables)), 3)  # (p-1) / (m+p-1)
    0.6
    """
    chunks = layout_of(job).chunks
    passed = len(passed_chunks(job, 0))
    whole = StageWork(Work(1.0), Work(2.0), Work(1.0))
    part = (1.0 / passed, 1.0 / passed, 1.0 / passed)
    length = pipeline_s(
        job.parallel.schedule,
        [[part] * chunks] * job.parallel.pp,
        micro_batches=job.gradient_accumulation,
    )
    return _idle_share(job, [whole] * job.parallel.pp, length)


def _idle_share(job: Job, work: list[StageWork], length_s: float) -> float:
    busy = job.gradient_accumulation * sum(stage.total for stage in work)
    return max(0.0, 1 - busy / (len(work) * length_s))


def _sends(job: Job, system: System) -> tuple[float, float]:
    """Seconds of one send between stages, and the part of them that keeps its rank waiting."""
    parallel = job.parallel
    if parallel.pp == 1:
        return 0.0, 0.0
    size = (
        block_bytes(job) / parallel.tp
    )  # split over the tensor-parallel ranks (Narayanan 2021, section 4.1)
    stage_ranks = parallel.tp * parallel.cp * parallel.dp
    near = 2 if stage_ranks * 2 <= system.gpus_per_node else 1
    send_s = collective_s("send", size, 2, fabric=system.links, ranks_per_node=near)
    return send_s, send_s * (1 - system.software.overlap_pp)


def _optimizer_s(job: Job, system: System) -> float:
    """AdamW moves gradient, master copy, moments and working copy over the memory."""
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    held, zero = held_most(job), job.train.zero_stage > 0
    params = sum(each / (ranks if zero else 1) for each, ranks, _ in held.groups(job))
    moved = optimizer_traffic(accounting) * params
    rate = system.chip.optimizer_bytes_per_s
    return moved / rate if rate else moved_s(moved, chip=system.chip)


def _data_parallel_s(job: Job, slowest: StageWork, system: System) -> float:
    """Seconds that gradients and parameters keep the step waiting."""
    if job.parallel.dp * job.parallel.cp == 1:
        return 0.0
    if job.train.zero_stage == 3:
        return _sharded_s(job, slowest, system)
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    held, overlap = held_most(job), system.software.overlap_dp
    if job.train.zero_stage == 0:
        reduce, gather, reductions = (
            _over_replicas_s("all_reduce", held, accounting.grads, job, system),
            0.0,
            1,
        )
    else:
        reduce = _over_replicas_s("reduce_scatter", held, accounting.grads, job, system)
        gather = _over_replicas_s("all_gather", held, accounting.params, job, system)
        reductions = job.gradient_accumulation if job.train.zero_stage == 2 else 1
    hidden = overlap * slowest.backward.total, overlap * slowest.forward.total
    return reductions * max(0.0, reduce - hidden[0]) + max(0.0, gather - hidden[1])


def _over_replicas_s(collective: str, held: Held, width: float, job: Job, system: System) -> float:
    """Seconds of a collective on ``width`` bytes a parameter over all ranks that hold the same ones."""
    return sum(
        collective_s(collective, params * width, ranks, fabric=system.links, ranks_per_node=near)
        for params, ranks, near in held.groups(job)
    )


def _sharded_s(job: Job, slowest: StageWork, system: System) -> float:
    """ZeRO-3: layers are gathered one ahead, gradients reduced one behind; the excess waits."""
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    layers = max(num_layers(job, stage) for stage in range(job.parallel.pp))
    most, each = held_most(job), held_layer(job)
    gather = _over_replicas_s("all_gather", each, accounting.params, job, system)
    reduce = _over_replicas_s("reduce_scatter", each, accounting.grads, job, system)
    overlap = system.software.overlap_dp
    forward = max(0.0, gather - overlap * slowest.forward.total / layers)
    again = gather if job.train.reshard_after_forward else 0.0
    backward = max(0.0, again + reduce - overlap * slowest.backward.total / layers)
    rest = Held(max(0.0, most.shared - each.shared * layers), 0.0)
    root = _over_replicas_s("all_gather", rest, accounting.params, job, system) + _over_replicas_s(
        "reduce_scatter", rest, accounting.grads, job, system
    )
    return job.gradient_accumulation * (layers * (forward + backward) + gather + (1 - overlap) * root)
