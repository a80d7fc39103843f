"""Bytes that a rank holds, counted from the live tensors themselves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Address -> bytes of every storage under ``tensors``; two views of one storage count once."""
    found: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    return found


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages under ``tensors``."""
    return sum(storages(tensors).values())


def live_tensors() -> list[Tensor]:
    """Every tensor that Python can reach now (what autograd alone keeps is not among them)."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) in (Tensor, torch.nn.Parameter)]


class ActivationMeter:
    """Counts, inside a ``with`` block, the bytes that autograd keeps for the backward pass.

    Every saved tensor passes through a hook, which adds its storage when the first view of it is saved and
    subtracts it when the last is freed. ``peak_bytes`` is the most that was held at once. Storages of
    ``excluded`` tensors (parameters, their gathered copies) are not activations and are left out. What a
    recomputed layer keeps for a moment during its own backward pass does not pass through the hook.
    """

    def __init__(self, *, excluded: Iterable[Tensor] = ()) -> None:
        self._excluded = set(storages(excluded))
        self._views: dict[int, int] = {}
        self.held_bytes = 0
        self.peak_bytes = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> ActivationMeter:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        saved = _Saved(tensor)
        if size == 0 or address in self._excluded:
            return saved
        if self._views.setdefault(address, 0) == 0:
            self.held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self._views[address] += 1
        weakref.finalize(saved, self._free, address, size)
        return saved

    def _free(self, address: int, size: int) -> None:
        self._views[address] -= 1
        if self._views[address] == 0:
            self.held_bytes -= size


class _Saved:
    """Holds a saved tensor, so that its end of life can be watched."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _unpack(saved: _Saved) -> Tensor:
    return saved.tensor
