"""One job under many layouts on 8 processes: the same loss curve, step by step, by ``pdt run``.

    python benchmarks/layouts.py --out benchmarks/results/layouts.json

Every layout trains 20 steps of one small Llama in fp32 on Python's standard library; the reference is one
process. The report has each curve, its largest distance to the reference, and what ``pdt compare`` says of
the bytes that the ranks held and sent. The exit code is 1 when a distance is above 1e-5, or when states or
messages are not exactly the planned ones.

Rounding differs with the order of sums, about 1e-7 of a loss. Where training is unsteady it grows: at a
learning rate of 3e-3 one step of this job, whose gradient norm jumps from 1.2 to 3.7, makes 1.3e-5 of it. So
the job learns at 1e-3.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pdtlib.engine.training.run_dir import read_metrics
from pdtlib.observe.compare import compare

JOB = """
[model]
layers = 8
hidden = 64
heads = 8
ffn = 96
vocab = 256
seq = 64
activation = "swiglu"
[train]
global_batch = 8
precision = "fp32"
learning_rate = 1e-3
steps = 20
"""

LAYOUTS: dict[str, tuple[str, ...]] = {
    "one process": (),
    "dp8": ("parallel.dp=8",),
    "tp8": ("parallel.tp=8",),
    "pp8": ("parallel.pp=8",),
    "dp2 tp2 pp2": ("parallel.dp=2", "parallel.tp=2", "parallel.pp=2"),
    "tp2 cp2 pp2 sp": (
        "parallel.tp=2",
        "parallel.cp=2",
        "parallel.pp=2",
        "train.sequence_parallel=true",
    ),
    "dp2 pp4 interleaved zero1": (
        "parallel.dp=2",
        "parallel.pp=4",
        "parallel.vpp=2",
        "train.zero_stage=1",
    ),
    "dp4 tp2 zero3": ("parallel.dp=4", "parallel.tp=2", "train.zero_stage=3"),
}
REFERENCE = "one process"
LIMIT = 1e-5
EXACT = ("params.total", "params", "grads", "optimizer", "count", "sent_bytes_per_rank", "tokens_per_step")
"""Last words of the quantities that must be exactly the planned ones."""


def run(name: str, folder: Path, *, steps: int) -> Path:
    """Train one layout with ``pdt run``; returns its run directory. Raises RuntimeError if it fails."""
    job = folder / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    out = folder / name.replace(" ", "-")
    command = [Path(sys.executable).parent / "pdt", "run", job, "--out", out, "--steps", steps]
    for change in LAYOUTS[name]:
        command += ["--set", change]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    return out


def inexact(out: Path) -> list[dict[str, Any]]:
    """The rows of ``pdt compare`` that should be exact and are not."""
    rows = compare(out)
    return [row for row in rows if row["error"] != 0 and row["quantity"].endswith(EXACT)]


def report(folder: Path, *, names: list[str], steps: int) -> dict[str, Any]:
    """Run the layouts and judge them."""
    found: dict[str, Any] = {}
    reference: list[float] = []
    for name in [REFERENCE, *names]:
        began = time.monotonic()
        out = run(name, folder, steps=steps)
        losses = [line["loss"] for line in read_metrics(out)]
        reference = reference or losses
        found[name] = {
            "changes": LAYOUTS[name],
            "losses": losses,
            "largest_distance": max(abs(a - b) for a, b in zip(losses, reference, strict=True)),
            "not_as_planned": inexact(out),
            "seconds": round(time.monotonic() - began, 1),
        }
        print(
            f"{name:<28} {found[name]['largest_distance']:.1e}  {found[name]['seconds']:6.1f} s", flush=True
        )
    return {
        "what": "loss of every step of one job (fp32, 20 steps, Python's standard library) in each layout",
        "job": JOB,
        "limit": LIMIT,
        "torch": torch.__version__,
        "system": platform.platform(),
        "layouts": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    names = [name for name in LAYOUTS if name != REFERENCE]
    with tempfile.TemporaryDirectory(prefix="pdt-layouts-") as folder:
        found = report(Path(folder), names=names, steps=options.steps)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    layouts = found["layouts"].values()
    good = all(one["largest_distance"] < LIMIT and not one["not_as_planned"] for one in layouts)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
