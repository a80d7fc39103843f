"""What a run writes while it goes on and when it ends: metrics, ledger, memory, trace and TensorBoard."""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

from pdtlib import __version__
from pdtlib.engine.mesh import Mesh
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.failures import leave_writers_failure_to_the_loop
from pdtlib.engine.training.run_dir import write_json
from pdtlib.engine.training.terminal import Terminal
from pdtlib.observe.memory import ActivationMeter, held_bytes
from pdtlib.observe.meters import Peak, peak
from pdtlib.observe.trace import Span, Timeline, covered_s, write_perfetto
from pdtlib.plan.flops import model_flops_per_step

TRACED_STEPS = 50
"""How many of the last steps the trace shows."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Report:
    """One rank's part in the run directory. Every rank measures; rank 0 writes.

    ``comm_share`` is the part of rank 0's step in which it did nothing but wait for a message (exposed
    communication). ``mfu`` is model FLOPs (:func:`pdtlib.plan.flops.model_flops_per_step`) per second, over
    the peak of all ranks, which ``machine.json`` names. ``tokens`` are the targets of that step over all
    ranks, and ``time_s`` is rank 0's. Steps count from 0. In fp16 ``grad_norm`` is null where it
    overflowed.
    """

    def __init__(self, run: Run, *, mesh: Mesh, first: int) -> None:
        self.run, self.mesh, self.first = run, mesh, first
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.timeline = Timeline(device=mesh.device)
        mesh.set_timeline(self.timeline)
        self._spans: deque[list[Span]] = deque(maxlen=TRACED_STEPS)
        self._rows: list[dict[str, Any]] | None = None
        self._rows_alike = True
        self._memory: dict[str, int] = {}
        self._params_total = 0
        self._start_s = 0.0
        out = run.options.out
        peak_here = peak(mesh.device, dtype=DTYPES[run.job.train.precision])
        self._flops_share = model_flops_per_step(run.job) / (self.world_size * peak_here.flops_per_s)
        if self.rank == 0:
            self.terminal = Terminal(first=first, steps=run.steps)
            self._metrics = (out / "metrics.jsonl").open("a", encoding="utf-8")
            leave_writers_failure_to_the_loop()
            self._tensorboard = SummaryWriter(str(out / "tensorboard"), purge_step=first)
            write_json(out / "machine.json", self._machine(peak_here))
            for reason in run.skipped:
                self.terminal.say(f"passed over: {reason}")
            if run.resume_from:
                self.terminal.say(f"going on after step {first} from {run.resume_from}")

    def _machine(self, peak_here: Peak) -> dict[str, Any]:
        device = self.mesh.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
        return {
            "pdtlib": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
            "device": f"{device.type} {name}".strip(),
            "backend": dist.get_backend() if dist.is_initialized() else None,
            "world_size": self.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "peak_flops_per_s_per_rank": peak_here.flops_per_s,
            "peak_source": peak_here.source,
            "data": self.run.batches.corpus.name,
            "data_tokens": len(self.run.batches.corpus),
            "command": sys.argv,
        }

    def begin_step(self) -> None:
        """Start the clock of a step, and an empty ledger."""
        self.mesh.ledger.clear()
        self._start_s = time.perf_counter()

    def measure_memory(
        self, held: dict[str, list[torch.Tensor]], meter: ActivationMeter, *, params_total: int
    ) -> None:
        """Count the bytes under ``held`` (params, grads, optimizer, buffers), before the optimizer's step.

        To them come, from the passes before, the peaks of what autograd kept (activations) and of the whole
        parameters and gradients that ZeRO-2 and 3 held for a moment (among the buffers).
        """
        kinds = ("params", "grads", "optimizer", "buffers")
        self._memory = {kind: held_bytes(held[kind]) for kind in kinds}
        self._memory["buffers"] += meter.peak_watched_bytes
        self._memory["activations"] = meter.peak_bytes
        self._memory["total"] = sum(self._memory.values())
        self._params_total = params_total

    def end_step(
        self, step: int, *, loss: float, grad_norm: float, tokens: int, learning_rate: float
    ) -> None:
        """Close a step: its spans, its ledger, and on rank 0 a line of metrics."""
        spans = self.timeline.finish_step()
        time_s = time.perf_counter() - self._start_s
        self._spans.append(spans)
        rows = self.mesh.ledger.rows()
        self._rows_alike = self._rows_alike and self._rows in (None, rows)
        self._rows = rows
        if self.rank != 0:
            return
        metrics = {
            "step": step,
            "loss": loss,
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "tokens": tokens,
            "time_s": time_s,
            "mfu": self._flops_share / time_s,
            "comm_share": covered_s(spans, "wait") / time_s,
            "bubble_share": 0.0,
        }
        self._metrics.write(json.dumps(metrics, allow_nan=False) + "\n")
        self._metrics.flush()
        shown = {**metrics, "learning_rate": learning_rate, "tokens_per_s": tokens / time_s}
        for name, value in shown.items():
            if name != "step" and value is not None:
                self._tensorboard.add_scalar(name, value, step)
        self.terminal.step(
            step, loss=loss, tokens_per_s=tokens / time_s, comm_share=covered_s(spans, "wait") / time_s
        )

    def close(self, *, steps_done: int) -> None:
        """Gather what every rank measured; write ledger.json, memory.json and trace.json; close all files."""
        mine = {
            "rank": self.rank,
            "comm": self._rows or [],
            "alike": self._rows_alike,
            "memory": self._memory,
            "spans": [span for spans in self._spans for span in spans],
        }
        everyone: list[Any] = [mine]
        if self.world_size > 1:
            everyone = [None] * self.world_size
            dist.gather_object(mine, everyone if self.rank == 0 else None)
        if self.rank != 0:
            return
        out = self.run.options.out
        ledger = {
            "world_size": self.world_size,
            "steps": steps_done,
            "every_step_alike": all(one["alike"] for one in everyone),
            "ranks": [{"rank": one["rank"], "comm": one["comm"]} for one in everyone],
        }
        memory = {
            "world_size": self.world_size,
            "params_total": self._params_total,
            "ranks": [{"rank": one["rank"], **one["memory"]} for one in everyone],
        }
        write_json(out / "ledger.json", ledger)
        write_json(out / "memory.json", memory)
        write_perfetto(out / "trace.json", ranks={one["rank"]: one["spans"] for one in everyone})
        self._metrics.close()
        self._tensorboard.close()
        self.terminal.say(f"done: {self.run.steps} steps, in {out}")
        self.terminal.close()
