"""The training loop, top to bottom: one optimizer step is the body of the ``for`` in :func:`train`.

The same loop trains on one process, with DDP and with ZeRO-1, 2 and 3: what is sharded is the business of
``replica`` and ``optimizer``. The batch, the initial weights and dropout's masks depend on the seed and the
step, never on the layout, so every layout of a job computes the same losses up to rounding.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.loss import IGNORED, TokenMean, token_loss_sum
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.self_check import check_backend
from pdtlib.engine.training import checkpoint, run_dir
from pdtlib.engine.training.checkpoint import Part
from pdtlib.engine.training.checkpoint_index import CheckpointError
from pdtlib.engine.training.checks import Run, check
from pdtlib.engine.training.failures import RunFailed
from pdtlib.engine.training.options import parse
from pdtlib.engine.training.report import Report
from pdtlib.observe.memory import ActivationMeter
from pdtlib.plan.spec import Train

BACKENDS = {"auto": None, "cpu": "gloo", "cuda": "nccl"}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def main(arguments: Sequence[str]) -> None:
    """Read the command line, check everything, train."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    run = check(parse(arguments), world_size=world_size, local_world_size=local_world_size)
    train(run)
    shutdown()


def train(run: Run) -> None:
    """Train as one rank of the run, and leave a run directory behind. Called by all ranks."""
    job, settings, out = run.job, run.job.train, run.options.out
    device = init(BACKENDS[run.options.device])
    mesh = build_mesh(job.parallel, device_type=device.type)
    dp = mesh.group("dp")
    check_backend(dp, device=device)
    first = run_dir.step_of(run.resume_from) if run.resume_from else 0
    if first >= run.steps:
        _on_rank_0(print, f"{out} has all {run.steps} steps already; nothing to do")
        return
    _on_rank_0(run_dir.begin, out, job=job, resume_step=first if run.resume_from else None)

    model = Transformer(
        job.model,
        seed=settings.seed,
        flash_attention=settings.flash_attention,
        recompute=settings.recompute,
        device=device,
    )
    params_total = sum(parameter.numel() for parameter in model.parameters())
    groups = decay_groups(model, weight_decay=settings.weight_decay)
    replica = data_parallel(
        model,
        dp,
        stage=settings.zero_stage,
        blocks=list(model.layers),
        precision=settings.precision,
        grad_precision=settings.grad_precision,
        reshard_after_forward=settings.reshard_after_forward,
    )
    optimizer = ShardedAdamW(replica, groups=groups, lr=settings.learning_rate)
    if run.resume_from:
        load_checkpoint(run.resume_from, optimizer)

    per_rank = settings.global_batch // dp.size
    step, saved = first, run.resume_from
    try:
        report = Report(run, mesh=mesh, first=first)
        for step in range(first, run.steps):
            report.begin_step()
            meter = activation_meter(replica) if step == first else None
            learning_rate = warm_up(settings, step)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

            starts = range(dp.rank * per_rank, (dp.rank + 1) * per_rank, settings.micro_batch)
            micro_batches = [
                tuple(
                    part.to(device) for part in run.batches.take(step, first=at, count=settings.micro_batch)
                )
                for at in starts
            ]
            num_valid = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
            mean = TokenMean(dp, num_valid=num_valid, device=device)
            loss_sum = torch.zeros((), dtype=torch.float64, device=device)
            for index, (tokens, targets) in enumerate(micro_batches):
                if job.model.dropout:
                    seed_dropout(settings.seed, step, dp.rank * len(micro_batches) + index)
                with ExitStack() as stack:
                    stack.enter_context(meter or nullcontext())
                    if index < len(micro_batches) - 1:
                        stack.enter_context(replica.no_sync())
                    with report.timeline.span("compute", "forward"):
                        part = token_loss_sum(replica(tokens), targets)
                    with report.timeline.span("compute", "backward"):
                        optimizer.scale(mean.loss(part)).backward()
                loss_sum += part.detach()
            with report.timeline.span("optimizer", "finish gradients"):
                replica.finish_gradients()
            with report.timeline.span("optimizer", "clip"):
                norm = optimizer.clip_grad_norm(settings.clip_grad_norm or math.inf)
            loss = mean.report(loss_sum)
            _demand_finite(loss, norm, settings)
            if meter:
                held = {**replica.held(), **optimizer.held()}
                report.measure_memory(held, meter, params_total=params_total)
            with report.timeline.span("optimizer", "step"):
                optimizer.step()
            optimizer.zero_grad()
            tokens_seen = mean.num_valid
            report.end_step(step, loss=loss, grad_norm=norm, tokens=tokens_seen, learning_rate=learning_rate)

            every = run.options.checkpoint_every
            if step == run.steps - 1 or (every and (step + 1) % every == 0):
                saved = save_checkpoint(out, optimizer, step=step + 1)
        report.close(steps_done=run.steps - first)
    except Exception as error:
        _explain(error, step, saved)
        raise


