"""Bytes that a rank holds, counted from the live tensors themselves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Identity -> bytes of every storage under ``tensors``; views of one storage count once."""
    return {storage._cdata: storage.nbytes() for storage in (t.untyped_storage() for t in tensors)}


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
    ``excluded`` tensors (parameters, the buffers they are gathered into) are not activations and are left
    out. What a recomputed layer keeps for a moment during its own backward pass does not pass through the
    hook. What a split backward pass keeps for its second half is told to all meters by :func:`kept`.
    """

    def __init__(self, *, excluded: Iterable[Tensor] = ()) -> None:
        self._excluded = set(storages(excluded))
        self._views: dict[int, int] = {}
        self.held_bytes = 0
        self.peak_bytes = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> ActivationMeter:
        self._hooks.__enter__()
        _counting.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _counting.remove(self)
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        identity, size = storage._cdata, storage.nbytes()
        saved = _Saved(tensor)
        if identity in self._excluded:
            return saved
        if self._views.setdefault(identity, 0) == 0:
            self.held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self._views[identity] += 1
        weakref.finalize(saved, self._free, identity, size)
        return saved

    def _unpack(self, saved: _Saved) -> Tensor:
        return saved.tensor

    def _free(self, identity: int, size: int) -> None:
        self._views[identity] -= 1
        if self._views[identity] == 0:
            self.held_bytes -= size


class _Saved:
    """Holds a saved tensor, so that its end of life can be watched."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


_counting: list[ActivationMeter] = []


def kept(*tensors: Tensor) -> tuple[_Saved, ...]:
    """Let the meters that are counting now add ``tensors``, until the result is forgotten."""
    return tuple(meter._pack(tensor) for meter in _counting for tensor in tensors)
