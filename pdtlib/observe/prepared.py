"""A prepared step as a run directory, which can be read, drawn and diagnosed like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pdtlib.observe.trace import write_perfetto
from pdtlib.plan.faulty_steps import FaultyStep
from pdtlib.plan.job import from_dict, to_json
from pdtlib.plan.overlap import Span

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32}
STEPS = 4


def write(folder: Path, step: FaultyStep) -> None:
    """Write ``trace.json``, ``job.json`` and ``ledger.json`` of a run whose every step is ``step``."""
    dp = step.parallel.get("dp", 1)
    job = from_dict(
        {
            "model": MODEL,
            "train": {"global_batch": dp * step.micro_batches, "micro_batch": 1},
            "parallel": step.parallel,
            "hardware": {"gpu": "H100-SXM5", "gpus_per_node": step.gpus_per_node},
        }
    )
    lasts_s = max(span.end_s for spans in step.ranks.values() for span in spans)
    ranks = {
        rank: [
            Span(span.lane, span.name, span.start_s + number * lasts_s, span.end_s + number * lasts_s)
            for number in range(STEPS)
            for span in spans
        ]
        for rank, spans in step.ranks.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_perfetto(folder / "trace.json", ranks=ranks)
    (folder / "job.json").write_text(to_json(job), encoding="utf-8")
    ledger = {"ranks": [{"rank": rank, "comm": _gradients(step)} for rank in ranks]}
    (folder / "ledger.json").write_text(json.dumps(ledger), encoding="utf-8")


def _gradients(step: FaultyStep) -> list[dict[str, Any]]:
    """A ledger's rows of gradient messages, one for each size."""
    return [
        {
            "axis": "dp",
            "collective": "all_reduce",
            "phase": "grads",
            "count": step.gradient_bytes.count(size),
            "message_bytes": size,
            "sent_bytes_per_rank": float(size * step.gradient_bytes.count(size)),
        }
        for size in sorted(set(step.gradient_bytes))
    ]
