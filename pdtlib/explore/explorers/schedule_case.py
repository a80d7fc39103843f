"""What the schedule player's controls ask for: a table, the times of its actions, and a job with them."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.explore import sizes
from pdtlib.explore.explorer import Values
from pdtlib.explore.explorers.schedule_edits import edited
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.schedule import FAMILIES, NAMES, Costs, Schedule, build, zb_auto
from pdtlib.plan.spec import SCHEDULES

STAGES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
CHUNKS = (2, 3, 4)
BACKWARDS = (1.0, 1.5, 2.0, 3.0)  # a whole backward, in forwards
TRANSFERS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
UNEVEN = ("none", "first", "middle", "last")
SLOWER = (1.1, 1.25, 1.5, 2.0)
KEPT = (1.0, 0.43, 0.37, 0.0)  # of a micro-batch's activations, until its weights' gradient is computed
SPLIT = tuple(name for name in NAMES if FAMILIES[name].splits_backward)
ARTICLE_LAYERS = 48
ARTICLE = "48-layers"
MODELS = tuple(name for name in sizes.NAMED if presets.model(name).layers >= STAGES[-1] * CHUNKS[-1])


@dataclass(frozen=True)
class Case:
    """What the controls ask for: a table, as edited, and the times of its actions."""

    schedule: Schedule
    costs: Costs
    kept: float


def _costs(values: Values) -> Costs:
    stages, half = values["stages"], values["backward"] / 2
    slow = {"none": None, "first": 0, "middle": stages // 2, "last": stages - 1}[values["uneven"]]
    factors = [values["slower"] if stage == slow else 1.0 for stage in range(stages)]
    return Costs(
        forward=factors,
        backward_input=[half * factor for factor in factors],
        backward_weight=[half * factor for factor in factors],
        transfer=values["transfer"],
    )


def _built(values: Values, costs: Costs) -> Schedule:
    name, stages, microbatches = values["schedule"], values["stages"], values["microbatches"]
    if name == "zb-auto":
        return zb_auto(stages, microbatches, costs=costs, kept_for_weight=values["kept"])
    chunks = values["chunks"] if name == "interleaved" else None
    return build(name, stages=stages, microbatches=microbatches, chunks=chunks)


def case_of(values: Values) -> Case:
    """The case of a state; raises ControlError for an edit that the table cannot take."""
    costs = _costs(values)
    schedule = edited(_built(values, costs), values["edit"], control="edit")
    kept = values["kept"] if values["schedule"] in SPLIT else 1.0
    return Case(schedule, costs, kept)


def layers_of(values: Values) -> int:
    """Layers of the model that the stages share."""
    return ARTICLE_LAYERS if values["model"] == ARTICLE else presets.model(values["model"]).layers


def job_toml(values: Values) -> str:
    """The controls' job, or nothing where they make none: the article's layers, or an edited table."""
    name = values["schedule"]
    if values["model"] == ARTICLE or name not in SCHEDULES or values["edit"]:
        return ""
    chunks = {"interleaved": values["chunks"], "zb-v": 2}.get(name, 1)
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"]},
                "train": {"global_batch": values["microbatches"]},
                "parallel": {"pp": values["stages"], "vpp": chunks, "schedule": name},
            }
        )
    )


def adopt(job: Job) -> dict[str, object]:
    """The state nearest to a job."""
    known = job.model.name in MODELS and job.model == presets.model(job.model.name)
    return {
        "model": job.model.name if known else ARTICLE,
        "schedule": job.parallel.schedule,
        "stages": sizes.nearest(STAGES, job.parallel.pp),
        "microbatches": sizes.nearest(MICRO_BATCHES, job.gradient_accumulation),
        "chunks": sizes.nearest(CHUNKS, job.parallel.vpp),
    }
