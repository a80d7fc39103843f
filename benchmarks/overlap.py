"""How much of its communication data parallelism hides, where computation leaves the cores free.

    python benchmarks/overlap.py [--ranks 2] [--ms 40] [--mb 8] [--rounds 11] [--out FILE]

A block's computation is a sleep, as if it ran on an accelerator: ``--ms`` forwards, twice that backwards.
Each of eight blocks has ``--mb`` MB of parameters. A round is a step with sleeps and one without, beside the
bare model on the same ranks, which sends nothing. What a step without sleeps takes longer than the bare
model's is communication; what a step with sleeps takes longer is the exposed part of it, the rest is hidden.
Copies into buckets and memory that is taken from the system count as communication. pdtlib's stages, torch's
DDP and FSDP; medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh

BLOCKS = 8
BARE = "bare model"
CONTENDERS = (
    "pdtlib DDP", "pdtlib ZeRO-1", "pdtlib ZeRO-2", "pdtlib ZeRO-3", "torch DDP", "torch FSDP2, no reshard",
    "torch FSDP2, reshard",
)  # fmt: skip


class _Sleep(torch.autograd.Function):
    """Identity that sleeps: ``seconds[0]`` forwards, twice that backwards; the weight's gradient is ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: list[float]) -> Tensor:
        ctx.seconds, ctx.shape = seconds, weight.shape
        time.sleep(seconds[0])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        time.sleep(2 * ctx.seconds[0])
        return grads[0], torch.ones(ctx.shape), None


class Block(nn.Module):
    """Parameters, and a sleep whose length can be changed between steps."""

    def __init__(self, numel: int, seconds: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.weight, self.seconds)


class Model(nn.Module):
    """Blocks one after the other."""

    def __init__(self, numel: int, seconds: list[float]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(numel, seconds) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def wrapped(name: str, model: Model) -> tuple[nn.Module, Callable[[], Any], Callable[[], Any]]:
    """(the module to call, what ends its backward pass, what forgets its gradients)."""
    if name == BARE:
        return model, lambda: None, model.zero_grad
    if name.startswith("pdtlib"):
        stage = 0 if name == "pdtlib DDP" else int(name[-1])
        replica = data_parallel(model, build_mesh().group("dp"), stage=stage)
        return replica, replica.finish_gradients, replica.zero_grad
    if name == "torch DDP":
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return ddp, lambda: None, lambda: ddp.zero_grad(set_to_none=False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    keep = {"mesh": mesh, "reshard_after_forward": name == "torch FSDP2, reshard"}
    for block in model.blocks:
        fully_shard(block, **keep)
    fully_shard(model, **keep)
    return model, lambda: None, model.zero_grad


def run(options: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """(seconds of a step with sleeps, without) of every round, on this rank."""
    seconds = [0.0]
    module, finish, forget = wrapped(name, Model(int(options["mb"] * 250_000), seconds))
    x = torch.ones(1, requires_grad=True)

    def step(block_s: float) -> float:
        seconds[0] = block_s
        dist.barrier()
        began = time.perf_counter()
        module(x).sum().backward()
        finish()
        took = time.perf_counter() - began
        forget()
        return took

    step(0.0), step(0.0)  # buffers are made, orders are learned
    return [(step(options["ms"] / 1000), step(0.0)) for _ in range(options["rounds"])]


def seconds(options: dict[str, Any], name: str) -> tuple[float, float]:
    """Medians of a step with sleeps and of one without; a step takes as long as its slowest rank's."""
    ranks = spawn(run, options["ranks"], options, name, timeout_s=300, group_timeout_s=120)
    rounds = [tuple(max(times) for times in zip(*found, strict=True)) for found in zip(*ranks, strict=True)]
    with_sleeps, without = (statistics.median(times) for times in zip(*rounds, strict=True))
    return with_sleeps, without


def measure(options: dict[str, Any], name: str, bare: tuple[float, float]) -> dict[str, Any]:
    """One contender beside the bare model."""
    step_s, busy_s = seconds(options, name)
    communication_s, exposed_s = busy_s - bare[1], step_s - bare[0]
    return {
        "contender": name,
        "step_s": step_s,
        "bare_step_s": bare[0],
        "communication_s": communication_s,
        "exposed_s": exposed_s,
        "hidden": 1 - exposed_s / communication_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Communication that is hidden behind sleeping computation")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--mb", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="", help="contenders, separated by semicolons")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "overlap.json")
    options = vars(parser.parse_args())
    about = {key: options[key] for key in ("ranks", "ms", "mb", "rounds")}
    about |= {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "torch": torch.__version__}
    rows = []
    bare = seconds(options, BARE)
    for name in options["only"].split(";") if options["only"] else CONTENDERS:
        rows.append(measure(options, name, bare))
        print(
            f"{name:<26} step {rows[-1]['step_s'] * 1000:6.0f} ms  hidden {rows[-1]['hidden']:.0%}",
            flush=True,
        )
        options["out"].parent.mkdir(parents=True, exist_ok=True)
        options["out"].write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
