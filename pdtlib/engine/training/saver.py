"""Saving while training goes on: a copy in host memory, written by a thread of its own.

A step waits only for the copy. The ranks' threads agree through a process group of their own, so that their
messages cannot be mixed up with those of training. While a save is in flight the ranks compare notes once a
step: they all learn of its end, or of a failure, in the same step, whatever rank it came from.
"""

import threading
from pathlib import Path

import torch
import torch.distributed as dist

from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training import checkpoint, run_dir
from pdtlib.engine.training.checkpoint import Part
from pdtlib.engine.training.checkpoint_index import CheckpointError
from pdtlib.engine.training.pieces import Place, parts_to_read, parts_to_write, scalar_parts, whole

PATIENCE_S = 10.0
"""How long a rank whose own write went well waits to be told of another's failure."""


def save_checkpoint(out: Path, optimizer: ShardedAdamW, *, step: int, place: Place = whole) -> Path:
    """Write what every rank owns after ``step`` steps, and return when it is complete, with its path."""
    path = run_dir.checkpoint_path(out, step)
    checkpoint.save(path, parts=_everything(optimizer, place))
    return path


def load_checkpoint(path: Path, optimizer: ShardedAdamW, *, place: Place = whole) -> None:
    """Fill the optimizer and the model from a checkpoint of any layout.

    Raises :class:`pdtlib.engine.training.checkpoint_index.CheckpointError` where it does not fit.
    """
    scalars = scalar_parts(dict.fromkeys(optimizer.scalars(), 0.0))
    checkpoint.load(path, parts={**parts_to_read(optimizer, place=place), **scalars})
    optimizer.load_scalars({key.removeprefix("run."): float(part.values) for key, (part,) in scalars.items()})
    optimizer.load_finished()


def _everything(optimizer: ShardedAdamW, place: Place) -> dict[str, list[Part]]:
    first = not dist.is_initialized() or dist.get_rank() == 0
    numbers = scalar_parts(optimizer.scalars()) if first else {}
    return {**parts_to_write(optimizer, place=place), **numbers}


class Saver:
    """Saves the checkpoints of a run, at most one at a time. All its methods are called by all ranks.

    ``saved`` is the last checkpoint that is known to be complete.
    """

    def __init__(self, out: Path, *, place: Place = whole, saved: Path | None = None) -> None:
        self.out, self.place, self.saved = out, place, saved
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._writers = self._ranks = None
        if dist.is_initialized():
            self._writers, self._ranks = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")

    def save(self, optimizer: ShardedAdamW, *, step: int) -> None:
        """Copy what this rank owns after ``step`` steps and start to write it; one in flight ends first."""
        self.finish()
        copies = {
            key: [_on_host(part) for part in parts]
            for key, parts in _everything(optimizer, self.place).items()
        }
        path = run_dir.checkpoint_path(self.out, step)
        self._thread = threading.Thread(target=self._write, args=(path, copies), daemon=True)
        self._thread.start()

    def _write(self, path: Path, parts: dict[str, list[Part]]) -> None:
        try:
            checkpoint.save(path, parts=parts, process_group=self._writers)
            self.saved = path
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raise the failure of a save in flight, if any rank has had one."""
        if self._thread is None:
            return
        running, failed = self._worst(self._thread.is_alive(), self._error is not None)
        if failed:
            self._thread.join(PATIENCE_S)
            raise self._error or CheckpointError("another rank could not write its part of the checkpoint")
        if not running:
            self._thread = None

    def finish(self) -> None:
        """Wait for the save in flight; raises its failure."""
        if self._thread is not None:
            self._thread.join()
            self.check()

    def _worst(self, *flags: bool) -> list[bool]:
        """Whether any rank has set each flag."""
        notes = torch.tensor(flags, dtype=torch.int32)
        if self._ranks is not None:
            dist.all_reduce(notes, dist.ReduceOp.MAX, group=self._ranks)
        return [bool(note) for note in notes]


def _on_host(part: Part) -> Part:
    return Part(part.shape, part.start, part.values.to("cpu", copy=True), part.offsets, part.sizes)
