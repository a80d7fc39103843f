"""The sample log: which sequences of the corpus a run has trained on, step by step, whatever befell it.

``samples/rank-00000.jsonl`` has a line ``{"step", "windows"}`` for every step that the rank has finished. A
step that a failure undid is taken out again when the run goes on, so the log holds what the weights have
seen: :func:`trained` reads it, and a run that lost nothing has every sample of every step once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import torch.distributed as dist

from pdtlib.engine.data import Batches
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.pieces import Place
from pdtlib.engine.training.run_dir import write_text


class SampleLog(Companion):
    """Writes down what :meth:`pdtlib.engine.data.Batches.take` has really given to this rank.

    Ranks that train on the same rows (along tp, cp and pp) leave the word to the first of them.
    """

    def __init__(self, run: Run) -> None:
        self.folder = run.options.out / "samples"
        self._taken: list[int] = []
        self._watch(run.batches)

    def _watch(self, batches: Batches) -> None:
        found = batches.sample_windows

        def noted(step: int, *, first: int, count: int):  # type: ignore[no-untyped-def]
            windows = found(step, first=first, count=count)
            self._taken += windows.tolist()
            return windows

        batches.sample_windows = noted  # type: ignore[method-assign]

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._writes = all(parts.mesh.group(axis).rank == 0 for axis in ("tp", "cp", "pp"))
        self._path = self.folder / f"rank-{rank:05d}.jsonl"
        if rank == 0:  # without which no other rank can finish a step
            cut_back(self.folder, first)

    def before_step(self, step: int) -> None:
        self._taken.clear()

    def after_step(self, step: int) -> None:
        if not self._writes:
            return
        self.folder.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "windows": self._taken}) + "\n")


def cut_back(folder: Path, step: int) -> None:
    """Take out what was trained in ``step`` and later: a failure has undone it."""
    for path in folder.glob("rank-*.jsonl"):
        kept = [line for line in _lines(path) if line["step"] < step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def trained(out: Path) -> dict[int, list[int]]:
    """Step -> windows of the corpus that the run in ``out`` has trained on in it, sorted."""
    found: dict[int, list[int]] = defaultdict(list)
    for path in sorted((out / "samples").glob("rank-*.jsonl")):
        for line in _lines(path):
            found[line["step"]] += line["windows"]
    return {step: sorted(found[step]) for step in sorted(found)}


def _lines(path: Path) -> list[dict]:  # type: ignore[type-arg]
    """Whole lines only: a process may have died while it wrote the last one."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
