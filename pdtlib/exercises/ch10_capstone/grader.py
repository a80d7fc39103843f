"""Grades forecasts made by hand, then a whole job: it works, fits, keeps to the budget, and is soon done."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from pdtlib.exercises.ch10_capstone.brief import (
    CASES,
    Brief,
    Case,
    Predict,
    best_within,
    brief_of,
    one_gpu,
    outcome,
)
from pdtlib.exercises.compare import same_float, shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.flops import training_flops, training_seconds
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job
from pdtlib.plan.states import zero_state_bytes
from pdtlib.plan.units import DAY_S, GB
from pdtlib.plan.validate import validate

WITHIN = 0.05
LESSONS = {
    "state_gb": "16 bytes a parameter. Tensor and pipeline parallelism divide all of them; of 2 + 2 + 12, "
    "ZeRO-1 shards the last, ZeRO-2 the last two, ZeRO-3 all three over dp.",
    "bubble": "(p - 1)/(m + p - 1), with m micro-batches a replica: global_batch / (dp * micro_batch).",
    "days": "6 N D FLOPs, divided by the FLOP/s that all GPUs deliver together: GPUs * mfu * peak.",
}


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Forecasts of two layouts; then per case a job, looked at by what it would do."""
    forecast, write_job = code.function("forecast"), code.function("write_job")
    for case in CASES[1:]:
        yield from _forecasts(forecast, case, rng)
    for case in CASES:
        brief = brief_of(case, size=rng.choice(case.sizes[1:-1]))
        try:
            got = call(write_job, brief, Predict())
        except ReaderError as error:
            yield Check(name=f"{case}: runs", passed=False, message=str(error))
            continue
        yield from _job(case, brief, got)


def _forecasts(forecast: Callable[..., Any], case: Case, rng: random.Random) -> Iterator[Check]:
    tp, pp, stage = rng.choice((2, 4)), rng.choice((2, 4)), rng.choice((1, 2))
    layout = {"dp": 2, "tp": tp, "pp": pp, "zero_stage": stage, "micro_batch": rng.choice((1, 2))}
    mfu = rng.choice((0.35, 0.4, 0.45))
    brief = brief_of(case, size=case.sizes[1])
    got = call(forecast, brief, dict(layout), mfu)
    if not isinstance(got, dict) or any(name not in got for name in LESSONS):
        message = wrong_type(got, f"a dict of {', '.join(LESSONS)}")
        yield Check(name=f"Forecast for {case}", passed=False, got=shown(got), message=message)
        return
    micro_batches = brief.global_batch // (layout["dp"] * layout["micro_batch"])
    flops = training_flops(brief.num_params, num_tokens=brief.num_tokens)
    seconds = training_seconds(flops, num_gpus=2 * tp * pp, peak_flops=brief.peak_flops, mfu=mfu)
    expected = {
        "state_gb": zero_state_bytes(brief.num_params / (tp * pp), dp=2, stage=stage).total / GB,
        "bubble": (pp - 1) / (micro_batches + pp - 1),
        "days": seconds / DAY_S,
    }
    told = ", ".join(f"{name} {value}" for name, value in layout.items())
    for name, value in expected.items():
        yield same_float(
            f"Forecast of {name} for {brief.model} with {told}",
            expected=value,
            got=got[name],
            tolerance=1e-6,
            message=LESSONS[name],
        )


def _job(case: Case, brief: Brief, got: object) -> Iterator[Check]:
    """Four questions, one after the other: a job that fails one is not asked the next."""
    works = f"{case}: the job works"
    if not isinstance(got, dict):
        yield Check(name=works, passed=False, got=shown(got), message=wrong_type(got, "a dict of tables"))
        return
    problems = validate(got)
    wrong = f"{problems[0].field}: {problems[0].message}" if problems else _other(case, from_dict(got))
    yield Check(name=works, passed=not wrong, got=shown(got), message=wrong)
    if wrong:
        return
    found, best = outcome(from_dict(got)), best_within(case, brief.budget_gpu_hours)
    yield Check(
        name=f"{case}: it fits",
        passed=found.bytes <= brief.memory_bytes,
        expected=f"at most {brief.memory_bytes / GB:.0f} GB; the planner's best holds "
        f"{best.memory_bytes / GB:.1f} GB",
        got=f"{found.bytes / GB:.1f} GB",
        message="The fullest GPU runs out of memory. Check bytes against brief.memory_bytes.",
    )
    yield Check(
        name=f"{case}: within the budget",
        passed=found.gpu_hours <= brief.budget_gpu_hours,
        expected=f"at most {brief.budget_gpu_hours:,.0f} GPU-hours",
        got=f"{found.gpu_hours:,.0f} GPU-hours on {found.gpus} GPUs",
        message="More GPUs are sooner done, but each does less: GPU-hours grow. Recomputation costs "
        "them at any size. Steps times seconds times GPUs must not exceed the budget.",
    )
    best_days = found.days * best.time.step_s / found.step_s
    yield Check(
        name=f"{case}: within {WITHIN:.0%} of the planner's best",
        passed=found.days <= best_days * (1 + WITHIN),
        expected=f"about {best_days:.2f} days on {best.job.parallel.world_size} GPUs",
        got=f"{found.days:.2f} days on {found.gpus} GPUs",
        message=_lesson(found.gpus, best.job),
    )


def _other(case: Case, job: Job) -> str:
    """What of the question the job has changed."""
    asked = one_gpu(case)
    if job.model != asked.model:
        return "This is another model than the one that was asked for."
    if job.train.global_batch != asked.train.global_batch:
        return f"The global batch is {asked.train.global_batch} sequences."
    if job.train.precision != asked.train.precision:
        return f"The precision is {asked.train.precision}."
    if (job.hardware.gpu, job.hardware.inter) != (asked.hardware.gpu, asked.hardware.inter):
        return f"The cluster is {case.cluster}."
    if job.parallel.world_size not in case.sizes:
        return f"{job.parallel.world_size} GPUs can't be had; valid: {', '.join(map(str, case.sizes))}."
    return ""


def _lesson(gpus: int, best: Job) -> str:
    if gpus < best.parallel.world_size:
        return "The budget pays for more GPUs, and more GPUs are sooner done."
    return "Another layout of as many GPUs is faster: recompute less, cut less, or change the micro-batch."
