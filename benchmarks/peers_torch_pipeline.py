"""torch.distributed.pipelining: its schedules on parts of the same model."""

from __future__ import annotations

import torch
import torch.distributed as dist
from peers_task import GLOBAL_BATCH, MAX_NORM, Contender, Task, mean_loss, states_of
from peers_torch import adamw
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from pdtlib.engine.models import Transformer

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "interleaved zero bubble": (ScheduleInterleavedZeroBubble, 2),
    "zb-v": (ScheduleZBVZeroBubble, 2),
    "dualpipe-v": (ScheduleDualPipeV, 2),
}
V_SHAPED = ("zb-v", "dualpipe-v")


def run(task: Task) -> Contender:
    """Option ``schedule``: a key of SCHEDULES. One micro-batch a sequence."""
    name = task.options["schedule"]
    kind, chunks = SCHEDULES[name]
    places = [task.rank + chunk * task.world for chunk in range(chunks)]
    if name in V_SHAPED:
        places[1] = 2 * task.world - 1 - task.rank
    count = chunks * task.world
    parts = [part(task, place, count) for place in places]
    stages = [
        PipelineStage(module, place, count, task.device) for module, place in zip(parts, places, strict=True)
    ]
    schedule = kind(stages if chunks > 1 else stages[0], n_microbatches=GLOBAL_BATCH, loss_fn=mean_loss)
    held = nn.ModuleList(parts)
    optimizer = adamw(held)
    batches = task.batches(rank=0, ranks=1)
    has_first, has_last = 0 in places, count - 1 in places

    def step() -> float | None:
        ((tokens, targets),) = next(batches)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        arguments = (tokens,) if has_first else ()
        schedule.step(*arguments, **({"target": targets, "losses": losses} if has_last else {}))
        clip_over_stages(held)
        optimizer.step()
        return float(torch.stack(losses).mean()) if has_last else None

    return Contender(step=step, states=lambda: states_of(held, optimizer))


def part(task: Task, place: int, count: int) -> Transformer:
    """Place ``place`` of a model cut into ``count`` even parts."""
    layers = task.model.layers
    return task.build(
        layers=range(place * layers // count, (place + 1) * layers // count),
        first=place == 0,
        last=place == count - 1,
    )


def clip_over_stages(module: nn.Module) -> None:
    """Clip by the norm over the parameters of all stages, which torch leaves to its user."""
    gradients = [param.grad for param in module.parameters() if param.grad is not None]
    square = torch.nn.utils.get_total_norm(gradients, foreach=True).square()
    dist.all_reduce(square)
    torch.nn.utils.clip_grads_with_norm_(module.parameters(), MAX_NORM, square.sqrt(), foreach=True)
