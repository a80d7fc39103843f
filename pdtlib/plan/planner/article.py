"""The article's table of recommended configurations (its section 7.1), row by row against rules and plans.

The table gives a size, GPUs, tensor, pipeline and data parallelism and a ZeRO stage. A row is turned into a
job of a published model of that size on A100s, so everything that the plan knows can be asked of it: whether
its layers divide, what its states take, which target refuses it, and what the best plan for the same GPUs is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pdtlib.plan.export import TARGETS, export
from pdtlib.plan.flops import training_flops, training_seconds
from pdtlib.plan.job import from_dict
from pdtlib.plan.planner.search import Plan, plan
from pdtlib.plan.presets import GPUS
from pdtlib.plan.spec import Job, JobError, Problem
from pdtlib.plan.states import zero_state_bytes
from pdtlib.plan.units import DAY_S

GPU = "A100-SXM4-80"
TOKENS, MFU = 1e12, 0.4
"""What the days are counted for: tokens of the article's own example, and a usual utilisation."""


@dataclass(frozen=True)
class Row:
    """A row of the table: parameters, degrees, ZeRO stage; ``preset`` is a published model of that size."""

    params: float
    gpus: int
    tp: int
    pp: int
    dp: int
    zero_stage: int
    preset: str

    def job(self) -> Job:
        """The row on DGX A100s, eight sequences a replica and step for each stage of its pipeline."""
        return from_dict(
            {
                "model": {"preset": self.preset},
                "train": {
                    "global_batch": 8 * self.pp * self.dp,
                    "zero_stage": self.zero_stage,
                    "micro_batch": 1,
                    "recompute": "full",
                    "sequence_parallel": self.tp > 1,
                },
                "parallel": {"dp": self.dp, "tp": self.tp, "pp": self.pp},
                "hardware": {"cluster": "dgx-a100"},
            }
        )


TABLE = (
    Row(7e9, 8, 1, 1, 8, 2, "llama2-7b"),
    Row(13e9, 16, 2, 1, 8, 2, "llama2-13b"),
    Row(70e9, 128, 8, 4, 4, 3, "llama2-70b"),
    Row(175e9, 512, 8, 8, 8, 3, "gpt3-175b"),
    Row(530e9, 1024, 8, 16, 8, 3, "mt-nlg-530b"),
)


@dataclass(frozen=True)
class Check:
    """What comes out of a row. ``layers_per_stage`` shows a rest; ``state_bytes`` go by the row's round size.

    ``refused`` are the targets that cannot run the row as it stands, with their reasons. ``own`` is the row
    with the ZeRO stage that pipelines can use and the best of what it leaves open (chunks, micro-batch,
    recomputation), None where nothing fits; ``best`` is the best plan of the same model, batch and GPUs.
    """

    row: Row
    layers_per_stage: float
    state_bytes: float
    state_bytes_zero_1: float
    refused: dict[str, tuple[Problem, ...]]
    days: float
    own: Plan | None
    best: Plan | None

    @property
    def loses(self) -> float | None:
        """By how much the row's step is longer than the best plan's, as a share."""
        if self.best is None or self.own is None:
            return None
        return self.own.time.step_s / self.best.time.step_s - 1


def check_row(row: Row) -> Check:
    """Everything that the plan can say about a row.

    >>> found = check_row(TABLE[2])
    >>> found.state_bytes / 1e9, round(found.state_bytes_zero_1 / 1e9, 1), round(found.days)
    (8.75, 15.3, 304)
    >>> found.refused["deepspeed"][0].field
    'train.zero_stage'
    """
    job = row.job()
    each = row.params / (row.tp * row.pp)
    refused: dict[str, tuple[Problem, ...]] = {}
    for target in TARGETS:
        try:
            export(job, to=target)
        except JobError as error:
            refused[target] = tuple(error.problems)
    flops = training_flops(row.params, num_tokens=TOKENS)
    seconds = training_seconds(flops, num_gpus=row.gpus, peak_flops=GPUS[GPU].peak_flops, mfu=MFU)
    return Check(
        row=row,
        layers_per_stage=job.model.layers / row.pp,
        state_bytes=zero_state_bytes(each, dp=row.dp, stage=row.zero_stage).total,
        state_bytes_zero_1=zero_state_bytes(each, dp=row.dp, stage=1).total,
        refused=refused,
        days=seconds / DAY_S,
        own=_own(row),
        best=_best(row),
    )


def _own(row: Row) -> Plan | None:
    """The row's best plan; under a pipeline its ZeRO stage is 1."""
    stage = min(1, row.zero_stage) if row.pp > 1 else row.zero_stage

    def of_the_row(layout: Job) -> bool:
        parallel = layout.parallel
        degrees = (parallel.tp, parallel.pp, parallel.dp)
        return degrees == (row.tp, row.pp, row.dp) and layout.train.zero_stage == stage

    return _best(row, only=of_the_row)


def _best(row: Row, *, only: Callable[[Job], bool] | None = None) -> Plan | None:
    plans = plan(row.job(), num_gpus=row.gpus, top=1, only=only).plans
    return plans[0] if plans else None
