"""Faults, let loose in a real run at chosen or random moments; each happens once, whatever restarts follow.

kill    the process is gone (SIGKILL), as when memory runs out
stop    the process stands still (SIGSTOP), as when a driver hangs; only a watchdog can find that
slow    the process sleeps before a step: a straggler, no failure
damage  the newest checkpoint on disk loses half of a file, then the process is killed
index   the newest checkpoint loses its index, then the process is killed
saving  the process is killed right after a save has begun, so the checkpoint is half-written
disk    the process can write no more than 64 KiB into a file (as on a full disk) until it is started again
flip    a bit of the gradient flips after the reduction

A node that loses its power and a link that is cut are faults of the testbed: :mod:`pdtlib.testbed.cluster`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.failures import Refused, rank
from pdtlib.engine.training.pieces import Place
from pdtlib.engine.training.run_dir import last_checkpoint
from pdtlib.plan.spec import Problem

KINDS = ("kill", "stop", "slow", "damage", "index", "saving", "disk", "flip")
SLOW_S = 1.0
ROOM_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to which rank, at the beginning of which step."""

    kind: str
    rank: int
    step: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: valid are {', '.join(KINDS)}")


def draw(seed: int, *, kinds: Sequence[str] = KINDS, ranks: int, steps: int, save_every: int) -> Fault:
    """A fault of one of ``kinds``, the same for the same seed.

    What damages a checkpoint comes when there is one, and ``saving`` right after a save has begun.

    >>> draw(3, ranks=2, steps=12, save_every=4) == draw(3, ranks=2, steps=12, save_every=4)
    True
    """
    random_ = random.Random(f"fault:{seed}")
    kind = random_.choice(list(kinds))
    after_a_save = range(save_every, steps, save_every)
    moments = {
        "saving": after_a_save,
        "damage": range(save_every + 1, steps),
        "index": range(save_every + 1, steps),
    }.get(kind, range(1, steps))
    return Fault(kind=kind, rank=random_.randrange(ranks), step=random_.choice(moments))


def write(path: Path, faults: Sequence[Fault]) -> None:
    """Write a list that ``--faults`` reads."""
    path.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")


def read(path: Path) -> list[Fault]:
    """Read a list of faults. Raises :class:`Refused` for one that is none."""
    try:
        return [Fault(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise Refused([Problem("--faults", f"{path}: {error}")]) from error


class Injector(Companion):
    """Lets the faults of this rank happen, each at most once in the life of the run directory."""

    def __init__(self, run: Run, faults: Sequence[Fault]) -> None:
        self.out = run.options.out
        self._mine = {(number, fault) for number, fault in enumerate(faults) if fault.rank == rank()}

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        self._replica = parts.replica

    def before_step(self, step: int) -> None:
        for number, fault in self._mine:
            if fault.step == step and fault.kind != "flip" and self._first_time(number):
                self._strike(fault.kind)

    def before_update(self, step: int) -> None:
        for number, fault in self._mine:
            if fault.step == step and fault.kind == "flip" and self._first_time(number):
                flip_bit(self._replica.trainable[0].grad_shard, seed=step)

    def _first_time(self, number: int) -> bool:
        """Note that the fault has happened, in a file that outlives this process."""
        folder = self.out / "faults"
        folder.mkdir(exist_ok=True)
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _strike(self, kind: str) -> None:
        if kind in ("damage", "index"):
            damage_newest(self.out, index=kind == "index")
        if kind == "slow":
            time.sleep(SLOW_S)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "disk":
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (ROOM_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def flip_bit(tensor: torch.Tensor | None, *, seed: int) -> None:
    """Flip one bit of one element, chosen by ``seed``."""
    assert tensor is not None
    words = tensor.view(torch.int16).view(-1)
    random_ = random.Random(f"flip:{seed}")
    words[random_.randrange(words.numel())] ^= 1 << random_.randrange(15)


def damage_newest(out: Path, *, index: bool) -> Path | None:
    """Take the index or half of a data file from the newest checkpoint; returns it, None if there is none."""
    newest = last_checkpoint(out)
    if newest is None:
        return None
    if index:
        (newest / ".metadata").unlink()
    else:
        victim = max(newest.glob("*.distcp"), key=lambda file: file.stat().st_size)
        with victim.open("r+b") as file:
            file.truncate(victim.stat().st_size // 2)
    return newest
