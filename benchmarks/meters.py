"""What the meters of a run cost that are always on: their seconds over those of the step.

    python benchmarks/meters.py [--steps 8] [--out FILE]

While the real training loop runs, every function of its meters (report, timeline, ledger) is called through a
clock; what the clock itself takes counts as theirs, so that shares are rather too high. Rank 0's are told,
which also writes the metrics, in the median step. Writes ``results/meters.json``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peers_pdtlib import job_of
from peers_task import MODELS

from pdtlib.engine.training import loop
from pdtlib.engine.training.report import Report
from pdtlib.observe.ledger import Ledger
from pdtlib.observe.trace import Timeline
from pdtlib.plan.job import to_toml

ROOT = Path(__file__).parents[1]
METERS = (
    (Report, "begin_step"),
    (Report, "end_step"),
    (Timeline, "begin"),
    (Timeline, "end"),
    (Ledger, "record"),
)
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "DDP": {"parallel": {"dp": 2}},
    "ZeRO-3": {"parallel": {"dp": 2}, "train": {"zero_stage": 3}},
    "TP + SP": {"parallel": {"tp": 2}, "train": {"sequence_parallel": True}},
    "1F1B": {"parallel": {"pp": 2, "schedule": "1f1b"}, "train": {"micro_batch": 1}},
}


class Clock:
    """Adds up the seconds in which at least one meter was at work, step by step."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps_s: list[float] = []
        self._depth = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.now_s += time.perf_counter() - began

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.running():
                return method(*args, **kwargs)

        return call

    def timed_span(self, span: Callable[..., Any]) -> Callable[..., Any]:
        """A context manager whose begin and end are the meter's, and whose body is not."""

        @contextmanager
        def around(*args: Any) -> Iterator[None]:
            inner = span(*args)
            with self.running():
                inner.__enter__()
            try:
                yield
            finally:
                with self.running():
                    inner.__exit__(None, None, None)

        return around

    def end_step(self) -> None:
        self.steps_s.append(self.now_s)
        self.now_s = 0.0


def one_rank(arguments: list[str], out: Path) -> None:
    """Train as one rank with all meters under the clock; rank 0 leaves its seconds in ``out``."""
    clock = Clock()
    for owner, name in METERS:
        setattr(owner, name, clock.timed(getattr(owner, name)))
    Timeline.span = clock.timed_span(Timeline.span)  # type: ignore[method-assign]
    end_step = Report.end_step

    def end_of_step(*args: Any, **kwargs: Any) -> None:
        end_step(*args, **kwargs)
        clock.end_step()

    Report.end_step = end_of_step  # type: ignore[method-assign]
    loop.main(arguments)
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps(clock.steps_s))


def measure(name: str, folder: Path, *, model: str, steps: int) -> dict[str, Any]:
    """The median step of one layout."""
    job = job_of(MODELS[model], LAYOUTS[name], world=2)
    file, out, seconds = folder / "job.toml", folder / name, folder / "seconds.json"
    file.write_text(to_toml(job))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    ranks = job.parallel.world_size
    run = [str(file), "--out", str(out), "--steps", str(steps), "--device", "cpu"]
    subprocess.run(
        [*launch, str(ranks), __file__, "--rank-writes", str(seconds), *run],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    meters_s = json.loads(seconds.read_text())[2:]  # the first two also take memory, and count it
    lines = (out / "metrics.jsonl").read_text().splitlines()[2:]
    steps_s = [json.loads(line)["time_s"] for line in lines]
    shares = [meter / step for meter, step in zip(meters_s, steps_s, strict=True)]
    return {
        "layout": name,
        "model": model,
        "ranks": ranks,
        "steps": len(shares),
        "step_s": statistics.median(steps_s),
        "meters_s": statistics.median(meters_s),
        "share": statistics.median(shares),
        "worst_share": max(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the meters of a run cost")
    parser.add_argument("--model", choices=MODELS, default="12M")
    parser.add_argument("--steps", type=int, default=12, help="of each layout, of which two are not counted")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "meters.json")
    options = parser.parse_args()
    about = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load_at_start": os.getloadavg()[0],
    }
    rows = []
    for name in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), model=options.model, steps=options.steps))
        print(json.dumps(rows[-1]))
    options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank-writes"]:
        one_rank(sys.argv[3:], Path(sys.argv[2]))
    else:
        main()
