"""ZeRO-1 and ZeRO-2 (Rajbhandari et al. 2020): DDP whose ranks share out the optimizer, then the gradients.

A reduce-scatter leaves each rank the mean gradient of its shard only, half of what an all-reduce does; the
other half, an all-gather, moves the updated parameters instead
(:meth:`pdtlib.engine.data_parallel.replica.Replica.publish`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pdtlib.engine.data_parallel.ddp import DDP, Line
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.pending import Pending
from pdtlib.engine.split_backward import left_for_later
from pdtlib.engine.transfers import start_reduce_scatter


class Zero1(DDP):
    """Whole parameters and gradients on every rank; optimizer states and updates of a shard only."""

    stage = 1
    sharded = True

    def _reduce(self, flat: Flat) -> Pending:
        whole = flat.whole_gradients()
        flat.grad_shard, flat.reduced = whole[flat.start : flat.stop], True
        return start_reduce_scatter(flat.grad_shard, whole, flat.group, phase="grads")


class Zero2(DDP):
    """As :class:`Zero1`, and of gradients a rank keeps its shard only: a bucket is freed once it is reduced.

    One bucket is filled while the one before it is reduced; no third one exists. So that no whole gradient
    outlives its micro-batch, each backward pass reduces, also under ``no_sync()``.
    """

    stage = 2
    sharded = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    @contextmanager
    def backward_of(
        self, part: int, *, inputs: bool = True, weights: bool = True, last: bool = True
    ) -> Iterator[None]:
        for line in self._lines:
            line.open = {part}
        yield
        if weights:
            self._after_backward(part)

    def _on_gradient(self, line: Line, bucket: int, index: int, param: nn.Parameter) -> None:
        if left_for_later(param):
            return
        takes_memory = not self.flats[bucket].holds_whole_gradients
        if takes_memory and sum(flat.holds_whole_gradients for flat in self.flats) > 1:
            self._wait_for_reductions()
        super()._on_gradient(line, bucket, index, param)

    def _reduce(self, flat: Flat) -> Pending:
        self._wait_for_reductions()
        return flat.start_reduction()

    def _wait_for_reductions(self) -> None:
        for pending in self._pending:
            pending.wait()

    def _after_backward(self, part: int = 0) -> None:
        self._close(part)
        self._wait_for_all()

    def _finish_gradients(self) -> None:
        for flat in self.flats:
            flat.complete()
