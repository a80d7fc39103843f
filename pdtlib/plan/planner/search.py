"""Rank the layouts: predicted time of those that fit, what bounds the best, what the next loses.

Every layout's memory is worked out, since those that do not fit are counted. Times are looked at best first,
each in steps that cost more and more, and a layout whose lower bound is behind the best is not looked at
again; so the answer is that of timing all of them.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pdtlib.plan import flops, hardware_file
from pdtlib.plan.chunks import chunks_of
from pdtlib.plan.memory import stages_memory
from pdtlib.plan.planner.candidates import USUAL_SCHEDULES, candidates
from pdtlib.plan.spec import SCHEDULES, Job
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.step import StepTime, step_time

_Timed = tuple[float, float, int, Job, StepTime]  # seconds, bytes, order of discovery, layout, its time
# Seconds at least, how they were found, bytes, order of discovery, layout. Of equal seconds the coarser looks
# come first, so that layouts come out in the order of their first look.
_Look = tuple[float, int, float, int, Job]
_WITHOUT_RECOMPUTING, _WITHOUT_WAITING, _FIRST_LOOK = range(3)

FEW_ACTIONS = 256
"""Actions of a pipeline that the first look simulates; see :func:`pdtlib.plan.time.pipeline.pipeline_s`."""
FIRST_LOOK_ERROR = 0.05
"""What the first look may be wrong by; a layout that could still be among the best is timed again."""

ROUNDING = 1e-9
"""What a bound may be off by when its sums are rounded elsewhere."""

OUT_OF_MEMORY = "does not fit in the GPU's memory"
NOT_NEEDED = "recomputes, and fits without"


@dataclass(frozen=True)
class Plan:
    """A layout with its prediction. ``bound_by`` names what it spends most on besides computing."""

    job: Job
    time: StepTime
    memory_bytes: float
    mfu: float
    bound_by: str

    @property
    def tokens_per_s(self) -> float:
        return self.job.train.global_batch * self.job.model.seq / self.time.step_s

    def gpu_hours(self, num_tokens: float) -> float:
        """GPU-hours to train on so many tokens, without failures."""
        return num_tokens / self.tokens_per_s * self.job.parallel.world_size / 3600


@dataclass(frozen=True)
class Ranking:
    """The best plans, fastest first; how many layouts were compared, and why the others fell out.

    ``num_fitting`` has no layout that recomputes and fits without: those are in ``rejected``, where a reason
    found early counts a whole family of layouts once.
    """

    plans: tuple[Plan, ...]
    num_fitting: int
    rejected: dict[str, int]

    def losses(self) -> list[str]:
        """For every plan but the first, what it loses to the best on."""
        return [_loss(self.plans[0].time, other.time) for other in self.plans[1:]]


def plan(
    job: Job,
    *,
    num_gpus: int | None = None,
    top: int = 5,
    software: str = USUAL_SOFTWARE,
    memory_bytes: float | None = None,
    schedules: Sequence[str] = USUAL_SCHEDULES,
    only: Callable[[Job], bool] | None = None,
) -> Ranking:
    """The ``top`` fastest layouts of ``job`` on ``num_gpus`` of its GPUs, the job's own number by default.

    ``memory_bytes`` is what a rank may hold, the GPU's printed capacity by default. ``schedules`` are the
    pipelines to look at; ``only`` says whether a layout is looked at, all are by default. Where a layout fits
    with full recomputation alone, as few layers are recomputed as memory allows. Raises
    ``ValueError`` for hardware without published or measured rates, a number of GPUs below 1 and a schedule
    that is none.
    """
    unknown = [name for name in schedules if name not in SCHEDULES]
    if unknown or not schedules:
        raise ValueError(f"schedules={tuple(schedules)}; valid: one or more of {', '.join(SCHEDULES)}")
    total = job.hardware.n_gpus if num_gpus is None else num_gpus
    if total < 1:
        raise ValueError(f"num_gpus={total}; valid: 1 or more")
    system = system_of(job, software=software)
    capacity = hardware_file.memory_bytes(job) if memory_bytes is None else memory_bytes
    assert capacity is not None, "system_of knows the hardware"
    rejected: Counter[str] = Counter()
    found: list[_Look] = []
    fits_without: Job | None = None  # the last layout that fits and recomputes nothing
    looked_at = candidates(job, num_gpus=total, rejected=rejected, schedules=schedules)
    for number, layout in enumerate(looked_at):
        if only is not None and not only(layout):
            continue
        held = _held(layout, software)
        if held > capacity:
            rejected[OUT_OF_MEMORY] += 1
            continue
        if layout.train.recompute == "none":
            fits_without = layout
        elif fits_without is not None and _alike(layout, fits_without):
            rejected[NOT_NEEDED] += 1
            continue
        found.append(_least(layout, held, number, system))
    fitting = len(found)
    best = _fastest(found, top, system, capacity, software)
    plans = tuple(_plan(chosen, time, held) for _, held, _, chosen, time in best)
    return Ranking(plans, fitting, dict(rejected))


def _least(layout: Job, held: float, number: int, system: System) -> _Look:
    """A bound from what the layout computes and sends. How many layers it must recompute is not known yet."""
    full = layout.train.recompute == "full"
    lightest = replace(layout, train=replace(layout.train, recompute="none")) if full else layout
    seconds = step_time(lightest, system=system, most_actions=0).step_s
    if full:
        return seconds * (1 - ROUNDING), _WITHOUT_RECOMPUTING, held, number, layout
    return seconds, _WITHOUT_WAITING, held, number, layout


def _closer(look: _Look, system: System, capacity: float, software: str) -> _Look:
    """The next, closer look at a layout."""
    _, kind, held, number, layout = look
    if kind == _WITHOUT_RECOMPUTING:
        layout, held = _fewest_recomputed(layout, held, capacity, software)
        seconds = step_time(layout, system=system, most_actions=0).step_s
    else:
        seconds = step_time(layout, system=system, most_actions=FEW_ACTIONS).step_s
    return seconds, kind + 1, held, number, layout


def _alike(job: Job, other: Job) -> bool:
    """Whether two layouts differ in nothing but recomputation."""
    same = replace(other.train, recompute=job.train.recompute)
    return job.parallel == other.parallel and job.train == same


def _fewest_recomputed(job: Job, held: float, capacity: float, software: str) -> tuple[Job, float]:
    """The layout with the fewest layers of each chunk recomputed that fits, and what it then holds."""
    most = max(len(chunk.layers) for stage in range(job.parallel.pp) for chunk in chunks_of(job, stage))
    fits, low = most, 1
    best = (job, held)
    while low < fits:
        layers = (low + fits) // 2
        lighter = replace(job, train=replace(job.train, recompute_layers=layers))
        needs = _held(lighter, software)
        if needs <= capacity:
            fits, best = layers, (lighter, needs)
        else:
            low = layers + 1
    return best


def _fastest(found: list[_Look], top: int, system: System, capacity: float, software: str) -> list[_Timed]:
    """The ``top`` best, timed by their whole schedules."""
    timed: list[_Timed] = []
    best: list[_Timed] = []
    heapq.heapify(found)
    while found:
        if len(best) == top and found[0][0] * (1 - FIRST_LOOK_ERROR) > best[-1][0]:
            break
        look = heapq.heappop(found)
        _, kind, held, number, layout = look
        if kind != _FIRST_LOOK:
            heapq.heappush(found, _closer(look, system, capacity, software))
            continue
        time = step_time(layout, system=system)
        timed.append((time.step_s, held, number, layout, time))
        timed.sort(key=lambda item: item[:3])
        best = _distinct(timed)[:top]
    return best


def _held(job: Job, software: str) -> float:
    """Bytes on the fullest rank: as the stack is seen to hold them on a GPU, as our engine does on a CPU."""
    if job.hardware.gpu == "cpu":
        return max(stage.total for stage in stages_memory(job))
    return footprint(job, software=software)


def _distinct(found: list[_Timed]) -> list[_Timed]:
    """Of layouts that differ in schedule and chunks alone, the best."""
    kept: list[_Timed] = []
    seen: set[tuple[object, ...]] = set()
    for item in found:
        parallel, train = item[3].parallel, item[3].train
        degrees = (parallel.dp, parallel.tp, parallel.pp, parallel.cp, parallel.ep)
        key = (*degrees, train.micro_batch, train.recompute, train.zero_stage)
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept


def _plan(job: Job, time: StepTime, held: float) -> Plan:
    peak = hardware_file.peak_flops(job)
    assert peak is not None, "system_of knows the hardware"
    mfu = flops.mfu(
        flops.model_flops_per_step(job),
        seconds=time.step_s,
        num_gpus=job.parallel.world_size,
        peak_flops=peak,
    )
    return Plan(job, time, held, mfu, _bound_by(time))


def _shares(time: StepTime) -> dict[str, float]:
    return {"bubble": time.bubble_s, **{f"exposed {axis}": s for axis, s in time.exposed_s.items()}}


def _bound_by(time: StepTime) -> str:
    """Compute, unless something else takes a tenth of the step or more; then the largest of those."""
    name, seconds = max(_shares(time).items(), key=lambda item: item[1])
    return name if seconds > 0.1 * time.step_s else "compute"


def _loss(best: StepTime, other: StepTime) -> str:
    """The part of the step that grew most."""
    grown = {name: value - _shares(best)[name] for name, value in _shares(other).items()}
    grown["compute"] = other.compute_s - best.compute_s
    name, seconds = max(grown.items(), key=lambda item: item[1])
    return f"{seconds:.3g} s more {name}"
