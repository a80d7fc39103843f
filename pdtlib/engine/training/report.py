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
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training import run_dir
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.failures import leave_writers_failure_to_the_loop
from pdtlib.engine.training.pieces import Place, parts_to_write, whole
from pdtlib.engine.training.run_dir import write_json
from pdtlib.engine.training.spread import WorkSpread
from pdtlib.engine.training.step import StepResult
from pdtlib.engine.training.terminal import Terminal
from pdtlib.observe.memory import ActivationMeter, held_bytes
from pdtlib.observe.meters import Peak, peak
from pdtlib.observe.trace import Span, Timeline, covered_s, write_perfetto
from pdtlib.plan.flops import hardware_flops_per_step, model_flops_per_step

TRACED_STEPS = 50
"""How many of the last steps the trace shows."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Report:
    """One rank's part in the run directory. Every rank measures; rank 0 writes.

    ``comm_share`` is the part of rank 0's step in which it did nothing but wait for a message (exposed
    communication), but for ``bubble_share``, the part in which it waited for another pipeline stage;
    ``data_share`` is the part in which it waited for its batch. In the step before, ``slowest_rank`` was at
    work, not waiting, for ``slowest_times`` as long as the median of the others (null in the first step).
    ``mfu`` is model FLOPs (:func:`pdtlib.plan.flops.model_flops_per_step`) per second, over the peak of all
    ranks, which ``machine.json`` names; ``hfu`` counts what is recomputed too (``hardware_flops_per_step``
    there). ``tokens`` are the targets of that step over all ranks, and ``time_s`` is rank 0's. Steps count
    from 0. In fp16 ``grad_norm`` is null where it overflowed.
    """

    def __init__(self, run: Run, *, mesh: Mesh, first: int, place: Place = whole) -> None:
        self.run, self.mesh, self.first, self.place = run, mesh, first, place
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.timeline = Timeline(device=mesh.device)
        mesh.set_timeline(self.timeline)
        self._spread = WorkSpread(device=mesh.device)
        self._spans: deque[list[Span]] = deque(maxlen=TRACED_STEPS)
        self._rows: list[dict[str, Any]] | None = None
        self._rows_alike = True
        self._memory: dict[str, int] = {}
        self._params = 0
        self._start_s = 0.0
        out = run.options.out
        peak_here = peak(mesh.device, dtype=DTYPES[run.job.train.precision])
        self._flops_share = model_flops_per_step(run.job) / (self.world_size * peak_here.flops_per_s)
        self._recomputing = hardware_flops_per_step(run.job) / model_flops_per_step(run.job)
        if self.rank == 0:
            self.terminal = Terminal(first=first, steps=run.steps)
            self._metrics = (out / "metrics.jsonl").open("a", encoding="utf-8")
            leave_writers_failure_to_the_loop()
            self._tensorboard = SummaryWriter(str(out / "tensorboard"), purge_step=first)
            write_json(out / "machine.json", self._machine(peak_here))
            for reason in run.skipped:
                self.terminal.say(f"passed over: {reason}")
            if first and run.resume_from == run_dir.checkpoint_path(out, first):
                self.terminal.say(f"going on after step {first} from {run.resume_from}")
            elif first:
                self.terminal.say(f"going on after step {first} from memory")

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
        self._step = self.timeline.begin("step", "step")
        self._start_s = time.perf_counter()

    def measure_memory(self, optimizer: ShardedAdamW, meter: ActivationMeter) -> None:
        """Count the bytes that this rank holds (params, grads, optimizer, buffers), before the update.

        To them come, from the passes before, the peaks of what autograd kept (activations) and of the whole
        parameters and gradients that ZeRO-2 and 3 held for a moment (among the buffers).
        """
        held = {**optimizer.replica.held(), **optimizer.held()}
        kinds = ("params", "grads", "optimizer", "buffers")
        self._memory = {kind: held_bytes(held[kind]) for kind in kinds}
        whole = optimizer.replica.whole
        self._memory["buffers"] += whole.most - whole.now
        self._memory["activations"] = meter.peak_bytes
        self._memory["total"] = sum(self._memory.values())
        parts = parts_to_write(optimizer, place=self.place)
        weights = [part for key in parts if key.startswith("model.") for part in parts[key]]
        self._params = sum(part.values.numel() for part in weights)

    def end_step(self, step: int, found: StepResult, *, learning_rate: float) -> None:
        """Close a step: its spans, its ledger, and on rank 0 a line of metrics."""
        self.timeline.end(self._step)
        spans = self.timeline.finish_step()
        time_s = time.perf_counter() - self._start_s
        self._spans.append(spans)
        rows = self.mesh.ledger.rows()
        self._rows_alike = self._rows_alike and self._rows in (None, rows)
        self._rows = rows
        waited_s = covered_s(spans, "wait")
        slowest = self._spread.exchange(time_s - waited_s)
        if self.rank != 0:
            return
        bubble_s = covered_s(spans, "wait pp")
        metrics: dict[str, Any] = {
            "step": step,
            "loss": found.loss,
            "grad_norm": found.grad_norm if math.isfinite(found.grad_norm) else None,
            "tokens": found.tokens,
            "time_s": time_s,
            "mfu": self._flops_share / time_s,
            "hfu": self._recomputing * self._flops_share / time_s,
            "comm_share": (waited_s - bubble_s) / time_s,
            "bubble_share": bubble_s / time_s,
            "data_share": covered_s(spans, "data") / time_s,
            "slowest_rank": slowest.rank if slowest else None,
            "slowest_times": slowest.times if slowest else None,
        }
        self._metrics.write(json.dumps(metrics, allow_nan=False) + "\n")
        self._metrics.flush()
        tokens_per_s = found.tokens / time_s
        shown = {**metrics, "learning_rate": learning_rate, "tokens_per_s": tokens_per_s}
        for name, value in shown.items():
            if name != "step" and value is not None:
                self._tensorboard.add_scalar(name, value, step)
        waiting = metrics["comm_share"] + metrics["bubble_share"]
        self.terminal.step(step, loss=found.loss, tokens_per_s=tokens_per_s, comm_share=waiting)

    def close(self, *, steps_done: int) -> None:
        """Gather what every rank measured; write ledger.json, memory.json and trace.json; close all files."""
        self._spread.finish()
        mine = {
            "rank": self.rank,
            "place": self.mesh.place,
            "params": self._params,
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
            "ranks": [{key: one[key] for key in ("rank", "place", "comm")} for one in everyone],
        }
        memory = {
            "world_size": self.world_size,
            "params_total": sum(one["params"] for one in everyone),
            "ranks": [{"rank": one["rank"], "place": one["place"], **one["memory"]} for one in everyone],
        }
        write_json(out / "ledger.json", ledger)
        write_json(out / "memory.json", memory)
        write_perfetto(out / "trace.json", ranks={one["rank"]: one["spans"] for one in everyone})
        self._metrics.close()
        self._tensorboard.close()
        if self.first + steps_done == self.run.steps:
            self.terminal.say(f"done: {self.run.steps} steps, in {out}")
        self.terminal.close()
