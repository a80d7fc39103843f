"""Scaling curves: the best plan on each number of GPUs, with a batch that stays or that grows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdtlib.plan.planner.search import Plan, plan
from pdtlib.plan.spec import Job
from pdtlib.plan.time.constants import USUAL_SOFTWARE

LARGEST = 98_304
"""About 100,000 GPUs, in a number that halves often."""


@dataclass(frozen=True)
class Point:
    """The best plan on ``gpus`` GPUs; None where nothing fits or the batch does not divide.

    ``efficiency`` is tokens a second and GPU, as a share of the smallest number's that has a plan.
    """

    gpus: int
    plan: Plan | None
    efficiency: float | None


def sizes_for(job: Job, *, largest: int = LARGEST) -> tuple[int, ...]:
    """Numbers of GPUs to look at: from one node, or the job's own number if that is less, doubling.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "llama3-8b"}, "hardware": {"cluster": "dgx-h100", "n_gpus": 16}}
    >>> sizes_for(from_dict(tables), largest=1000)
    (8, 16, 32, 64, 128, 256, 512, 1000)
    """
    first = max(1, min(job.hardware.gpus_per_node, job.hardware.n_gpus))
    found = [first]
    while found[-1] * 2 < largest:
        found.append(found[-1] * 2)
    return (*found, largest) if largest > found[-1] else tuple(found)


def scaling(
    job: Job, sizes: Sequence[int], *, weak: bool, software: str = USUAL_SOFTWARE
) -> tuple[Point, ...]:
    """The best plan on each number of GPUs.

    Weak scaling grows the global batch with the GPUs, from the job's own number and batch, rounded to whole
    sequences a GPU where there are more GPUs than sequences; strong scaling keeps the batch, so beyond a
    sequence a data-parallel rank more GPUs can only cut the model further.
    """
    points: list[Point] = []
    first: float | None = None
    for size in sizes:
        best = _best(job, size, weak=weak, software=software)
        efficiency = None
        if best is not None:
            rate = best.tokens_per_s / size
            first = first or rate
            efficiency = rate / first
        points.append(Point(size, best, efficiency))
    return tuple(points)


def _best(job: Job, size: int, *, weak: bool, software: str) -> Plan | None:
    batch = job.train.global_batch
    if weak:
        batch = max(1, batch * size // job.hardware.n_gpus)
    sized = replace(job, train=replace(job.train, global_batch=batch))
    plans = plan(sized, num_gpus=size, top=1, software=software).plans
    return plans[0] if plans else None
