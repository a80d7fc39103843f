"""Fit the constants of software stacks to part of the published runs, and report the errors on the rest.

    python benchmarks/calibrate.py [--by-model] FILE [STACK ...]

Prints a line for ``pdtlib/plan/time/constants.py`` and, for every stack, the mean error on the runs fitted
and on those held out. The search is coordinate descent on the mean absolute log error of a step's time: few
parameters, a smooth model, and no dependency. ``--by-model`` predicts every model by constants that are
fitted to the stack's other models alone (at most five parts), from the same neutral start for all of them.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from published_jobs import Case, completed, job_of, stack_of
from published_metrics import rates, seconds_of

from pdtlib.plan.job import Job
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.machine import System

BOUNDS = {
    "matmul_share": (0.4, 1.1),
    "passes": (0.7, 3.0),
    "attention_share": (0.15, 0.95),
    "kernel_s": (2e-6, 80e-6),
    "step_s": (0.001, 2.0),
    "overlap_tp": (0.0, 0.95),
    "overlap_tp_back": (0.0, 0.95),
    "overlap_dp": (0.0, 1.0),
    "overlap_pp": (0.0, 0.95),
    "fp8_share": (0.7, 1.1),
    "inter_share": (0.05, 1.0),
}
NEUTRAL = {
    # Where a fit starts that must not know what an earlier one found.
    "matmul_share": 0.9,
    "passes": 1.2,
    "attention_share": 0.6,
    "kernel_s": 20e-6,
    "step_s": 0.02,
    "overlap_tp": 0.2,
    "overlap_tp_back": 0.2,
    "overlap_dp": 0.6,
    "overlap_pp": 0.5,
    "fp8_share": 0.9,
    "inter_share": 0.5,
}
PARTS = 5
FEW_ACTIONS = 512  # of a pipeline's table: within a percent, and quick
TIMES = (
    "iteration_time_s",
    "tokens_per_s_per_gpu",
    "samples_per_gpu_per_s",
    "tflops_per_gpu",
    "tflops_per_gpu_with_cp",
    "mfu",
)


@dataclass(frozen=True)
class Fit:
    """A stack, the parts of ids that name the runs to fit it on, and the parameters that they determine."""

    stack: str
    on: tuple[str, ...]
    parameters: tuple[str, ...]
    start: tuple[tuple[str, float], ...] = ()


EVERY_OTHER = ("every other",)
FITS = (
    Fit(
        "megatron-2021",
        ("kor22-t5-22B", "kor22-t5-530B", "nar21-t1-1.7B", "nar21-t1-39B", "nar21-t1-530B", "mlm20-a100-"),
        ("matmul_share", "passes", "kernel_s", "step_s"),
    ),
    Fit(
        "megatron-deepspeed-2021",
        ("vtrain-multi-00", "vtrain-multi-01", "vtrain-multi-05", "vtrain-multi-06", "every fifth"),
        ("matmul_share", "passes", "kernel_s", "step_s", "overlap_tp", "overlap_pp"),
    ),
    Fit(
        "megatron-deepspeed",
        EVERY_OTHER,
        ("matmul_share", "passes", "step_s", "overlap_pp", "inter_share"),
        (("passes", 2.5), ("matmul_share", 0.9), ("step_s", 0.5)),
    ),
    Fit("mt-nlg", ("mtnlg-2240",), ("matmul_share",)),
    Fit(
        "megatron-zb",
        ("1.5B-m24", "14.6B-m48"),
        ("matmul_share", "passes", "step_s", "overlap_pp"),
        (("matmul_share", 0.95), ("passes", 2.0), ("step_s", 0.01), ("overlap_pp", 0.6)),
    ),
    Fit(
        "deepspeed-2021",
        ("-384", "-1536"),
        ("matmul_share", "overlap_dp", "inter_share"),
        (("inter_share", 0.08), ("overlap_dp", 0.6)),
    ),
    Fit("megascale", ("megascale-megascale-256",), ("matmul_share", "overlap_tp")),
    Fit("meta", ("llama3-t4-8192",), ("matmul_share",)),
    Fit(
        "nanotron",
        ("8B-2n", "8B-8n", "1B-16n", "8B-32n", "1B-4n", "3B-1n"),
        ("matmul_share", "passes", "step_s", "overlap_tp", "overlap_dp"),
        (("matmul_share", 0.85), ("passes", 1.5), ("overlap_tp", 0.5), ("overlap_dp", 0.5)),
    ),
    Fit("foundry", EVERY_OTHER, ("matmul_share", "passes", "step_s", "overlap_dp", "attention_share")),
    Fit("foundry-h100", EVERY_OTHER, ("matmul_share", "passes", "step_s", "overlap_dp", "attention_share")),
    Fit("fsdp", EVERY_OTHER, ("matmul_share", "passes", "overlap_dp")),
    Fit(
        "fsdp-compile",
        ("t1-compile", "t1-fp8", "a100-8b-so", "405b-128-fp8", "a100-70b"),
        ("matmul_share", "passes", "overlap_dp", "fp8_share"),
        (("matmul_share", 0.85), ("passes", 1.2), ("overlap_dp", 0.7), ("fp8_share", 0.8)),
    ),
    Fit("nemo-2024", EVERY_OTHER, ("matmul_share", "passes", "step_s", "overlap_tp")),
    Fit(
        "megatron-core-2024",
        ("h100-1.7B", "h100-16B", "h100-177B", "strong-177B-96"),
        ("matmul_share", "passes", "overlap_tp", "step_s"),
    ),
    Fit(
        "megatron-core",
        (
            "bf16-8",
            "fp8-8",
            "bf16-512",
            "fp8-512",
            "bf16-576",
            "fp8-576",
            "bridge-079",
            "bridge-086",
            "bridge-255",
        ),
        ("matmul_share", "passes", "overlap_tp", "overlap_pp", "attention_share", "fp8_share"),
    ),
)


@dataclass(frozen=True)
class Row:
    """A run with the seconds of a step that its first metric amounts to."""

    case: Case
    job: Job
    seconds: float


def rows_of(cases: Sequence[Case], stack: str) -> list[Row]:
    """The runs of a stack whose time is published."""
    found = []
    for case in map(completed, cases):
        timed = [metric for metric in case["metrics"] if metric["name"] in TIMES]
        if not timed or "iteration_time_s" in (case.get("input") or {}) or stack_of(case) != stack:
            continue
        job = job_of(case)
        if job is None or (job.model.moe is not None) or case.get("kind") == "mfu_only":
            continue
        name, value = timed[0]["name"], timed[0]["value"]
        seconds = value if name == "iteration_time_s" else rates(case, job, 1.0)[name] / value
        found.append(Row(case, job, seconds))
    return found


def chosen(rows: Sequence[Row], on: tuple[str, ...]) -> list[Row]:
    """The rows to fit on."""
    if on == EVERY_OTHER:
        return list(rows[::2])
    return [
        row
        for index, row in enumerate(rows)
        if any(part in row.case["id"] for part in on)
        or ("every fifth" in on and row.case["group"] == "vtrain_single" and index % 5 == 0)
    ]


def system_with(job: Job, stack: str, values: Mapping[str, float]) -> System:
    """The job's system with some of its stack's constants replaced."""
    return system_of(job, software=stack, **values)


def errors(rows: Sequence[Row], stack: str, values: Mapping[str, float]) -> list[float]:
    """Relative errors of the predicted seconds."""
    return [
        seconds_of(row.case, row.job, system_with(row.job, stack, values), most_actions=FEW_ACTIONS)
        / row.seconds
        - 1
        for row in rows
    ]


def descend(loss: Callable[[Mapping[str, float]], float], start: Mapping[str, float]) -> dict[str, float]:
    """Coordinate descent with steps that shrink where they stop helping."""
    values, best = dict(start), loss(start)
    steps = dict.fromkeys(values, 1.3)
    for _ in range(12):
        for name in values:
            low, high = BOUNDS[name]
            for factor in (steps[name], 1 / steps[name]):
                trial = {**values, name: min(high, max(low, values[name] * factor))}
                found = loss(trial)
                if found < best - 1e-7:
                    values, best = trial, found
                    break
            else:
                steps[name] **= 0.5
    return values


def fit(cases: Sequence[Case], plan: Fit) -> dict[str, float]:
    """Fit one stack, print its line and its errors."""
    rows = rows_of(cases, plan.stack)
    training = chosen(rows, plan.on)
    held_out = [row for row in rows if row not in training]
    job = training[0].job
    start = {name: _start(system_of(job, software=plan.stack), name) for name in plan.parameters}
    start |= dict(plan.start)
    values = descend(partial(_loss, training, plan.stack), start)
    print(f"{plan.stack}: " + ", ".join(f"{name}={value:.4g}" for name, value in values.items()))
    for name, part in (("fitted", training), ("held out", held_out)):
        found = errors(part, plan.stack, values)
        if found:
            mean = sum(map(abs, found)) / len(found)
            bias = sum(found) / len(found)
            print(
                f"    {name:9} n={len(found):4} mean {mean:.1%} bias {bias:+.1%} "
                f"worst {max(map(abs, found)):.1%}"
            )
    return values


def by_model(cases: Sequence[Case], plan: Fit) -> None:
    """Predict every model by a fit to the others, and print the errors on all of them together."""
    rows = rows_of(cases, plan.stack)
    models = sorted({_model_of(row) for row in rows})
    parts = min(PARTS, len(models))
    if parts < 2:
        print(f"{plan.stack}: one model, {len(rows)} runs")
        return
    found: list[float] = []
    for part in range(parts):
        left_out = set(models[part::parts])
        training = [row for row in rows if _model_of(row) not in left_out]
        start = {name: NEUTRAL[name] for name in plan.parameters} | dict(plan.start)
        values = descend(partial(_loss, training, plan.stack), start)
        found += errors([row for row in rows if _model_of(row) in left_out], plan.stack, values)
    mean, bias = sum(map(abs, found)) / len(found), sum(found) / len(found)
    print(
        f"{plan.stack}: {len(models)} models, n={len(found)} mean {mean:.1%} bias {bias:+.1%} "
        f"median {sorted(map(abs, found))[len(found) // 2]:.1%} worst {max(map(abs, found)):.1%}",
        flush=True,
    )


def _model_of(row: Row) -> tuple[int, int]:
    return row.job.model.hidden, row.job.model.layers


def _loss(training: Sequence[Row], stack: str, values: Mapping[str, float]) -> float:
    found = errors(training, stack, values)
    return sum(min(abs(math.log1p(error)), 0.5) for error in found) / len(found)


def _start(system: System, name: str) -> float:
    return float(getattr(system.software, name)) or 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("stacks", nargs="*")
    parser.add_argument("--by-model", action="store_true", help="predict each model by a fit to the others")
    arguments = parser.parse_args()
    data: Any = json.loads(arguments.file.read_text(encoding="utf-8"))
    for plan in FITS:
        if not arguments.stacks or plan.stack in arguments.stacks:
            (by_model if arguments.by_model else fit)(data["cases"], plan)


if __name__ == "__main__":
    main()
