"""Checkpoints free of the layout that wrote them: torch.distributed.checkpoint, whole shapes, no pickles.

Every rank writes the part of each tensor that it owns, described by its place in the *whole* tensor. Tensor
parallelism leaves a rank a box of the tensor, ZeRO a stretch of that box flattened, which is at most a few
boxes of the tensor itself, as DTensor's chunks are. So any layout on any number of ranks, or a plain
``torch.distributed.checkpoint.load`` into whole tensors, can read it back.

Keys: ``model.<name>`` (fp32 weights), ``optimizer.exp_avg.<name>``, ``optimizer.exp_avg_sq.<name>``, and
scalars ``run.<name>`` as fp64 tensors. There are no random states to save: batches and dropout masks are
functions of (seed, step).

A checkpoint appears under its name only when it is complete. Reading one never runs code from it: tensors are
loaded with ``weights_only``, nothing else is, and the index, which torch writes as a pickle, is read by an
unpickler that knows a dozen harmless classes (:mod:`pdtlib.engine.training.checkpoint_index`).
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from pdtlib.engine.training.checkpoint_index import CheckpointError, read_index


@dataclass(frozen=True)
class Part:
    """Elements [start, start + len(values)) of a flattened box within a tensor of ``shape``.

    The box has ``sizes`` and lies at ``offsets``; by default it is the whole tensor. ``values`` is 1-D.
    """

    shape: tuple[int, ...]
    start: int
    values: Tensor
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def boxes(self) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """(offsets in the whole tensor, view of ``values``), box by box."""
        sizes = self.sizes or self.shape or (1,)
        at_box = self.offsets or (0,) * len(sizes)
        for offsets, shape, at in boxes(sizes, self.start, self.start + self.values.numel()):
            where = tuple(a + b for a, b in zip(at_box, offsets, strict=True))
            yield where, self.values[at : at + math.prod(shape)].view(shape)


def boxes(
    shape: Sequence[int], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Cut elements [start, stop) of a flattened tensor into boxes: (offsets, sizes, position in the range).

    A range of a matrix is the rest of a row, whole rows, and the beginning of a row.

    >>> list(boxes((4, 5), 3, 17))
    [((0, 3), (1, 2), 0), ((1, 0), (2, 5), 2), ((3, 0), (1, 2), 12)]
    """
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,), 0
        return
    inner = math.prod(shape[1:])
    at = start
    while at < stop:
        row, column = divmod(at, inner)
        rows = (stop - at) // inner
        if column == 0 and rows > 0:
            yield (row, *(0,) * (len(shape) - 1)), (rows, *shape[1:]), at - start
            at += rows * inner
        else:
            end = min(stop, (row + 1) * inner)
            for offsets, sizes, position in boxes(shape[1:], column, column + end - at):
                yield (row, *offsets), (1, *sizes), at - start + position
            at = end


class _Boxes:
    """The boxes of this rank's parts, as views of the parts' memory, by (key, offsets)."""

    def __init__(self, parts: Mapping[str, Sequence[Part]]) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.views: dict[str, dict[tuple[int, ...], Tensor]] = {}
        for key, pieces in parts.items():
            views = self.views.setdefault(key, {})
            for part in pieces:
                self.shapes[key] = part.shape or (1,)
                views.update(part.boxes())

    def chunks(self, key: str) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(offsets), view.size())
            for offsets, view in self.views[key].items()
        ]


class _SavePlanner(dcp.DefaultSavePlanner):
    def __init__(self, owned: _Boxes) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._owned = owned

    def create_local_plan(self) -> SavePlan:
        items = [
            WriteItem(
                index=MetadataIndex(key, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties(dtype=self._owned.views[key][tuple(chunk.offsets)].dtype),
                    size=torch.Size(self._owned.shapes[key]),
                ),
            )
            for key in self._owned.views
            for chunk in self._owned.chunks(key)
        ]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self._owned.views[index.fqn][tuple(index.offset)].detach()


class _LoadPlanner(dcp.DefaultLoadPlanner):
    def __init__(self, wanted: _Boxes) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._wanted = wanted

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for key, shape in self._wanted.shapes.items():
            saved = self.metadata.state_dict_metadata.get(key)
            if not isinstance(saved, TensorStorageMetadata):
                raise CheckpointError(f"the checkpoint has no tensor {key}")
            if tuple(saved.size) != shape:
                raise CheckpointError(f"{key} has shape {tuple(saved.size)} in the checkpoint, here {shape}")
            items += create_read_items_for_chunk_list(key, saved, self._wanted.chunks(key))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self._wanted.views[index.fqn][tuple(index.offset)]

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise CheckpointError(f"{read_item.dest_index.fqn} is not a tensor; only tensors are read")


class _Reader(dcp.FileSystemReader):
    """torch's reader, with an index that :func:`read_index` has read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._index = read_index(path)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._index.storage_meta = self._index.storage_meta or StorageMeta()
        self._index.storage_meta.load_id = self.load_id
        return self._index


class _Writer(dcp.FileSystemWriter):
    """torch's writer, except that a write that failed says why."""

    def write_data(self, plan: SavePlan, planner: dcp.SavePlanner) -> Any:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _root_of(error) from error


def _root_of(error: BaseException) -> BaseException:
    """The OSError behind ``error``: torch's archive writer reports a full disk as an unexpected position."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found
        found = found.__cause__ or found.__context__
    return error


def save(
    path: Path, *, parts: Mapping[str, Sequence[Part]], process_group: dist.ProcessGroup | None = None
) -> None:
    """Write every rank's ``parts`` to the directory ``path``, which appears when all of them are complete.

    Called by all ranks, who agree through ``process_group``, by default the group of all. No two ranks may
    own the same element. Raises :class:`CheckpointError` when any rank could not write its part; what had
    been written is removed again.
    """
    partial = path.with_name(f".{path.name}.partial")
    first = not dist.is_initialized() or dist.get_rank() == 0
    try:
        with _one_process_is_fine():
            dcp.save(
                {},
                storage_writer=_Writer(partial),
                planner=_SavePlanner(_Boxes(parts)),
                no_dist=not dist.is_initialized(),
                process_group=process_group,
            )
    except CheckpointException as error:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_reason(error)) from error
    try:
        if first:
            partial.rename(path)
            _sync(path.parent)
    finally:
        if dist.is_initialized():
            dist.barrier(group=process_group)


def load(path: Path, *, parts: Mapping[str, Sequence[Part]]) -> None:
    """Fill the ``values`` of every rank's ``parts`` from a checkpoint that any layout wrote.

    Called by all ranks. Raises :class:`CheckpointError` for a tensor that is missing or has another shape,
    and for a damaged or foreign checkpoint.
    """
    reader, planner = _Reader(path), _LoadPlanner(_Boxes(parts))
    try:
        with _one_process_is_fine():
            dcp.load({}, storage_reader=reader, planner=planner, no_dist=not dist.is_initialized())
    except CheckpointException as error:
        raise CheckpointError(_reason(error)) from error


@contextmanager
def _one_process_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _reason(error: CheckpointException) -> str:
    """The failure of the first rank, without the traces."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    return f"rank {rank}: {cause}" if len(error.failures) > 1 or rank else str(cause)


def _sync(directory: Path) -> None:
    """Make a rename in ``directory`` survive a crash of the machine."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
