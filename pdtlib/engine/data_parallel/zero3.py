"""ZeRO-3: a rank keeps its shard of everything, and whole parameters exist one block at a time.

A unit (a block, or the root with all that lies outside blocks) is gathered before its forward pass, while the
block before it computes, and freed after it; in the backward pass again, in reverse order. When a block's
backward pass is over, its gradients are reduced while the next one computes. The same idea is known as fully
sharded data parallelism (Zhao et al. 2023).

What autograd saves of a parameter is a view of the unit's buffer, whose memory is freed and refilled beneath
it (:class:`pdtlib.engine.data_parallel.flat.Buffer`), so nothing whole is kept between forward and backward.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.parts import places
from pdtlib.engine.data_parallel.replica import Replica, tensors_in
from pdtlib.engine.data_parallel.units import Unit, unit_members
from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.split_backward import left_for_later


class Zero3(Replica):
    """Parameters, gradients and optimizer states are sharded; see :func:`pdtlib.engine.data_parallel`.

    Every rank must run the same blocks in the same order. With ``reshard_after_forward=False`` a block stays
    gathered from its forward to the end of its backward pass: one gather less, more memory.

    Of a module in parts, which a pipeline calls for many micro-batches before their backward passes, each
    part has a root, that is gathered and freed like a block. What is kept after a forward pass is kept until
    the part's last backward pass of the step.
    """

    stage = 3

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        blocks: Sequence[nn.Module] | None = None,
        dtype: torch.dtype | None = None,
        grad_dtype: torch.dtype | None = None,
        cut: ModelCut | None = None,
        reshard_after_forward: bool = True,
    ) -> None:
        super().__init__(module, group, dtype=dtype, cut=cut)
        self.reshard_after_forward = reshard_after_forward
        self._orders: dict[int, list[Unit]] = {}  # of each part, what its last forward pass entered
        self._order: list[Unit] = []  # blocks as the current forward pass has entered them
        self._expected: list[Unit] = []  # the same of the pass before, by which the next gather is foreseen
        self._position = 0  # in the backward pass: blocks of the order that are still to come
        self._active: list[Unit] = []  # blocks whose backward pass has begun and is not over
        self._reducing: list[Pending] = []
        self._reduces = True  # whether the current pass is one after which gradients are reduced
        self._done: set[int] | None = None  # parts that had their last pass; None for who calls the whole
        self.blocks: list[Unit] = []
        self.roots: list[Unit] = []
        place_of = places(module)

        def kind_of(param: nn.Parameter) -> Hashable:
            return place_of[id(param)], self.is_expert(param)

        for name, block, runs in unit_members(module, blocks, kind_of):
            units: dict[frozenset[int], Unit] = {}
            for run in runs:
                owners = place_of[id(run[0][1])].owners
                unit = units.setdefault(owners, Unit(name, owners))
                self._add_flat(unit, self.make_flat(run, sharded=True, grad_dtype=grad_dtype))
            if block is None:
                self.roots += units.values()
            else:
                (unit,) = units.values()
                self.blocks.append(unit)
                block.register_forward_pre_hook(partial(self._enter_block, unit))
                block.register_forward_hook(partial(self._leave_block, unit))

    def _add_flat(self, unit: Unit, flat: Flat) -> None:
        flat.keep_shard_only()
        unit.flats.append(flat)
        self.flats.append(flat)
        for index, slot in enumerate(flat.slots):
            if flat.trainable:
                hook = partial(self._on_gradient, unit, flat, index)
                self._watch(slot.param, hook)

    def _roots_of(self, part: int) -> list[Unit]:
        return [root for root in self.roots if part in root.owners]

    # --- forward ------------------------------------------------------------------------------------------

    def _before_forward(self, part: int = 0) -> None:
        self._expected, self._order = self._orders.get(part, []), []
        self._orders[part] = self._order
        for root in self._roots_of(part):
            root.gather("forward")
        if self._expected:
            self._expected[0].start_gather("forward")

    def _enter_block(self, unit: Unit, block: nn.Module, args: Any) -> None:
        unit.entered = True
        if unit in self._active:  # activation checkpointing runs it again inside its backward pass
            unit.gather("backward")
            return
        unit.gather("forward")
        if self._in_backward:
            return
        self._order.append(unit)
        following = len(self._order)
        if self._expected[following - 1 : following] == [unit] and following < len(self._expected):
            self._expected[following].start_gather("forward")

    def _leave_block(self, unit: Unit, block: nn.Module, args: Any, output: Any) -> None:
        if unit in self._active:
            return
        outputs = list(tensors_in(output))
        if not outputs:
            raise TypeError(
                f"block {unit.name} returned {type(output).__name__}: ZeRO-3 must see its output tensors, "
                "alone or in tuples, lists, dicts or dataclasses"
            )
        will_return = any(tensor.requires_grad for tensor in outputs)
        if will_return:
            self._watch_outputs(unit, outputs)
            if not self._in_backward:
                unit.open_calls += 1
        if self.reshard_after_forward or not will_return:
            unit.free()

    def _watch_outputs(self, unit: Unit, outputs: list[torch.Tensor]) -> None:
        """Call :meth:`_enter_backward` once, before any part of this call's backward pass."""
        begun = False

        def begin(_: torch.Tensor) -> None:
            nonlocal begun
            if not begun:
                begun = True
                self._enter_backward(unit)

        for tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(begin)

    def _after_forward(self, *, will_return: bool) -> None:
        for unit in self.blocks:
            if unit.open_calls == 0 or self.reshard_after_forward:
                unit.free()  # a gather that was foreseen and not needed
        if not will_return:
            for root in self.roots:
                root.free()

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        self._before_forward(part)
        yield
        for unit in [*self._expected, *self._order, *self._roots_of(part)]:
            unit.open_calls = 0  # counted anew when this pass's backward pass begins
            if self.reshard_after_forward:
                unit.free()

    # --- backward -----------------------------------------------------------------------------------------

    def _before_backward(self, part: int = 0) -> None:
        for root in self._roots_of(part):
            root.gather("backward")
        self._position = len(self._order)
        self._foresee_backward()

    @contextmanager
    def backward_of(
        self, part: int, *, inputs: bool = True, weights: bool = True, last: bool = True
    ) -> Iterator[None]:
        self._reduces, self._in_backward, self._order = weights, inputs, self._orders[part]
        self._done = (self._done or set()) | ({part} if last else set())
        if inputs:
            for unit in self._order:
                unit.open_calls += 1
            self._before_backward(part)
        yield
        self._after_backward(part)
        self._in_backward, self._reduces = False, True

    def _is_kept(self, unit: Unit) -> bool:
        """Whether whole parameters outlive the current pass."""
        return not (self.reshard_after_forward or self._done is None or unit.owners <= self._done)

    def _foresee_backward(self) -> None:
        if self._position > 0:
            self._order[self._position - 1].start_gather("backward")

    def _enter_backward(self, unit: Unit) -> None:
        """A gradient has reached the block's output: what ran after it is done."""
        for other in [other for other in self._active if other is not unit]:
            if other.open_calls == 0:
                self._finish_unit(other)
            elif not self._is_kept(other):
                other.free()
        unit.open_calls = max(0, unit.open_calls - 1)
        if unit not in self._active:
            self._active.append(unit)
        unit.gather("backward")
        while self._position > 0:
            self._position -= 1
            if self._order[self._position] is unit:
                break
        self._foresee_backward()

    def _on_gradient(self, unit: Unit, flat: Flat, index: int, param: nn.Parameter) -> None:
        if left_for_later(param):
            return
        grad, param.grad = param.grad, None
        assert grad is not None
        if not (unit.entered or unit in self.roots):
            raise RuntimeError(
                f"{flat.slots[index].name} was used, but its block {unit.name} was never called, so ZeRO-3 "
                "did not gather it; call the block itself, not its forward or a part, or choose other blocks="
            )
        if flat.reducing:
            self._wait_for_reductions()
        if unit not in self._active and unit not in self.roots:
            if not self._in_backward:  # weights' gradients alone, block by block
                self._finish_active()
            self._active.append(unit)
        flat.add_gradient(index, grad)

    def _finish_unit(self, unit: Unit) -> None:
        """Free the unit's parameters and start to reduce its gradients; those before it must have arrived."""
        if not self._is_kept(unit):
            unit.free()
        if unit in self._active:
            self._active.remove(unit)
        if self._reduces:
            self._wait_for_reductions()
            self._reducing += [flat.start_reduction() for flat in unit.flats if flat.trainable]

    def _finish_active(self) -> None:
        for unit in list(self._active):
            self._finish_unit(unit)

    def _wait_for_reductions(self) -> None:
        for pending in self._reducing:
            pending.wait()
        self._reducing.clear()

    def _after_backward(self, part: int = 0) -> None:
        self._finish_active()
        for root in self._roots_of(part):
            self._finish_unit(root)
        self._wait_for_reductions()

    # --- between steps ------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Changes nothing: whole gradients never outlive their block, so each backward pass reduces."""
        yield

    def _finish_gradients(self) -> None:
        self._free_all()  # what was kept for a part that had no pass in this step
        for flat in self.trainable:
            flat.complete()

    def publish(self, flat: Flat) -> None:
        """A new shard: whole parameters that were left gathered are out of date."""
        self._free_all()

    def _free_all(self) -> None:
        for unit in [*self.roots, *self.blocks]:
            unit.free()
            unit.open_calls = 0
        self._active.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._wait_for_reductions()
        self._free_all()
        self._done = None
        for flat in self.flats:
            flat.forget_gradients()