def activation_meter(replica: Replica) -> ActivationMeter:
    """A meter that leaves parameters out and watches the whole buffers that ZeRO fills for a moment."""

    def passing() -> list[Tensor]:
        params = [flat.params.tensor for flat in replica.flats if replica.stage >= 3]
        grads = [flat.grads.tensor for flat in replica.flats if replica.stage >= 2 and flat.grads]
        return params + grads

    whole = [flat.params.tensor for flat in replica.flats]
    return ActivationMeter(excluded=[*whole, *replica.held()["params"]], watched=passing)


def warm_up(settings: Train, step: int) -> float:
    """The learning rate of a step: a straight rise over ``warmup_steps``, then constant."""
    return settings.learning_rate * min(1.0, (step + 1) / max(1, settings.warmup_steps))


def decay_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices decay, norms and biases do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Let the masks of a micro-batch, numbered over the global batch, be the same on every layout."""
    digest = hashlib.sha256(f"dropout:{seed}:{step}:{micro_batch}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def save_checkpoint(out: Path, optimizer: ShardedAdamW, *, step: int) -> Path:
    """Write what every rank owns after ``step`` steps; returns the checkpoint's path."""
    path = run_dir.checkpoint_path(out, step)
    scalars = {f"run.{name}": [_scalar(value)] for name, value in optimizer.scalars().items()}
    checkpoint.save(path, parts={**_owned(optimizer), **scalars})
    return path


def load_checkpoint(path: Path, optimizer: ShardedAdamW) -> None:
    """Fill the optimizer and the model from a checkpoint of any layout.

    Raises :class:`pdtlib.engine.training.checkpoint_index.CheckpointError` where it does not fit.
    """
    scalars = {f"run.{name}": [_scalar(0.0)] for name in optimizer.scalars()}
    checkpoint.load(path, parts={**_owned(optimizer), **scalars})
    optimizer.load_scalars({key.removeprefix("run."): float(part.values) for key, (part,) in scalars.items()})
    optimizer.load_finished()


def _owned(optimizer: ShardedAdamW) -> dict[str, list[Part]]:
    parts: dict[str, list[Part]] = {}
    for name, shape, start, _, states in optimizer.shards():
        for state, values in states.items():
            key = f"model.{name}" if state == "master" else f"optimizer.{state}.{name}"
            parts.setdefault(key, []).append(Part(tuple(shape), start, values))
    return parts


def _scalar(value: float) -> Part:
    return Part((), 0, torch.tensor([value], dtype=torch.float64))


def _demand_finite(loss: float, norm: float, settings: Train) -> None:
    """Stop before a number that is none reaches the weights. In fp16 the loss scale deals with the norm."""
    if not math.isfinite(loss) or (settings.precision != "fp16" and not math.isfinite(norm)):
        raise RunFailed(
            f"the loss is {loss} and the gradient norm {norm}; "
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
