"""torch.distributed.pipelining: its schedules on parts of the same model."""

from __future__ import annotations

import torch
import torch.distributed as dist
from peers_task import GLOBAL_BATCH, Contender, Task, mean_loss, states_of
from peers_torch import adamw, clip_all, cut
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

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
        clip_all(held, stages=dist.group.WORLD)
        optimizer.step()
        return float(torch.stack(losses).mean()) if has_last else None

    return Contender(step=step, states=lambda: states_of(held, optimizer))


def three(task: Task) -> Contender:
    """1F1B over DTensor tensor parallelism with sequence parallelism, and DDP or FSDP2 over what is left.

    Options ``tp``, ``pp``. Parameters are kept after the forward pass, gradients are reduced once a step.
    """
    tp, pp = task.options["tp"], task.options["pp"]
    sizes = (task.world // (tp * pp), pp, tp)
    mesh = init_device_mesh(task.device.type, sizes, mesh_dim_names=("dp", "pp", "tp"))
    place, last = mesh["pp"].get_local_rank(), pp - 1
    module = part(task, place, pp)
    cut(module, mesh["tp"], sequence=True)
    if sizes[0] > 1:
        for layer in module.layers:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    count = GLOBAL_BATCH // sizes[0]
    stage = PipelineStage(module, place, pp, task.device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=mean_loss)
    optimizer = adamw(module)
    batches = task.batches(rank=mesh["dp"].get_local_rank(), ranks=sizes[0])

    def step() -> float | None:
        ((tokens, targets),) = next(batches)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given = (tokens,) if place == 0 else ()
        with loss_parallel():
            schedule.step(*given, **({"target": targets, "losses": losses} if place == last else {}))
        clip_all(module, stages=mesh["pp"].get_group())
        optimizer.step()
        if place < last:
            return None
        whole = [loss.full_tensor() if isinstance(loss, DTensor) else loss for loss in losses]
        return float(torch.stack(whole).mean())

    return Contender(step=step, states=lambda: states_of(module, optimizer))


def part(task: Task, place: int, count: int) -> Transformer:
    """Place ``place`` of a model cut into ``count`` even parts."""
    layers = task.model.layers
    return task.build(
        layers=range(place * layers // count, (place + 1) * layers // count),
        first=place == 0,
        last=place == count - 1,
    )
