"""A part of the agent's store that no earlier start of the ranks has written to.

torchrun's agent keeps one key-value store while it starts the ranks again and again (torch 2.13). Ranks that
meet through it after a restart may read the addresses that their dead predecessors left under the same keys;
gloo then calls a port at which nobody listens. So the ranks first agree on a prefix: each shows a number
that it has just drawn, rank 0 answers with a prefix and the numbers that it has seen, and a rank takes the
prefix from an answer that has its own number, which no earlier answer can have.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

POLL_S = 0.01


def fresh_store(store: dist.Store, *, rank: int, world_size: int, timeout_s: float) -> dist.Store:
    """``store`` under a prefix that this start of the ranks has to itself. Called by all ranks.

    Raises :class:`TimeoutError` when some rank does not show up.
    """
    stop = time.monotonic() + timeout_s
    if rank == 0:
        prefix = uuid.uuid4().hex
        while not _welcome(store, prefix, world_size):
            _pause(stop, "rank 0 waits for the others to start")
    else:
        number, found = uuid.uuid4().hex, None
        store.set(f"pdt/hello/{rank}", number)
        while found is None:
            _pause(stop, f"rank {rank} waits for rank 0 to start")
            found = _answer(store, rank, number)
        prefix = found
        store.set(f"pdt/accepted/{rank}", prefix)
    fresh = dist.PrefixStore(f"pdt/{prefix}", store)
    fresh.set_timeout(timedelta(seconds=timeout_s))
    return fresh


def _welcome(store: dist.Store, prefix: str, world_size: int) -> bool:
    """Answer those that have shown a number so far; True once all have accepted the prefix."""
    others = range(1, world_size)
    numbers = {str(other): _read(store, f"pdt/hello/{other}") for other in others}
    store.set("pdt/welcome", json.dumps({"prefix": prefix, "numbers": numbers}))
    return all(_read(store, f"pdt/accepted/{other}") == prefix for other in others)


def _answer(store: dist.Store, rank: int, number: str) -> str | None:
    """The prefix, if rank 0 has answered to ``number``."""
    text = _read(store, "pdt/welcome")
    welcome = json.loads(text) if text else {"numbers": {}}
    return welcome["prefix"] if welcome["numbers"].get(str(rank)) == number else None


def _read(store: dist.Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _pause(stop: float, what: str) -> None:
    if time.monotonic() > stop:
        raise TimeoutError(what)
    time.sleep(POLL_S)
