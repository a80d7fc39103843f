"""Layers that are gathered before they compute, in three orders: real messages, slept times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.book.measured import Row
from pdtlib.engine.mesh import Group
from pdtlib.engine.transfers import start_all_gather
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.overlap import prefetch_timeline

LAYERS, NUMEL = 8, 1024
ORDERS = {"one after the other": 0, "the article's order": 0, "the next layer ahead": 1}
"""How many layers ahead each order gathers."""


class Layers:
    """``LAYERS`` layers, of whose weights each rank has a shard. A gather and a computation take a while."""

    def __init__(self, group: Group, device: torch.device, *, unit_s: float) -> None:
        self.group, self.device, self.unit_s = group, device, unit_s
        self.link = ThreadPoolExecutor(1)
        self.live = self.most_live = self.right = 0

    def gather(self, layer: int) -> Future[torch.Tensor]:
        """Start gathering a layer; the link carries one at a time."""
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        return self.link.submit(self._gathered, layer)

    def _gathered(self, layer: int) -> torch.Tensor:
        shard = torch.full((NUMEL,), float(layer * self.group.size + self.group.rank), device=self.device)
        whole = torch.empty(NUMEL * self.group.size, device=self.device)
        start_all_gather(whole, shard, self.group, phase="forward").wait()
        time.sleep(self.unit_s)
        return whole

    def compute(self, layer: int, weight: torch.Tensor) -> None:
        """Use the weights, then let go of them."""
        owners = torch.arange(self.group.size, device=self.device).repeat_interleave(NUMEL)
        self.right += int(torch.equal(weight, layer * self.group.size + owners.to(weight.dtype)))
        time.sleep(self.unit_s)
        self.live -= 1


def one_after_the_other(layers: Layers) -> None:
    for layer in range(LAYERS):
        layers.compute(layer, layers.gather(layer).result())


def articles_order(layers: Layers) -> None:
    """Start this layer's gather, then compute the one before: which is over, as its output is the input."""
    before: tuple[int, torch.Tensor] | None = None  # as printed: nothing ever sets it
    for layer in range(LAYERS):
        coming = layers.gather(layer)
        if before is not None:
            layers.compute(*before)
        layers.compute(layer, coming.result())


def next_layer_ahead(layers: Layers) -> None:
    """Start the next layer's gather, then compute this one."""
    coming = layers.gather(0)
    for layer in range(LAYERS):
        weight = coming.result()
        if layer + 1 < LAYERS:
            coming = layers.gather(layer + 1)
        layers.compute(layer, weight)


PASSES = dict(zip(ORDERS, (one_after_the_other, articles_order, next_layer_ahead), strict=True))


def measure(name: str, group: Group, device: torch.device, ledger: Any, *, unit_s: float) -> dict[str, Any]:
    """A pass in one order: its rows, which are exact, and its seconds, which are the machine's."""
    depth = ORDERS[name]
    layers = Layers(group, device, unit_s=unit_s)
    ledger.clear()
    dist.barrier()
    start = time.perf_counter()
    PASSES[name](layers)
    seconds = time.perf_counter() - start
    layers.link.shutdown()
    times = [unit_s] * LAYERS
    predicted_s = prefetch_timeline(times, times, depth=depth).end_s
    return {
        "name": name,
        "seconds": {"predicted": predicted_s, "measured": seconds},
        "rows": list(_rows(name, layers, ledger, depth)),
    }


def _rows(name: str, layers: Layers, ledger: Any, depth: int) -> Iterator[Row]:
    size = layers.group.size
    sent = round(sum(row["sent_bytes_per_rank"] for row in ledger.rows()))
    whole_bytes = 4 * NUMEL * size
    yield Row(name, "layers that came whole", LAYERS, layers.right)
    yield Row(name, "layers held whole at the same time", depth + 1, layers.most_live)
    yield Row(name, "bytes sent", LAYERS * round(sent_bytes("all_gather", whole_bytes, size)), sent)
