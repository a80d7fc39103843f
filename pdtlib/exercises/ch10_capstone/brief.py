"""What is to be planned, and what the plan says of a job: the capstone's question and its scales."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pdtlib.plan import params, presets
from pdtlib.plan.job import from_dict
from pdtlib.plan.planner import Plan, plan
from pdtlib.plan.spec import Job
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.step import step_time
from pdtlib.plan.units import DAY_S, HOUR_S
from pdtlib.plan.validate import validate

NUM_TOKENS = 10**11
MOST_CALLS = 150
SPARE = 1.03
"""The budget, over what the best plan of some size costs."""


@dataclass(frozen=True)
class Case:
    """A model, a cluster with the numbers of its GPUs that can be had, and sequences a step."""

    model: str
    cluster: str
    sizes: tuple[int, ...]
    global_batch: int

    def __str__(self) -> str:
        return f"{self.model} on {self.cluster}"


CASES = (
    Case("llama2-7b", "dgx-a100", (8, 16, 32, 64), 16),
    Case("qwen2.5-32b", "dgx-h100", (16, 32, 64, 128), 32),
    Case("llama2-70b", "dgx-h100", (32, 64, 128, 256), 64),
)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """What the reader is told."""

    model: str
    num_params: int
    num_tokens: int
    global_batch: int
    cluster: str
    sizes: tuple[int, ...]
    gpus_per_node: int
    memory_bytes: float
    peak_flops: float
    budget_gpu_hours: float


@dataclass(frozen=True)
class Outcome:
    """What the plan says of a job that can work."""

    step_s: float
    bytes: float
    gpus: int
    tokens_per_step: int

    @property
    def days(self) -> float:
        """Days to train on all tokens, without failures."""
        return NUM_TOKENS / self.tokens_per_step * self.step_s / DAY_S

    @property
    def gpu_hours(self) -> float:
        return self.days * DAY_S / HOUR_S * self.gpus


@cache
def outcome(job: Job) -> Outcome:
    """Time and memory of a job, as the planner sees them."""
    return Outcome(
        step_time(job, system=system_of(job)).step_s,
        footprint(job, software=USUAL_SOFTWARE),
        job.parallel.world_size,
        job.train.global_batch * job.model.seq,
    )


class Predict:
    """What the reader calls: a job's problems, or its seconds and bytes. Calls are counted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise RuntimeError(f"more than {MOST_CALLS} predictions")
        problems = [f"{problem.field}: {problem.message}" for problem in validate(job)]
        if problems:
            return {"problems": problems}
        found = outcome(from_dict(job))
        return {"problems": [], "step_s": found.step_s, "bytes": found.bytes}


@cache
def one_gpu(case: Case) -> Job:
    """The model, the batch and the cluster of a case, on one GPU: what the planner starts from."""
    return from_dict(
        {
            "model": {"preset": case.model},
            "train": {"global_batch": case.global_batch},
            "hardware": {"cluster": case.cluster, "n_gpus": 1},
        }
    )


@cache
def best(case: Case, gpus: int) -> Plan:
    """The planner's best on so many GPUs, with 1F1B where it has a pipeline."""
    return plan(one_gpu(case), num_gpus=gpus, top=1, schedules=("1f1b",)).plans[0]


def best_within(case: Case, budget_gpu_hours: float) -> Plan:
    """The planner's soonest done among all sizes that the budget pays for."""
    plans = [best(case, gpus) for gpus in case.sizes]
    paid = [found for found in plans if found.gpu_hours(NUM_TOKENS) <= budget_gpu_hours]
    return min(paid, key=lambda found: found.time.step_s)


def brief_of(case: Case, *, size: int) -> Brief:
    """The question whose budget just pays for ``size`` GPUs."""
    job = one_gpu(case)
    gpu = presets.GPUS[job.hardware.gpu]
    return Brief(
        model=case.model,
        num_params=params.count(job.model).total,
        num_tokens=NUM_TOKENS,
        global_batch=case.global_batch,
        cluster=case.cluster,
        sizes=case.sizes,
        gpus_per_node=job.hardware.gpus_per_node,
        memory_bytes=gpu.memory_bytes,
        peak_flops=gpu.peak_flops,
        budget_gpu_hours=SPARE * best(case, size).gpu_hours(NUM_TOKENS),
    )
