"""The run directory: what a run leaves behind, and the rules that keep it whole.

``job.json``, ``metrics.jsonl``, ``ledger.json``, ``memory.json``, ``trace.json``, ``checkpoints/``,
``tensorboard/`` and ``machine.json`` (versions, device and the peak that MFU refers to). A file is written
under a temporary name and renamed when complete, so a reader never meets half of one; ``metrics.jsonl``
grows by whole lines.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pdtlib.plan.job import Job, load, to_json

TOLD_TO_END = "told-to-end"
"""The file that a run leaves which was told to end before its last step: how many steps it has saved."""

FILES = (
    "job.json",
    "machine.json",
    "metrics.jsonl",
    "ledger.json",
    "memory.json",
    "trace.json",
    "samples",
    "identity",
    "tensorboard",
    "checkpoints",
)


def begin(out: Path, *, job: Job, resume_step: int | None) -> None:
    """Make the directory ready: empty of an earlier run, or cut back to the step that is resumed from."""
    out.mkdir(parents=True, exist_ok=True)
    (out / TOLD_TO_END).unlink(missing_ok=True)
    if resume_step is None:
        for name in FILES:
            path = out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    else:
        kept = [line for line in read_metrics(out) if line["step"] < resume_step]
        write_text(out / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
    for half in (out / "checkpoints").glob(".*.partial"):
        shutil.rmtree(half)
    for newer in checkpoints(out):  # damaged ones, or resuming would have begun from there
        if step_of(newer) > (resume_step or 0):
            shutil.rmtree(newer)
    write_text(out / "job.json", to_json(job))


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``, all of it or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON; infinities and NaN, which JSON lacks, raise ``ValueError``."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_job(out: Path) -> Job:
    """The job that the run in ``out`` began with. Raises ``ValueError`` for a broken file."""
    return load(out / "job.json")


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, in order; a last line that was cut short is left out."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def checkpoint_path(out: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` steps lies."""
    return out / "checkpoints" / f"step-{step:08d}"


def checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted((out / "checkpoints").glob("step-*")) if out.is_dir() else []


def last_checkpoint(out: Path) -> Path | None:
    """The newest complete checkpoint of a run; None if it has none."""
    return next(reversed(checkpoints(out)), None)


def step_of(checkpoint: Path) -> int:
    """The number of steps that a checkpoint holds."""
    return int(checkpoint.name.removeprefix("step-"))
