"""The article's conclusion: what the strategies serve, and that none of them is the best."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pdtlib.book.claims.judge import ASSUMPTION, EXACT, Finding, Reading, Register
from pdtlib.book.conclusion import job_of, strategies
from pdtlib.figures.planner import plan_words
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.memory import stage_memory
from pdtlib.plan.planner import Plan, plan
from pdtlib.plan.planner.article import TABLE
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.step import step_time
from pdtlib.plan.units import gb_text, percent_text, time_text

REGISTER = Register()
claim = REGISTER.claim

GPUS, GLOBAL_BATCH, CLUSTER = 128, 256, "dgx-a100"
MODELS = ("llama2-7b", "llama2-70b", "gpt3-175b")


def small_job(*, gpus: int, **parallel: int) -> Job:
    """7B, which fits without cutting the model once its states are sharded."""
    return from_dict(
        {
            "model": {"preset": "llama2-7b"},
            "train": {"global_batch": 64, "zero_stage": 3, "sequence_parallel": "tp" in parallel},
            "parallel": {"dp": 1, **parallel},
            "hardware": {"cluster": CLUSTER, "n_gpus": gpus},
        }
    )


def seconds(job: Job) -> float:
    return step_time(job, system=system_of(job)).step_s


@cache
def best(model: str) -> Plan:
    """The planner's first plan for a model, with 1F1B where it has a pipeline."""
    job = from_dict(
        {
            "model": {"preset": model},
            "train": {"global_batch": GLOBAL_BATCH},
            "hardware": {"cluster": CLUSTER, "n_gpus": 1},
        }
    )
    return plan(job, num_gpus=GPUS, top=1, schedules=("1f1b",)).plans[0]


@claim(
    "C10-a",
    says="From plain data parallelism to 3D parallelism, each step serves larger models, faster training and "
    "lower cost.",
    registered=ASSUMPTION,
    sources=("computed here",),
)
def _each_step() -> Finding:
    one = stage_memory(job_of(""), 0)
    whole = one.params + one.grads + one.optimizer
    cutting = [item for item in strategies() if item.name not in ("data parallelism", "context (ring)")]
    smallest = min(cutting, key=lambda item: item.state_bytes)
    alone, shared = seconds(small_job(gpus=1)), seconds(small_job(gpus=8, dp=8))
    cut = seconds(small_job(gpus=8, tp=8))
    return Finding(
        f"Larger models, yes: of {gb_text(whole)} of states for 70B a GPU of eight holds as little as "
        f"{gb_text(smallest.state_bytes)}. Faster and cheaper only for what would not run otherwise. Every "
        f"step sends more or idles more. For 7B, which needs no cut, eight A100s take {time_text(shared)} a "
        f"step with sharded data parallelism and {time_text(cut)} with tensor parallelism.",
        [
            Reading("a GPU holds less", all(item.state_bytes < whole for item in cutting)),
            Reading("eight GPUs are sooner done than one", shared < alone),
            Reading("every further cut is faster and cheaper for any model", cut < shared),
        ],
    )


@claim(
    "C10-b",
    says="There is no best strategy, only one suited to a model's size and the hardware.",
    registered=EXACT,
    sources=("Megatron-LM, parallelism guide", "Llama 3 (arXiv:2407.21783), table 4", "computed here"),
)
def _no_best() -> Finding:
    plans = {model: best(model) for model in MODELS}
    told = "; ".join(f"{model}: {plan_words(found)}" for model, found in plans.items())
    small, large = plans[MODELS[0]].job, plans[MODELS[-1]].job
    needed = footprint(replace(small, model=large.model), software=USUAL_SOFTWARE)
    room = presets.GPUS[large.hardware.gpu].memory_bytes
    loses = seconds(replace(large, model=small.model)) / plans[MODELS[0]].time.step_s - 1
    rows = {(row.tp, row.pp, row.zero_stage) for row in TABLE}
    return Finding(
        f"The planner's best for {GPUS} A100s and {GLOBAL_BATCH} sequences a step: {told}. The first one's "
        f"layout needs {gb_text(needed)} a GPU for the last model; the last one's makes a step of the first "
        f"{percent_text(loses, digits=0)} longer. Batch, length and network change the answer too.",
        [
            Reading("the small model's best for the large one", needed > room),
            Reading("the large model's best for the small one", loses > 0),
            Reading("the article's own table", len(rows) > 1),
        ],
    )
