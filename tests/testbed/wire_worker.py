"""A rank under torchrun in a testbed: bytes of a step, by the ledger and by the node's own interface."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.plan.job import from_dict

MODEL = {"layers": 2, "hidden": 128, "heads": 4, "ffn": 512, "vocab": 256, "seq": 8}
STEPS = 3


def interface_bytes() -> int:
    """What e0 of this node has sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("e0:")).split(":")[1].split()[8])


def measure(stage: int) -> dict[str, float]:
    """Of three equal steps the one with the fewest bytes: what is lost on a busy link is sent again."""
    group = build_mesh().group("dp")
    job = from_dict({"model": MODEL, "parallel": {"dp": group.size}})
    model = Transformer(job.model, seed=0)
    replica = data_parallel(model, group, stage=stage, blocks=model.layers)
    optimizer = ShardedAdamW(replica)
    tokens = torch.zeros((1, MODEL["seq"]), dtype=torch.int64)
    found = []
    for _ in range(STEPS):
        group.ledger.clear()
        dist.barrier()
        before = interface_bytes()
        dist.barrier()
        replica(tokens).square().mean().backward()
        replica.finish_gradients()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        found.append(interface_bytes() - before)
    return {"stage": stage, "ledger": group.ledger.sent_bytes_per_rank(), "device": min(found)}


if __name__ == "__main__":
    init("gloo")
    rows = [measure(stage) for stage in range(4)]
    folder = Path(sys.argv[1])
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(rows))
    dist.barrier()
    shutdown()
