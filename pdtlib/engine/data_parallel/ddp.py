"""Data parallelism with whole parameters on every rank: buckets of gradients, sent while backward goes on.

Stage 0 (DDP): every rank has the whole mean gradient. :mod:`pdtlib.engine.data_parallel.zero` builds ZeRO-1
and ZeRO-2 on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby

import torch
from torch import nn

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.parts import Named, Share, shares
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.transfers import start_all_reduce
from pdtlib.plan.sharding import buckets


class Line:
    """Buckets that are sent one after the other, and the parts of the module that still add to them."""

    def __init__(self, share: Share, buckets: range) -> None:
        self.owners = share.owners
        self.buckets = buckets
        self.reset()

    def reset(self) -> None:
        """Begin a step."""
        self.next = self.buckets.start
        self.open = set(self.owners)


class DDP(Replica):
    """Distributed data parallelism (Li et al. 2020): averages gradients by one all-reduce a bucket.

    Parameters are put into buckets in reverse order, since the last layer's gradients come first. A bucket is
    sent as soon as it and all buckets before it are complete, so that all ranks send in one order, whatever
    parameters a rank did not use; what is left is sent when backward ends. A frozen parameter is in no
    bucket. The parts of a :class:`pdtlib.engine.data_parallel.parts.Parts` have buckets of their own.
    """

    stage = 0
    sharded = False

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        dtype: torch.dtype | None = None,
        grad_dtype: torch.dtype | None = None,
        cut: ModelCut | None = None,
        bucket_bytes: int,
    ) -> None:
        super().__init__(module, group, dtype=dtype, cut=cut)
        for param in module.parameters():
            if not param.requires_grad:
                self._broadcast_buffer(param)
                if dtype is not None and param.is_floating_point():
                    param.data = param.data.to(dtype)
        self._lines: list[Line] = []
        for share in shares(module, self.is_expert):
            first = len(self.flats)
            for members in self._bucket_members(share.named, bucket_bytes, grad_dtype or dtype):
                flat = self.make_flat(members, sharded=self.sharded, grad_dtype=grad_dtype)
                self.flats.append(flat)
            line = Line(share, range(first, len(self.flats)))
            self._lines.append(line)
            for bucket in line.buckets:
                for index, slot in enumerate(self.flats[bucket].slots):
                    hook = partial(self._on_gradient, line, bucket, index)
                    self._watch(slot.param, hook)
        self._pending: list[Pending] = []
        self._reset()

    def _reset(self) -> None:
        """Begin a step: every bucket waits for its gradients."""
        self._waiting_for = [set(range(len(flat.slots))) for flat in self.flats]
        for line in self._lines:
            line.reset()

    @staticmethod
    def _bucket_members(named: Named, bucket_bytes: int, grad_dtype: torch.dtype | None) -> list[Named]:
        """Parameters of each bucket; a bucket has one dtype."""
        trainable = [(name, param) for name, param in named if param.requires_grad]
        found = []
        for dtype, run in groupby(
            sorted(trainable, key=lambda item: str(item[1].dtype)), lambda item: item[1].dtype
        ):
            members = list(run)
            item_bytes = torch.empty((), dtype=grad_dtype or dtype).element_size()
            sizes = [param.numel() * item_bytes for _, param in members]
            found += [[members[i] for i in bucket] for bucket in buckets(sizes, bucket_bytes)]
        return found

    @contextmanager
    def backward_of(
        self, part: int, *, inputs: bool = True, weights: bool = True, last: bool = True
    ) -> Iterator[None]:
        self._syncing = last
        yield
        self._syncing = True
        if last:
            self._close(part)

    def _on_gradient(self, line: Line, bucket: int, index: int, param: nn.Parameter) -> None:
        """Move a parameter's new gradient into its bucket, and send every bucket that this completes."""
        grad, param.grad = param.grad, None
        if grad is None:  # left for later
            return
        if bucket < line.next:
            raise RuntimeError(
                "a gradient arrived after its bucket was sent: run a step's backward passes but the last one "
                "under no_sync(), and call finish_gradients() after the last"
            )
        self.flats[bucket].add_gradient(index, grad)
        if self._syncing and len(line.open) == 1:  # the part that runs now is the last one
            self._waiting_for[bucket].discard(index)
            while line.next < line.buckets.stop and not self._waiting_for[line.next]:
                self._send_next(line)

    def _after_backward(self) -> None:
        if self._syncing:
            self._close(0)

    def _close(self, part: int) -> None:
        """No gradient of this part comes any more in this step."""
        for line in self._lines:
            if part in line.owners:
                line.open.discard(part)
                if not line.open:
                    self._send_rest(line)

    def _send_rest(self, line: Line) -> None:
        while line.next < line.buckets.stop:
            self._send_next(line)

    def _send_next(self, line: Line) -> None:
        flat = self.flats[line.next]
        line.next += 1
        self._pending.append(self._reduce(flat))

    def _reduce(self, flat: Flat) -> Pending:
        """Start to sum the flat's gradients over the group."""
        flat.grad_shard, flat.reduced = flat.whole_gradients(), True
        return start_all_reduce(flat.grad_shard, flat.group, phase="grads")

    def _finish_gradients(self) -> None:
        for line in self._lines:
            self._send_rest(line)
        self._wait_for_all()
        for flat in self.flats:
            flat.complete()

    def _wait_for_all(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        self._reset()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._wait_for_all()
        for flat in self.flats:
            flat.forget_gradients()
