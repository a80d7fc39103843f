"""Lab 08: where a step's time goes, in a real run and in six prepared traces.

First two real runs on two processes, one with data parallelism and one with two pipeline stages. The shares
of each step are read from the trace and must add up to the time that the loop's own clock has measured;
communication share, bubble share and MFU must be those of `metrics.jsonl`. Then six prepared traces, each
with one fault, which the diagnosis of `pdt compare` must name. Exits with 1 when anything is off.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, lines
from pdtlib.engine.training.run_dir import read_job, read_metrics
from pdtlib.observe import prepared
from pdtlib.observe.diagnosis import diagnose
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan import flops
from pdtlib.plan.faulty_steps import FAULTS
from pdtlib.plan.job import Job
from pdtlib.plan.step_shares import Shares, steps_of, typical
from pdtlib.plan.units import percent_text

LAUNCH = "python labs/08_efficiency/lab.py"
ASSIGNED = ("reconcile",)

LAPTOP = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 512, "seq": 128}
GPU = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 32000, "seq": 2048}
PRESETS = {"laptop": LAPTOP, "gpu": GPU}
STEPS = 8
WAYS = {"data parallelism": "dp", "two pipeline stages": "pp"}
CLOCKS = 0.02  # the trace and the loop's clock differ by what lies between their first and last reading
SEED = 8


def toml(axis: str, preset: str) -> str:
    """The job of one run."""
    model = "\n".join(f"{name} = {value}" for name, value in PRESETS[preset].items())
    precision = "bf16" if preset == "gpu" else "fp32"
    return (
        f'[model]\n{model}\n[train]\nglobal_batch = 8\nmicro_batch = 1\nprecision = "{precision}"\n'
        f"steps = {STEPS}\n[parallel]\n{axis} = 2\n"
    )


def run(axis: str, out: Path, preset: str) -> None:
    """What `pdt run` starts: two ranks under torchrun's agent."""
    job = out.with_suffix(".toml")
    job.write_text(toml(axis, preset), encoding="utf-8")
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    device = "cuda" if preset == "gpu" else "cpu"
    program = ["-m", "pdtlib.train", str(job), "--out", str(out), "--device", device]
    done = subprocess.run([*agent, *program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pdt run failed (exit {done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")


def reconcile(name: str, out: Path) -> Iterator[Row]:
    """Rank 0's shares from the trace against what the run has written on its own."""
    steps, metrics = steps_of(read_perfetto(out / "trace.json")[0]), read_metrics(out)
    part = f"{name}: the trace beside the run's own meters"
    yield Row(part, "steps in the trace", len(metrics), len(steps))
    ratios = [total(step) / line["time_s"] for step, line in zip(steps, metrics, strict=True)]
    yield Row(
        part, "sum of the shares over the step's time, less 1", 0, statistics.median(ratios) - 1, CLOCKS
    )
    for share, wanted in (("comm_share", "communication_s"), ("bubble_share", "bubble_s")):
        off = [
            getattr(step, wanted) / step.step_s - line[share]
            for step, line in zip(steps, metrics, strict=True)
        ]
        yield Row(part, f"{share} in metrics.jsonl, difference", 0, statistics.median(off), CLOCKS)
    job, machine = read_job(out), json.loads((out / "machine.json").read_text(encoding="utf-8"))
    work = flops.model_flops_per_step(job)
    worst = max(
        abs(
            flops.mfu(
                work,
                seconds=line["time_s"],
                num_gpus=job.parallel.world_size,
                peak_flops=machine["peak_flops_per_s_per_rank"],
            )
            / line["mfu"]
            - 1
        )
        for line in metrics
    )
    yield Row(part, "mfu in metrics.jsonl, relative difference", 0, worst, 1e-6)


def total(step: Shares) -> float:
    """All shares of a step together."""
    return step.compute_s + step.communication_s + step.bubble_s + step.data_s + step.other_s


def summary(job: Job, out: Path) -> dict[str, Any]:
    """A typical step of rank 0: its time, its shares, MFU, and what the schedule alone predicts to idle."""
    step = typical(steps_of(read_perfetto(out / "trace.json")[0]))
    stages, micro_batches = job.parallel.pp, job.gradient_accumulation
    return {
        "step_s": step.step_s,
        "shares": {
            "compute": step.compute_s / step.step_s,
            "exposed communication": step.communication_s / step.step_s,
            "bubble": step.bubble_s / step.step_s,
            "data": step.data_s / step.step_s,
            "other": step.other_s / step.step_s,
        },
        "mfu": statistics.median(line["mfu"] for line in read_metrics(out)[1:]),
        "bubble_of_equal_stages": (stages - 1) / (micro_batches + stages - 1),
    }


def faults(folder: Path) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Six prepared traces in a drawn order; each is read back from its file and diagnosed."""
    draw = random.Random(SEED)
    causes = list(FAULTS)
    draw.shuffle(causes)
    for number, cause in enumerate(causes, start=1):
        out = folder / f"trace-{number}"
        step = FAULTS[cause](draw)
        prepared.write(out, step)
        named = [found.cause for found in diagnose(out)[:1]]
        first = diagnose(out)[0] if named else None
        yield (
            Row("six prepared traces", f"trace-{number}: the fault is named", 1, int(named == [cause])),
            {
                "trace": out.name,
                "cause": cause,
                "named": named[0] if named else "",
                "cost": first.cost if first else 0.0,
                "evidence": first.evidence if first else "",
                "fix": first.fix if first else "",
            },
        )


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    parser.add_argument("--traces", type=Path, help="only write the six prepared traces into this folder")
    options = parser.parse_args()
    if options.traces:
        for _ in faults(options.traces):
            pass
        print(f"six traces in {options.traces}: open trace-N/trace.json in Perfetto, then ask yourself why")
        return 0
    rows, report = [], {"lab": "08", "preset": options.preset, "runs": {}, "traces": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name, axis in WAYS.items():
            out = Path(scratch) / axis
            run(axis, out, options.preset)
            rows += list(reconcile(name, out))
            report["runs"][name] = summary(read_job(out), out)
        for row, found in faults(Path(scratch)):
            rows.append(row)
            report["traces"].append(found)
    off = [row.quantity for row in rows if not row.right]
    model = PRESETS[options.preset]
    print(f"2 processes: {model['layers']} layers, h={model['hidden']}, {STEPS} steps of 8 sequences")
    for name, found in report["runs"].items():
        shares = ", ".join(f"{share} {percent_text(value)}" for share, value in found["shares"].items())
        print(f"seconds a step, {name}: {found['step_s']:.3f}: {shares}; MFU {percent_text(found['mfu'])}")
    print(*lines(rows), sep="\n")
    print()
    for found in report["traces"]:
        print(f"{found['trace']}: {found['named']} ({percent_text(found['cost'])}): {found['evidence']}")
    if options.json:
        report |= {"rows": [row.report() for row in rows], "off": off}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print()
    print(f"NOT as predicted: {', '.join(off)}" if off else "everything as predicted")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
