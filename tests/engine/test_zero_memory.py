"""ZeRO-2 frees gradients, ZeRO-3 holds two blocks at most and leaves nothing whole in autograd: measured."""

import ctypes
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.flat import Buffer
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job
from pdtlib.plan.whole import whole_bytes

MODEL = {"layers": 5, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 61, "seq": 8, "activation": "swiglu"}


def job(stage: int, **train: Any) -> Job:
    train = {"zero_stage": stage, "precision": "fp32", "micro_batch": 1, "global_batch": 4, **train}
    return from_dict({"model": {**MODEL, "norm": "rmsnorm"}, "train": train, "parallel": {"dp": 2}})


class Whole:
    """Bytes of whole buffers that exist at one time, by what they hold; notes the peak."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.peak = 0

    def watch(self) -> None:
        allocate, free = Buffer.allocate, Buffer.free

        def noted_allocate(buffer: Buffer) -> None:
            allocate(buffer)
            self.now[id(buffer)] = buffer.tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, sum(self.now.values()))

        def noted_free(buffer: Buffer) -> None:
            free(buffer)
            assert buffer.tensor.untyped_storage().nbytes() == 0
            self.now.pop(id(buffer), None)

        Buffer.allocate, Buffer.free = noted_allocate, noted_free  # in a worker process of its own


def peaks(jobs: list[Job], bucket_bytes: int) -> list[tuple[int, int, list[int]]]:
    """(peak, left after the step) of whole buffers, second step; bytes of each buffer of gradients."""
    group = build_mesh().group("dp")
    whole = Whole()
    whole.watch()
    found = []
    for each in jobs:
        model = Transformer(each.model, seed=0, recompute=each.train.recompute)
        replica = data_parallel(
            model,
            group,
            stage=each.train.zero_stage,
            precision=each.train.precision,
            bucket_bytes=bucket_bytes,
            reshard_after_forward=each.train.reshard_after_forward,
        )
        optimizer = ShardedAdamW(replica)
        for _ in range(2):
            whole.now.clear()
            whole.peak = 0
            for tokens in torch.randint(61, (2, 1, 8)):
                replica(tokens).sum().backward()
            replica.finish_gradients()
            optimizer.step()
            optimizer.zero_grad()
        sizes = [flat.padded * flat.grad_dtype.itemsize for flat in replica.flats]
        found.append((whole.peak, sum(whole.now.values()), sizes))
    return found


def test_zero3_holds_the_root_and_two_blocks() -> None:
    """Exactly what the plan says: the root, the block at work and the one fetched ahead, and gradients."""
    jobs = [job(3), job(3, precision="bf16"), job(3, recompute="full")]
    root = 61 * 32 * 2 + 32
    layer = 4 * 32 * 32 + 3 * 32 * 64 + 2 * 32
    for found in spawn(peaks, 2, jobs, 10**6):
        for each, (peak, left, _) in zip(jobs, found, strict=True):
            size = 2 if each.train.precision == "bf16" else 4
            assert peak == whole_bytes(each) == 2 * (root + 2 * layer) * size
            assert left == 0


def test_zero2_holds_two_buckets_of_gradients() -> None:
    """Whatever the model's size: the one that is filled and the one before it, which is reduced meanwhile."""
    limit = 40_000  # bytes; a layer has 41,216 in fp32
    for found in spawn(peaks, 2, [job(2), job(2, precision="bf16")], limit):
        for peak, left, sizes in found:
            assert len(sizes) > 2
            assert peak == max(map(sum, pairwise(sizes)))
            assert left == 0


def saved_by_autograd(reshard: bool) -> dict[str, Any]:
    group = build_mesh().group("dp")
    found = {}
    for name in ("mixed", "twice", "shared"):
        replica = data_parallel(zoo.build(name), group, stage=3, reshard_after_forward=reshard)
        saved: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor, saved: list[torch.Tensor] = saved) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        tokens, targets = zoo.batch(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = zoo.loss_sum(replica(tokens), targets)
        blocks = [flat for unit in replica.blocks for flat in unit.flats]
        wholes = {flat.params.tensor.untyped_storage()._cdata for flat in blocks}
        of_blocks = [t.untyped_storage().nbytes() for t in saved if t.untyped_storage()._cdata in wholes]
        found[name] = {"saved": len(of_blocks), "bytes": sum(of_blocks)}
        loss.backward()
    return found


def test_autograd_keeps_views_of_freed_memory_only() -> None:
    for found in spawn(saved_by_autograd, 2, True):
        for counted in found.values():
            assert counted["saved"] >= 4, "autograd saves weights of blocks"
            assert counted["bytes"] == 0, "none of which has memory between forward and backward"
    for found in spawn(saved_by_autograd, 2, False):
        assert all(counted["bytes"] > 0 for counted in found.values()), "kept when asked to"


# --- the process's real memory ------------------------------------------------------------------------------

WIDTH, DEPTH, BUCKET = 768, 16, 5 * 10**6  # 16 blocks of 2.36 MB, two in a bucket


def resident(line: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(row for row in status if row.startswith(line)).split()[1])


def peak_growth(stages: list[int]) -> list[tuple[int, int]]:
    """(peak, end) of resident memory during forward and backward over the start of the second step."""
    ctypes.CDLL("libc.so.6").mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: large blocks go back when freed
    group = build_mesh().group("dp")
    found = []
    for stage in stages:
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))
        replica = data_parallel(layers, group, stage=stage, blocks=list(layers), bucket_bytes=BUCKET)
        with replica.no_sync():
            for _ in range(2):
                for flat in replica.flats:
                    flat.grads = flat.grad_shard = None
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak
                start = resident("VmRSS")
                replica(torch.ones(1, WIDTH)).sum().backward()
                growth = resident("VmHWM") - start, resident("VmRSS") - start
        found.append(growth)
        del replica, layers
    return found


def test_resident_memory() -> None:
    """Whole gradients stay with DDP; ZeRO-2 ends with half of them (2 ranks) and ZeRO-3 too."""
    gradients = 4 * WIDTH * WIDTH * DEPTH
    block = 4 * WIDTH * WIDTH
    ((ddp, ddp_end), (zero2, zero2_end), (zero3, zero3_end)) = spawn(peak_growth, 2, [0, 2, 3])[0]
    slack = 3 * 2**20
    assert ddp_end == pytest.approx(gradients, abs=slack)
    assert zero2_end == pytest.approx(gradients / 2, abs=slack)
    assert zero3_end == pytest.approx(gradients / 2, abs=slack)
    assert ddp < gradients + 2 * block + slack
    # Beside the shards: two buckets of two blocks, and what gloo receives of one.
    assert zero2 < gradients / 2 + (4 + 2) * block + slack
    # Two blocks of parameters, two of gradients, and what gloo receives of one.
    assert zero3 < gradients / 2 + (2 + 2 + 1) * block + slack
