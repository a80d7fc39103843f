"""The explorers by id."""

from __future__ import annotations

import importlib

from pdtlib.explore.explorer import Explorer

IDS = (
    "memory-stack",
    "training-time",
    "ring-all-reduce",
    "zero",
    "overlap",
    "tensor-split",
    "schedule-player",
    "sequence-regions",
    "rank-cube",
    "planner",
    "config-lint",
    "prefetch",
    "async-timeline",
    "failures",
    "mfu",
    "thresholds",
    "playground",
)


def get(id: str) -> Explorer:
    """The explorer of that id; raises ValueError with the ids there are."""
    if id not in IDS:
        raise ValueError(f"explorer {id!r} does not exist; there are {', '.join(IDS)}")
    module = importlib.import_module(f"pdtlib.explore.explorers.{id.replace('-', '_')}")
    explorer: Explorer = module.EXPLORER
    return explorer
