"""Which of the ranks that torchrun has started take part, when nodes come and go.

The degrees of tensor, context and pipeline parallelism stay; dp follows the number of ranks. The global batch
stays too, and since a batch is a function of (seed, step) and the learning rate one of the step, the run
computes the same, whatever its size. Ranks that the batch cannot be dealt out to stand by until they are
needed or the run is over.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace as changed

import torch.distributed as dist

from pdtlib.engine.dist import common_store
from pdtlib.engine.training.failures import Refused
from pdtlib.engine.training.options import Options, read_change
from pdtlib.plan.job import Job, JobError, load, replace

OVER = "pdt/over"
POLL_S = 0.5


def usable(job: Job, world_size: int) -> int:
    """The most of ``world_size`` ranks that the job can be dealt out to.

    Raises :class:`pdtlib.plan.spec.JobError` with what is wrong on one rank less if there are none.
    """
    worst: JobError | None = None
    for ranks in range(world_size, 0, -1):
        try:
            return replace(job, {"hardware.n_gpus": ranks}).parallel.world_size
        except JobError as error:
            worst = worst or error
    assert worst is not None
    raise worst


def take_part(options: Options, world_size: int) -> tuple[Options, int]:
    """The options and the world size of an elastic run. A rank too many does not return before the end."""
    try:
        job = load(options.job)
        job = replace(job, dict(map(read_change, options.changes))) if options.changes else job
        ranks = usable(job, world_size)
    except JobError as error:
        raise Refused(error.problems) from error
    if int(os.environ.get("RANK", "0")) >= ranks:
        _stand_by()
        raise SystemExit(0)
    os.environ["WORLD_SIZE"] = str(ranks)
    changes = (*options.changes, f"hardware.n_gpus={ranks}")
    return changed(options, changes=changes, resume=True), ranks


def release_those_standing_by() -> None:
    """Tell the ranks that were too many that the run is over."""
    store = common_store()
    if store is not None and int(os.environ["RANK"]) == 0:
        store.set(OVER, "1")


def _stand_by() -> None:
    try:
        store = common_store()
        while store is not None and not store.check([OVER]):
            time.sleep(POLL_S)
    except dist.DistError:  # rank 0 kept the store and has ended; if it failed, the agent starts us again
        return
