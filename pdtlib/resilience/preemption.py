"""Ending on request: a scheduler that takes a machine away says so with SIGTERM, some time before it does.

The ranks hear of it at different moments, perhaps only some of them. They compare notes after each step (one
int32, over a group of their own), so all end after the same step, with a checkpoint. torchrun passes SIGTERM
on and then waits for its ranks for ``--shutdown-timeout`` seconds, 30 unless told otherwise.
"""

from __future__ import annotations

import signal

import torch
import torch.distributed as dist

from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.pieces import Place


class Preemption(Companion):
    """From :meth:`begin` on, SIGTERM no longer ends the process but lets the run end after its step."""

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        self._told = False
        self._ranks = dist.new_group(backend="gloo") if dist.is_initialized() else None
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self._told = True

    def must_end(self, step: int) -> bool:
        told = torch.tensor(int(self._told), dtype=torch.int32)
        if self._ranks is not None:
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self._ranks)
        return bool(told)

    def end(self) -> None:
        self._ranks = None  # the handler, which stays, keeps this object
