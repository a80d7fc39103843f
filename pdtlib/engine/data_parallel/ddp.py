"""Data parallelism with whole parameters on every rank: buckets of gradients, sent while backward goes on.

Stage 0 (DDP): every rank has the whole mean gradient. :mod:`pdtlib.engine.data_parallel.zero` builds ZeRO-1
and ZeRO-2 on it.
"""

from functools import partial
from itertools import groupby

import torch
from torch import nn

from pdtlib.engine.collectives import Pending, start_all_reduce
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.mesh import Group
from pdtlib.plan.sharding import buckets


class DDP(Replica):
    """Distributed data parallelism (Li et al. 2020): averages gradients by one all-reduce a bucket.

    Parameters are put into buckets in reverse order, since the last layer's gradients come first. A bucket is
    sent as soon as it and all buckets before it are complete, so that all ranks send in one order, whatever
    parameters a rank did not use; what is left is sent when backward ends. A frozen parameter is in no
    bucket.
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
        for members in self._bucket_members(bucket_bytes, grad_dtype or dtype):
            self.flats.append(Flat(members, group, sharded=self.sharded, dtype=dtype, grad_dtype=grad_dtype))
        for bucket, flat in enumerate(self.flats):
            for index, slot in enumerate(flat.slots):
                slot.param.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket, index))
        self._waiting_for = [set(range(len(flat.slots))) for flat in self.flats]
        self._next = 0
        self._pending: list[Pending] = []

    def _bucket_members(
        self, bucket_bytes: int, grad_dtype: torch.dtype | None
    ) -> list[list[tuple[str, nn.Parameter]]]:
        """Parameters of each bucket; a bucket has one dtype."""
        named = [(name, param) for name, param in self.module.named_parameters() if param.requires_grad]
        found = []
        for dtype, run in groupby(
            sorted(named, key=lambda item: str(item[1].dtype)), lambda item: item[1].dtype
        ):
            members = list(run)
            item_bytes = torch.empty((), dtype=grad_dtype or dtype).element_size()
            sizes = [param.numel() * item_bytes for _, param in members]
            found += [[members[i] for i in bucket] for bucket in buckets(sizes, bucket_bytes)]
        return found

    def _on_gradient(self, bucket: int, index: int, param: nn.Parameter) -> None:
        """Move a parameter's new gradient into its bucket, and send every bucket that this completes."""
        grad, param.grad = param.grad, None
        assert grad is not None
        if bucket < self._next:
            raise RuntimeError(
                "a gradient arrived after its bucket was sent: run a step's backward passes but the last one "
                "under no_sync(), and call finish_gradients() after the last"
            )
        self.flats[bucket].add_gradient(index, grad)
        self._waiting_for[bucket].discard(index)
        if self._syncing:
            while self._next < len(self.flats) and not self._waiting_for[self._next]:
                self._send_next()

    def _after_backward(self) -> None:
        if self._syncing:
            self._send_rest()
        self._waiting_for = [set(range(len(flat.slots))) for flat in self.flats]

    def _send_rest(self) -> None:
        while self._next < len(self.flats):
            self._send_next()

    def _send_next(self) -> None:
        flat = self.flats[self._next]
        self._next += 1
        self._pending.append(self._reduce(flat))

    def _reduce(self, flat: Flat) -> Pending:
        """Start to sum the flat's gradients over the group."""
        flat.grad_shard, flat.reduced = flat.whole_gradients(), True
        return start_all_reduce(flat.grad_shard, self.group, phase="grads")

    def _finish_gradients(self) -> None:
        self._send_rest()
        self._wait_for_all()
        for flat in self.flats:
            flat.average()

    def _wait_for_all(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        self._next = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._wait_for_all()
        for flat in self.flats:
            flat.forget_gradients()
        self._waiting_for = [set(range(len(flat.slots))) for flat in self.flats]
