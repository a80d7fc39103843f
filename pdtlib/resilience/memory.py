"""Checkpoints in memory: each node keeps its ranks' state, and a copy of those of the node before it.

They lie in shared memory (``/dev/shm``), which outlives the processes but not the node. A lost process finds
its node's copies, a lost node those of its neighbour, and the run goes back by a few steps instead of to the
last checkpoint on disk. Two states are kept, since a failure may come while the newer one is being written.

What a rank keeps is its share of every tensor, by its place in the whole (:class:`Part`), so another number
of ranks can take it up. While a run recovers, each node needs room for all shares: 12 bytes a parameter.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.engine.mesh import Mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.checkpoint import Part
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.pieces import Place, parts_to_read, parts_to_write, scalar_parts

KEPT = 2
NAME = re.compile(r"step-(\d{8})-rank-(\d{5})-of-(\d{5})\.pt")
Share = tuple[int, int, int]
"""The step, the rank that held it, and how many ranks there were."""


def folder_of(out: Path, identity: str) -> Path:
    """Where a node keeps the run's states: in its shared memory, or in a temporary folder without one."""
    root = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    key = hashlib.sha256(f"{out.absolute()}:{identity}".encode()).hexdigest()[:16]
    return root / f"pdt-{os.getuid()}-{key}"


def newest_complete(shares: Sequence[Share]) -> int | None:
    """The newest step of which some number of ranks has left all shares.

    >>> newest_complete([(8, 0, 2), (8, 1, 2), (10, 1, 2), (12, 0, 1), (12, 1, 3)])
    12
    >>> newest_complete([(8, 0, 2), (10, 1, 2)]) is None
    True
    """
    whole = [step for step, _, of in set(shares) if all((step, rank, of) in shares for rank in range(of))]
    return max(whole, default=None)


