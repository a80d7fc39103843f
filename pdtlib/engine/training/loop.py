"""The training loop, top to bottom: one optimizer step is the body of the ``for`` in :func:`train`.

The same loop trains every layout. A step has three hops: this loop,
:func:`pdtlib.engine.training.step.compute_gradients`, and the replica or pipeline that runs a pass. The
batch, the initial weights and dropout's masks depend on the seed and the step, never on the layout, so every
layout of a job computes the same losses up to rounding.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.self_check import check_backend
from pdtlib.engine.training import elastic, run_dir
from pdtlib.engine.training.checkpoint_index import CheckpointError
from pdtlib.engine.training.checks import Run, check
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.failures import RunFailed, ToldToEnd
from pdtlib.engine.training.options import RANK_ORDERS, parse
from pdtlib.engine.training.pieces import place_in
from pdtlib.engine.training.report import Report
from pdtlib.engine.training.saver import Saver, load_checkpoint
from pdtlib.engine.training.step import StepResult, compute_gradients, micro_batches
from pdtlib.observe.memory import ActivationMeter
from pdtlib.plan.spec import Train

BACKENDS = {"auto": None, "cpu": "gloo", "cuda": "nccl"}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def main(arguments: Sequence[str], *, accompany: Callable[[Run], Companion] | None = None) -> None:
    """Read the command line, check everything, train."""
    options = parse(arguments)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if options.elastic:
        options, world_size = elastic.take_part(options, world_size)
    run = check(options, world_size=world_size, local_world_size=local_world_size)
    train(run, accompany(run) if accompany else Companion())
    if options.elastic:
        elastic.release_those_standing_by()
    shutdown()


def train(run: Run, companion: Companion | None = None) -> None:
    """Train as one rank of the run, and leave a run directory behind. Called by all ranks."""
    companion = companion or Companion()
    job, settings, out = run.job, run.job.train, run.options.out
    device = init(BACKENDS[run.options.device])
    mesh = build_mesh(job.parallel, device_type=device.type, order=RANK_ORDERS[run.options.rank_order])
    for group in mesh.groups():
        check_backend(group, device=device)
    on_disk = run_dir.step_of(run.resume_from) if run.resume_from else 0
    first = companion.join(mesh, on_disk=on_disk)
    if first >= run.steps:
        _on_rank_0(print, f"{out} has all {run.steps} steps already; nothing to do")
        return
    _on_rank_0(run_dir.begin, out, job=job, resume_step=first if first or run.resume_from else None)

    compiler = None if run.options.compiler == "none" else run.options.compiler
    parts = parallelize(job, mesh, device=device, compiler=compiler)
    groups = decay_groups(parts.replica.module, weight_decay=settings.weight_decay)
    optimizer = ShardedAdamW(parts.replica, groups=groups, lr=settings.learning_rate)
    place = place_in(job, tp_rank=mesh.group("tp").rank)
    if first > on_disk:
        companion.load(optimizer, place=place)
    elif run.resume_from:
        load_checkpoint(run.resume_from, optimizer, place=place)
    companion.begin(parts, optimizer, place=place, first=first)

    step, saver = first, Saver(out, place=place, saved=run.resume_from)
    try:
        report = Report(run, mesh=mesh, first=first, place=place)
        parts.replica.whole.begin()
        for step in range(first, run.steps):
            saver.check()
            report.begin_step()
            companion.before_step(step)
            learning_rate = warm_up(settings, step)
            for options in optimizer.param_groups:
                options["lr"] = learning_rate

            with report.timeline.span("data", "batch"):
                batch = micro_batches(parts, run.batches, step)
            meter = activation_meter(parts.replica) if step == first else None
            with meter or nullcontext():
                found = compute_gradients(
                    parts,
                    optimizer,
                    batch,
                    step=step,
                    max_norm=settings.clip_grad_norm or math.inf,
                    timeline=report.timeline,
                )
            _demand_finite(found, settings)
            companion.before_update(step)
            if meter:
                report.measure_memory(optimizer, meter)
            with report.timeline.span("optimizer", "step"):
                optimizer.step()
            optimizer.zero_grad()
            report.end_step(step, found, learning_rate=learning_rate)
            companion.after_step(step)

            every = run.options.checkpoint_every
            ends = companion.must_end(step) or step == run.steps - 1
            if ends or (every and (step + 1) % every == 0):
                saver.save(optimizer, step=step + 1)
            if ends:
                break
        saver.finish()
        companion.end()
        report.close(steps_done=step + 1 - first)
    except Exception as error:
        _explain(error, step, saver.saved)
        raise
    if step + 1 < run.steps:
        _on_rank_0(run_dir.write_text, out / run_dir.TOLD_TO_END, f"{step + 1}\n")
        raise ToldToEnd(
            f"told to end: saved after step {step + 1} of {run.steps}; --resume goes on from there"
        )


def activation_meter(replica: Replica) -> ActivationMeter:
    """A meter that leaves parameters out."""
    whole = [flat.params.tensor for flat in replica.flats]
    return ActivationMeter(excluded=[*whole, *replica.held()["params"]])


def warm_up(settings: Train, step: int) -> float:
    """The learning rate of a step: a straight rise over ``warmup_steps``, then constant."""
    return settings.learning_rate * min(1.0, (step + 1) / max(1, settings.warmup_steps))


def decay_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices decay, norms and biases do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _demand_finite(found: StepResult, settings: Train) -> None:
    """Stop before a number that is none reaches the weights. In fp16 the loss scale deals with the norm."""
    norm_counts = settings.precision != "fp16"
    if not math.isfinite(found.loss) or (norm_counts and not math.isfinite(found.grad_norm)):
        raise RunFailed(
            f"the loss is {found.loss} and the gradient norm {found.grad_norm}; "
            f"lower train.learning_rate (now {settings.learning_rate}) or clip gradients"
        )


def _on_rank_0(work: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Let rank 0 do something to the run directory while the others wait."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            work(*arguments, **options)
        except OSError as error:
            raise RunFailed(f"the run directory cannot be written: {error}") from error
    if dist.is_initialized():
        dist.barrier()


def _explain(error: Exception, step: int, saved: Path | None) -> None:
    """Note in which step ``error`` came. A full disk becomes :class:`RunFailed` and says what is left."""
    error.add_note(f"in step {step}")
    if isinstance(error, CheckpointError) or getattr(error, "errno", None) in NO_ROOM:
        rest = f"the last complete checkpoint is {saved}" if saved else "there is no earlier checkpoint"
        failure = RunFailed(f"{error}; {rest}")
        failure.add_note(f"in step {step}")
        raise failure from error
