"""Which rank is at work longest in a step, told to all of them while the next step runs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pdtlib.observe.diagnosis import Slowest, slowest


class WorkSpread:
    """One float64 of every rank a step: the seconds in which it did not wait for a message.

    Nobody waits for the answer: it is asked for in one step and read in the next, after that step's own
    messages have come from every rank. It is no part of the algorithm, so it is not in the ledger.
    """

    def __init__(self, *, device: torch.device) -> None:
        self.device = device
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self._pending: tuple[Any, list[torch.Tensor]] | None = None

    def exchange(self, work_s: float) -> Slowest | None:
        """Tell this rank's work of a step; returns who was slowest in the step before, None in the first.

        Every rank calls it once a step. Alone there is nobody to compare with, and the answer stays None.
        """
        found = self.finish()
        if self.size > 1:
            mine = torch.tensor([work_s], dtype=torch.float64, device=self.device)
            everyone = [torch.empty_like(mine) for _ in range(self.size)]
            self._pending = dist.all_gather(everyone, mine, async_op=True), everyone
        return found

    def finish(self) -> Slowest | None:
        """Read the answer that is under way, if there is one."""
        if self._pending is None:
            return None
        work, everyone = self._pending
        work.wait()
        self._pending = None
        return slowest({rank: float(one) for rank, one in enumerate(everyone)})
