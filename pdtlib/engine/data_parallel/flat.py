"""One flat buffer for many tensors: the unit in which data parallelism sends, shards and frees.

A :class:`Buffer` is a 1-D tensor whose storage can be given back and taken again while every view of it stays
valid; a :class:`Flat` holds the parameters of one bucket or block in such a buffer, their gradients in
another, and this rank's shard of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.transfers import start_broadcast, start_reduce_scatter
from pdtlib.plan.sharding import padded_numel, shard_range

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in a flat buffer: elements ``start`` to ``stop``."""

    name: str
    param: nn.Parameter
    shape: torch.Size
    start: int
    stop: int


class Whole:
    """Bytes of buffers that have memory: ``now``, and the ``most`` since :meth:`begin`."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def add(self, num_bytes: int) -> None:
        """A buffer has taken memory, or given it back where ``num_bytes`` is negative."""
        self.now += num_bytes
        self.most = max(self.most, self.now)

    def begin(self) -> None:
        """Forget how much there was before."""
        self.most = self.now


class Buffer:
    """A flat tensor ``[numel]`` whose memory comes and goes; its contents are lost when it is freed."""

    def __init__(
        self, slots: Sequence[Slot], numel: int, *, dtype: torch.dtype, device: torch.device, whole: Whole
    ) -> None:
        self._whole = whole
        self.tensor = torch.empty(numel, dtype=dtype, device=device)
        self._num_bytes = numel * self.tensor.element_size()
        self._end = slots[-1].stop
        self.views = [self.tensor[slot.start : slot.stop].view(slot.shape) for slot in slots]
        self.allocated = True
        self._whole.add(self._num_bytes)
        self._clear_padding()

    def allocate(self) -> None:
        """Take memory; what it holds is undefined but for the padding, which is zero."""
        if not self.allocated:
            self.tensor.untyped_storage().resize_(self._num_bytes)
            self.allocated = True
            self._whole.add(self._num_bytes)
            self._clear_padding()

    def free(self) -> None:
        """Give the memory back; views (also those that autograd keeps) become valid again with the next
        one."""
        if self.allocated:
            self.tensor.untyped_storage().resize_(0)
            self.allocated = False
            self._whole.add(-self._num_bytes)

    def _clear_padding(self) -> None:
        self.tensor[self._end :].zero_()


class Flat:
    """Parameters of one dtype that are sent and sharded together by the ranks of ``group``.

    ``params`` is the buffer that the parameters are views of. ``shard`` is this rank's part of it (``[padded
    / size]``): a view while the whole is kept, a tensor of its own after :meth:`keep_shard_only`. ``master``
    is the shard in full precision where the parameters are held in fewer bits, else the shard itself.
    Gradients are divided by ``num_replicas``, by default the ranks of the group. ``whole`` counts both
    buffers.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        group: Group,
        *,
        sharded: bool,
        whole: Whole,
        dtype: torch.dtype | None = None,
        grad_dtype: torch.dtype | None = None,
        num_replicas: int | None = None,
    ) -> None:
        self.group = group
        self.whole = whole
        self.num_replicas = num_replicas or group.size
        self.slots: list[Slot] = []
        stop = 0
        for name, param in named:
            start, stop = stop, stop + param.numel()
            self.slots.append(Slot(name, param, param.shape, start, stop))
        first = self.slots[0].param
        self.numel = stop
        self.parts = group.size if sharded else 1
        self.padded = padded_numel(stop, self.parts)
        self.start, self.stop = shard_range(stop, self.parts, group.rank if sharded else 0)
        self.dtype = dtype or first.dtype
        self.grad_dtype = grad_dtype or self.dtype
        self.trainable = first.requires_grad
        self._load(first)
        self._hidden: list[torch.Tensor] = []
        self.grads: Buffer | None = None
        self.grad_shard: torch.Tensor | None = None
        self._absent = set(range(len(self.slots)))
        self.reduced = False  # grad_shard holds a sum over the group
        self.reducing = False  # the whole gradients are being sent

    def _buffer(self, dtype: torch.dtype, device: torch.device) -> Buffer:
        return Buffer(self.slots, self.padded, dtype=dtype, device=device, whole=self.whole)

    def _load(self, first: nn.Parameter) -> None:
        """Copy rank 0's parameters into one buffer and make the parameters views of it."""
        original = self._buffer(first.dtype, first.device)
        for slot, view in zip(self.slots, original.views, strict=True):
            view.copy_(slot.param.detach())
        start_broadcast(original.tensor, self.group, phase="init").wait()
        self.params = original
        if self.dtype != first.dtype:
            self.params = self._buffer(self.dtype, first.device)
            self.params.tensor.copy_(original.tensor)
        for slot, view in zip(self.slots, self.params.views, strict=True):
            slot.param.data = view
        self.shard = self.params.tensor[self.start : self.stop]
        self.master = self.shard
        if self.trainable and self.dtype in HALF:
            self.master = original.tensor[self.start : self.stop].to(torch.float32, copy=True)
        if self.params is not original:
            original.free()

    def keep_shard_only(self) -> None:
        """Free the whole parameters; from now on they exist between :meth:`show` and :meth:`hide`."""
        own = self.shard.clone()
        if self.master is self.shard:
            self.master = own
        self.shard = own
        filler = own.new_full((), float("nan") if own.is_floating_point() else 0)
        self._hidden = [filler.expand(slot.shape) for slot in self.slots]
        self.hide()

    def show(self) -> None:
        """Take memory for the whole parameters, to be filled by a gather."""
        self.params.allocate()
        for slot, view in zip(self.slots, self.params.views, strict=True):
            slot.param.data = view

    def hide(self) -> None:
        """Free the whole parameters. Who reads one now finds its shape, filled with NaN."""
        self.params.free()
        for slot, hidden in zip(self.slots, self._hidden, strict=True):
            slot.param.data = hidden

    def span(self, slot: Slot) -> tuple[int, int]:
        """Where in this rank's shard the parameter lies; start >= stop if it does not."""
        return max(slot.start, self.start) - self.start, min(slot.stop, self.stop) - self.start

    @property
    def holds_whole_gradients(self) -> bool:
        """Whether the whole gradients have memory now."""
        return self.grads is not None and self.grads.allocated

    def add_gradient(self, index: int, grad: torch.Tensor) -> None:
        """Add the gradient of parameter ``index`` to the whole buffer, taking its memory if necessary.

        It is divided by ``num_replicas`` on its way, which costs nothing there, so the sum over the group
        is the mean.
        """
        if self.grads is None:
            self.grads = self._buffer(self.grad_dtype, grad.device)
        self.grads.allocate()
        view, share = self.grads.views[index], 1 / self.num_replicas
        if index in self._absent:
            self._absent.discard(index)
            torch.mul(grad.to(view.dtype), share, out=view)
        else:
            view.add_(grad, alpha=share)

    def whole_gradients(self) -> torch.Tensor:
        """The whole flat gradient ``[padded]``; parameters without a gradient have zeros."""
        if self.grads is None:
            self.grads = self._buffer(self.grad_dtype, self.shard.device)
        self.grads.allocate()
        for index in self._absent:
            self.grads.views[index].zero_()
        self._absent.clear()
        return self.grads.tensor

    def start_reduction(self) -> Pending:
        """Start to add the group's sum of the whole gradients to ``grad_shard``; waiting frees the whole."""
        whole = self.whole_gradients()
        if self.grad_shard is None:
            self.grad_shard = whole.new_empty(self.stop - self.start)
        shard = self.grad_shard
        out = torch.empty_like(shard) if self.reduced else shard
        pending = start_reduce_scatter(out, whole, self.group, phase="grads")
        if self.reduced:
            pending.then(lambda: shard.add_(out))
        self.reduced = self.reducing = True
        return pending.then(self._free_whole_gradients)

    def _free_whole_gradients(self) -> None:
        self.reducing = False
        self._absent = set(range(len(self.slots)))
        if self.grads is not None:
            self.grads.free()

    def complete(self) -> None:
        """Give ``grad_shard`` memory where no gradient came in this step: it is zero then."""
        if self.grad_shard is None:
            self.grad_shard = torch.empty(
                self.stop - self.start, dtype=self.grad_dtype, device=self.shard.device
            )
        if not self.reduced:
            self.grad_shard.zero_()

    def forget_gradients(self) -> None:
        """Begin anew: the next gradient of each parameter replaces what the buffers hold."""
        self._absent = set(range(len(self.slots)))
        self.reduced = False
