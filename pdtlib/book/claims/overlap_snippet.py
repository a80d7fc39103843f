"""The operations of the article's communicator with overlap, run and looked at.

The article sketches a coroutine that starts a gather, computes something of the layer before, awaits the
gather and computes. Here the same steps write down when they happen. Nothing is timed: what matters is the
order. Lab 07 times them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class PrintedOrder:
    """The article's order of steps, for one layer after another."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.before: str | None = None

    async def gather(self, layer: int) -> int:
        self.events.append(f"gather {layer} starts")
        await asyncio.sleep(0)
        self.events.append(f"gather {layer} ends")
        return layer

    def compute(self, what: str) -> str:
        self.events.append(f"compute {what}")
        return what

    async def forward(self, layer: int) -> str:
        started = self.gather(layer)
        if self.before is not None:
            self.before = self.compute(self.before)
        await started
        return self.compute(f"layer {layer}")


def printed_events(layers: int = 3) -> list[str]:
    """What happens, in order, when the layers are run as printed."""

    async def run() -> list[str]:
        communicator = PrintedOrder()
        for layer in range(layers):
            await communicator.forward(layer)
        return communicator.events

    return _finished(run())


def computed_while_gathering(events: list[str]) -> int:
    """Computations between the start and the end of a gather."""
    found, under_way = 0, 0
    for event in events:
        under_way += event.endswith("starts")
        under_way -= event.endswith("ends")
        found += event.startswith("compute") and under_way > 0
    return found


def coroutine_starts_when_called() -> bool:
    """Whether a gather written as ``async def`` has begun before it is awaited."""
    communicator = PrintedOrder()
    pending = communicator.gather(0)
    begun = bool(communicator.events)
    pending.close()
    return begun


def work_is_awaitable() -> bool:
    """Whether what torch returns for a collective under way can be awaited."""
    return hasattr(dist.Work, "__await__")


def wrapped_work_is_awaitable() -> bool:
    """Whether waiting in another thread for one of torch's futures can."""
    future: torch.futures.Future[int] = torch.futures.Future()

    async def run() -> int:
        waiting = asyncio.create_task(asyncio.to_thread(future.wait))
        await asyncio.sleep(0)
        future.set_result(1)
        return await waiting

    return _finished(run()) == 1


def collectives_start_at_once() -> bool:
    """Whether a gather takes ``async_op``, with which it starts and returns before it is done."""
    return "async_op" in inspect.signature(dist.all_gather_into_tensor).parameters


def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to its end in a thread of its own: a notebook's thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
