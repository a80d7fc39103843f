"""What every form of data parallelism has in common: a module whose gradients are averaged over a group.

A training step, the same on every stage::

    for last, (inputs, targets) in micro_batches:
        with contextlib.nullcontext() if last else replica.no_sync():
            optimizer.scale(loss(replica(inputs), targets)).backward()
    replica.finish_gradients()
    optimizer.clip_grad_norm(1.0)
    optimizer.step()
    optimizer.zero_grad()

A parameter that got no gradient in a step has gradient zero, and AdamW treats it so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat, Whole
from pdtlib.engine.data_parallel.parts import Named
from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.transfers import start_all_gather, start_broadcast


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


class Replica(nn.Module):
    """One rank's copy of ``module``; subclasses say when whole parameters and gradients exist.

    ``flats`` are the buffers that hold the parameters, ``whole`` counts their bytes. Attributes of interest
    to an optimizer are those of :class:`pdtlib.engine.data_parallel.flat.Flat`: ``master``, ``shard`` and
    ``grad_shard``.
    """

    stage: int

    def __init__(
        self, module: nn.Module, group: Group, *, dtype: torch.dtype | None, cut: ModelCut | None
    ) -> None:
        super().__init__()
        if vars(module).get("in_replica"):
            raise ValueError(
                f"module: this {type(module).__name__} is in a replica already; build another one"
            )
        vars(module)["in_replica"] = True
        self.module = module
        self.group = group
        self.dtype = dtype
        self.cut = cut
        self.flats: list[Flat] = []
        self.whole = Whole()
        self._syncing = True
        self._in_backward = False
        self._on_gradients: dict[int, Callable[[nn.Parameter], None]] = {}
        for buffer in module.buffers():
            self._broadcast_buffer(buffer)

    def is_expert(self, param: nn.Parameter) -> bool:
        """Whether the parameter is an expert's, which fewer ranks have than ``group``."""
        return self.cut is not None and self.cut.is_expert(param)

    def make_flat(self, named: Named, *, sharded: bool, grad_dtype: torch.dtype | None) -> Flat:
        """A flat of parameters that are all experts', or none; gradients are averaged over the replicas."""
        group = self.group
        if self.is_expert(named[0][1]):
            assert self.cut is not None
            assert self.cut.experts is not None
            group = self.cut.experts.group
        return Flat(
            named,
            group,
            sharded=sharded,
            dtype=self.dtype,
            grad_dtype=grad_dtype,
            num_replicas=self.group.size,
            whole=self.whole,
        )

    def _broadcast_buffer(self, buffer: torch.Tensor) -> None:
        copy = buffer.detach().contiguous()
        start_broadcast(copy, self.group, phase="init").wait()
        buffer.detach().copy_(copy)

    def _watch(self, param: nn.Parameter, on_gradient: Callable[[nn.Parameter], None]) -> None:
        """Call ``on_gradient`` with ``param`` whenever that has got a gradient."""
        self._on_gradients[id(param)] = on_gradient
        param.register_post_accumulate_grad_hook(on_gradient)

    def give_gradient(self, param: nn.Parameter, grad: torch.Tensor) -> None:
        """As if a backward pass had left ``grad`` in ``param``: for who computes gradients by other means.

        ``param.backward(grad)`` would do, and calls 25 functions for it.
        """
        param.grad = grad
        self._on_gradients[id(param)](param)

    # --- forward and backward -----------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module. Floating-point inputs are cast to the precision of the parameters."""
        if self._in_backward:  # the last backward pass was broken off by an exception
            self._abandon()
        args = tuple(self.cast(value) for value in args)
        kwargs = {name: self.cast(value) for name, value in kwargs.items()}
        try:
            self._before_forward()
            output = self.module(*args, **kwargs)
        except BaseException:
            self._abandon()
            raise
        returning = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        self._after_forward(will_return=bool(returning))
        for tensor in returning:
            tensor.register_hook(self._on_output_gradient)
        return output

    def cast(self, value: Any) -> Any:
        """A floating-point tensor in the precision of the parameters; anything else as it is."""
        if self.dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype)
        return value

    def _on_output_gradient(self, _: torch.Tensor) -> None:
        """Runs before any other part of the backward pass, on every rank."""
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)
            self._before_backward()

    def _finish_backward(self) -> None:
        self._after_backward()
        self._in_backward = False

    def _before_forward(self) -> None:
        """For subclasses that have something to gather."""

    def _after_forward(self, *, will_return: bool) -> None:
        """For subclasses that have something to free; ``will_return``: a backward pass can follow."""

    def _before_backward(self) -> None:
        """For subclasses that have something to gather or to wait for."""

    def _after_backward(self) -> None:
        """For subclasses that have gradients left to send."""

    # --- parts: for who calls them instead of the whole module -------------------------------------------

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Run a forward pass of part number ``part`` of the module in here."""
        yield

    @contextmanager
    def backward_of(
        self, part: int, *, inputs: bool = True, weights: bool = True, last: bool = True
    ) -> Iterator[None]:
        """Run a backward pass of part number ``part`` in here, or one of its halves.

        ``inputs``: the gradients of inputs are computed. ``weights``: with this pass the gradients of a
        micro-batch's weights are complete. ``last``: no pass of the part follows in this step.
        """
        raise NotImplementedError

    def _abandon(self) -> None:
        """Return to the state between steps after an exception; gradients of the step are lost."""
        self._in_backward = False
        self.zero_grad()

    # --- gradients ----------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of the backward passes in here local; the first one outside sends their sum.

        From stage 2 on no rank keeps a whole gradient, so there each micro-batch is reduced, in here too.
        """
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def finish_gradients(self) -> None:
        """Wait until ``grad_shard`` of every flat holds the mean over the group. Call once before the
        optimizer."""
        self._finish_gradients()
        if self.cut is not None:
            self.cut.sum_partial_gradients(self.trainable)

    def _finish_gradients(self) -> None:
        """For subclasses: wait for what is under way."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients. They live in flat buffers; ``set_to_none`` is there for nn.Module's
        signature."""
        raise NotImplementedError

    # --- parameters ---------------------------------------------------------------------------------------

    @property
    def trainable(self) -> list[Flat]:
        """The flats that have gradients."""
        return [flat for flat in self.flats if flat.trainable]

    def publish(self, flat: Flat) -> Pending | None:
        """Make a new ``flat.shard`` known to the ranks that keep whole parameters."""
        if flat.parts == 1 or not flat.params.allocated:
            return None
        return start_all_gather(flat.params.tensor, flat.shard, flat.group, phase="params")

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Name -> a copy of the full tensor, on every rank; for tests and export."""
        return self._assemble("shard")

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Name -> a copy of the full mean gradient, between :meth:`finish_gradients` and the next step."""
        return self._assemble("grad_shard")

    def _assemble(self, attribute: str) -> dict[str, torch.Tensor]:
        full: dict[str, torch.Tensor] = {}
        for flat in self.flats:
            shard = getattr(flat, attribute)
            if shard is not None:
                full.update(assemble(flat, shard))
        if attribute == "shard":
            flat_params = {id(slot.param) for flat in self.flats for slot in flat.slots}
            for name, param in self.module.named_parameters():
                if id(param) not in flat_params:
                    full[name] = param.detach().clone()
        return full

    def held(self) -> dict[str, list[torch.Tensor]]:
        """The tensors that hold this rank's states: ``params``, ``grads`` and ``buffers``."""
        params = [flat.params.tensor if flat.params.allocated else flat.shard for flat in self.flats]
        in_flats = {id(slot.param) for flat in self.flats for slot in flat.slots}
        params += [param.data for param in self.module.parameters() if id(param) not in in_flats]
        grads = [
            flat.grads.tensor if flat.grads is not None and flat.grads.allocated else flat.grad_shard
            for flat in self.flats
        ]
        return {
            "params": params,
            "grads": [grad for grad in grads if grad is not None],
            "buffers": list(self.module.buffers()),
        }


def assemble(flat: Flat, shard: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gather a tensor that is sharded like ``flat`` and cut it into name -> full tensor."""
    whole = torch.empty(flat.padded, dtype=shard.dtype, device=shard.device)
    if flat.parts == 1:
        whole.copy_(shard)
    else:
        start_all_gather(whole, shard.contiguous(), flat.group, phase="export").wait()
    return {slot.name: whole[slot.start : slot.stop].view(slot.shape).clone() for slot in flat.slots}
