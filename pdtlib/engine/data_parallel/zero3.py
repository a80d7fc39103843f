"""ZeRO-3: a rank keeps its shard of everything, and whole parameters exist one block at a time.

A unit (a block, or the root with all that lies outside blocks) is gathered before its forward pass, while the
block before it computes, and freed after it; in the backward pass again, in reverse order. When a block's
backward pass is over, its gradients are reduced while the next one computes. The same idea is known as fully
sharded data parallelism (Zhao et al. 2023).

What autograd saves of a parameter is a view of the unit's buffer, whose memory is freed and refilled beneath
it (:class:`pdtlib.engine.data_parallel.flat.Buffer`), so nothing whole is kept between forward and backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from pdtlib.engine.collectives import Pending, start_all_gather
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.replica import Replica, tensors_in
from pdtlib.engine.data_parallel.units import unit_members
from pdtlib.engine.mesh import Group
from pdtlib.engine.split_backward import left_for_later


class Unit:
    """Parameters that are gathered together and freed together."""

    def __init__(self, name: str, flats: list[Flat]) -> None:
        self.name = name
        self.flats = flats
        self.open_calls = 0  # forward passes whose backward pass is still to come
        self.entered = False  # whether the block was ever called
        self._gathering: list[Pending] = []

    def start_gather(self, phase: str) -> None:
        """Start to gather whatever is not gathered yet."""
        for flat in self.flats:
            if not flat.params.allocated:
                flat.show()
                whole, shard = flat.params.tensor, flat.shard
                self._gathering.append(start_all_gather(whole, shard, flat.group, phase=phase))

    def gather(self, phase: str) -> None:
        """Return when all parameters are in place."""
        self.start_gather(phase)
        self._arrive()

    def _arrive(self) -> None:
        for pending in self._gathering:
            pending.wait()
        self._gathering.clear()

    def free(self) -> None:
        """Free the whole parameters."""
        self._arrive()
        for flat in self.flats:
            if flat.params.allocated:
                flat.hide()


class Zero3(Replica):
    """Parameters, gradients and optimizer states are sharded; see :func:`pdtlib.engine.data_parallel`.

    Every rank must run the same blocks in the same order. With ``reshard_after_forward=False`` a block stays
    gathered from its forward to the end of its backward pass: one gather less, more memory.
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
        self._order: list[Unit] = []  # blocks as the current forward pass has entered them
        self._expected: list[Unit] = []  # the same of the pass before, by which the next gather is foreseen
        self._position = 0  # in the backward pass: blocks of the order that are still to come
        self._active: list[Unit] = []  # blocks whose backward pass has begun and is not over
        self._reducing: list[Pending] = []
        self.blocks: list[Unit] = []
        self.root = Unit("", [])
        for name, block, runs in unit_members(module, blocks, self.is_expert):
            flats = [self.make_flat(run, sharded=True, grad_dtype=grad_dtype) for run in runs]
            unit = Unit(name, flats)
            for flat in flats:
                flat.keep_shard_only()
                for index, slot in enumerate(flat.slots):
                    if flat.trainable:
                        hook = partial(self._on_gradient, unit, flat, index)
                        slot.param.register_post_accumulate_grad_hook(hook)
            self.flats += flats
            if block is None:
                self.root = unit
            else:
                self.blocks.append(unit)
                block.register_forward_pre_hook(partial(self._enter_block, unit))
                block.register_forward_hook(partial(self._leave_block, unit))

    # --- forward ------------------------------------------------------------------------------------------

    def _before_forward(self) -> None:
        self._expected, self._order = self._order, []
        self.root.gather("forward")
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
            self.root.free()

    # --- backward -----------------------------------------------------------------------------------------

    def _before_backward(self) -> None:
        self.root.gather("backward")
        self._position = len(self._order)
        self._foresee_backward()

    def _foresee_backward(self) -> None:
        if self._position > 0:
            self._order[self._position - 1].start_gather("backward")

    def _enter_backward(self, unit: Unit) -> None:
        """A gradient has reached the block's output: what ran after it is done."""
        for other in [other for other in self._active if other is not unit]:
            if other.open_calls == 0:
                self._finish_unit(other)
            else:
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
        if not (unit.entered or unit is self.root):
            raise RuntimeError(
                f"{flat.slots[index].name} was used, but its block {unit.name} was never called, so ZeRO-3 "
                "did not gather it; call the block itself, not its forward or a part, or choose other blocks="
            )
        if flat.reducing:
            self._wait_for_reductions()
        if unit not in self._active and unit is not self.root:
            self._active.append(unit)
        flat.add_gradient(index, grad)

    def _finish_unit(self, unit: Unit) -> None:
        """Free the unit's parameters and start to reduce its gradients; those before it must have arrived."""
        unit.free()
        if unit in self._active:
            self._active.remove(unit)
        self._wait_for_reductions()
        self._reducing += [flat.start_reduction() for flat in unit.flats if flat.trainable]

    def _wait_for_reductions(self) -> None:
        for pending in self._reducing:
            pending.wait()
        self._reducing.clear()

    def _after_backward(self) -> None:
        for unit in [*self._active, self.root]:
            self._finish_unit(unit)
        self._wait_for_reductions()

    # --- between steps ------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Changes nothing: whole gradients never outlive their block, so each backward pass reduces."""
        yield

    def _finish_gradients(self) -> None:
        for flat in self.trainable:
            flat.average()

    def publish(self, flat: Flat) -> None:
        """A new shard: whole parameters that were left gathered are out of date."""
        self._free_all()

    def _free_all(self) -> None:
        for unit in [self.root, *self.blocks]:
            unit.free()
            unit.open_calls = 0
        self._active.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._wait_for_reductions()
        self._free_all()
        for flat in self.flats:
            flat.forget_gradients()