class PeerMemory(Companion):
    """Keeps the state every ``every`` steps, and gives back the newest that all nodes together still have."""

    def __init__(self, run: Run, *, every: int) -> None:
        self.out, self.every = run.options.out, every
        self._identity = self.out / "identity"

    def join(self, mesh: Mesh, *, on_disk: int) -> int:
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._local = int(os.environ["LOCAL_RANK"])
        self._here = int(os.environ["LOCAL_WORLD_SIZE"])
        self._group = dist.new_group(backend="gloo")
        identity = self._identity.read_text() if self._identity.exists() else ""
        self.folder = folder_of(self.out, identity)
        mine = [share for share, _ in self._files()] if identity and self._local == 0 else []
        everyone = self._gather(mine)
        self._held = everyone
        step = newest_complete([share for shares in everyone for share in shares])
        self._step = step if step is not None and step > on_disk else None
        return self._step or on_disk

    def load(self, optimizer: ShardedAdamW, *, place: Place) -> None:
        assert self._step is not None
        of = max(of for shares in self._held for step, _, of in shares if step == self._step)
        for old in range(of):
            self._spread((self._step, old, of))
        wanted = parts_to_read(optimizer, place=place)
        scalars = scalar_parts(dict.fromkeys(optimizer.scalars(), 0.0))
        shares = [torch.load(self._path((self._step, old, of)), weights_only=True) for old in range(of)]
        fill({**wanted, **scalars}, shares)
        optimizer.load_scalars(
            {key.removeprefix("run."): float(part.values) for key, (part,) in scalars.items()}
        )
        optimizer.load_finished()

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        self._optimizer, self._place = optimizer, place
        identity: list[Any] = [None]
        if self._rank == 0:
            if not self._identity.exists():
                self._identity.write_text(os.urandom(8).hex())
            identity = [self._identity.read_text()]
        dist.broadcast_object_list(identity, group=self._group)
        self.folder = folder_of(self.out, identity[0])
        self.folder.mkdir(exist_ok=True)

    def after_step(self, step: int) -> None:
        if (step + 1) % self.every:
            return
        first = self._rank == 0
        numbers = scalar_parts(self._optimizer.scalars()) if first else {}
        owned = {**parts_to_write(self._optimizer, place=self._place), **numbers}
        share = (step + 1, self._rank, self._size)
        self._write(share, torch_bytes(owned))
        if self._size > self._here:
            self._exchange(share)
        dist.barrier(self._group)  # from here on the new state is complete
        if self._local == 0:
            steps = sorted({share[0] for share, _ in self._files()})
            for share, path in self._files():
                if share[0] in steps[:-KEPT] or share[0] > step + 1:
                    path.unlink(missing_ok=True)

    def end(self) -> None:
        dist.barrier(self._group)
        if self._local == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _exchange(self, share: Share) -> None:
        """Give the next node a copy of this rank's share, and keep one of the node before."""
        to, source = (self._rank + self._here) % self._size, (self._rank - self._here) % self._size
        mine = torch.frombuffer(bytearray(self._path(share).read_bytes()), dtype=torch.uint8)
        size = torch.tensor([mine.numel()])
        theirs = torch.zeros_like(size)
        self._swap(size, theirs, to, source)
        copy = torch.empty(int(theirs), dtype=torch.uint8)
        self._swap(mine, copy, to, source)
        self._write((share[0], source, share[2]), copy.numpy().tobytes())

    def _swap(self, sent: torch.Tensor, received: torch.Tensor, to: int, source: int) -> None:
        works = [dist.isend(sent, to, group=self._group), dist.irecv(received, source, group=self._group)]
        for work in works:
            assert work is not None
            work.wait()

    def _spread(self, share: Share) -> None:
        """Let every node have the share: the first rank that has it sends it to all."""
        owner = next(rank for rank, shares in enumerate(self._held) if share in shares)
        size = torch.tensor([self._path(share).stat().st_size if self._rank == owner else 0])
        dist.broadcast(size, owner, group=self._group)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self._rank == owner:
            data = torch.frombuffer(bytearray(self._path(share).read_bytes()), dtype=torch.uint8)
        dist.broadcast(data, owner, group=self._group)
        if self._local == 0 and self._rank != owner:
            self._write(share, data.numpy().tobytes())
        dist.barrier(self._group)

    def _gather(self, mine: list[Share]) -> list[list[Share]]:
        everyone: list[Any] = [None] * self._size
        dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def _files(self) -> Iterator[tuple[Share, Path]]:
        for path in self.folder.glob("step-*.pt"):
            match = NAME.fullmatch(path.name)
            if match:
                step, rank, of = map(int, match.groups())
                yield (step, rank, of), path

    def _path(self, share: Share) -> Path:
        return self.folder / "step-{:08d}-rank-{:05d}-of-{:05d}.pt".format(*share)

    def _write(self, share: Share, data: bytes) -> None:
        path = self._path(share)
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.rename(path)


def torch_bytes(parts: Mapping[str, Sequence[Part]]) -> bytes:
    """Parts as a file of plain tensors and tuples, which is read without running code."""
    content = {
        key: [
            (part.shape, part.start, part.values.detach().cpu().clone(), part.offsets, part.sizes)
            for part in pieces
        ]
        for key, pieces in parts.items()
    }
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def fill(
    wanted: Mapping[str, Sequence[Part]], shares: Sequence[Mapping[str, Sequence[tuple[Any, ...]]]]
) -> None:
    """Fill the parts that are wanted from shares that together hold every element, one tensor at a time."""
    for key, parts in wanted.items():
        shape = parts[0].shape or (1,)
        whole = torch.full(shape, float("nan"), dtype=parts[0].values.dtype)
        for share in shares:
            for piece in share.get(key, ()):
                for offsets, values in Part(*piece).boxes():
                    whole[_box(offsets, values)] = values
        for part in parts:
            for offsets, values in part.boxes():
                values.copy_(whole[_box(offsets, values)])


def _box(offsets: Sequence[int], values: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(offsets, values.shape, strict=True))
