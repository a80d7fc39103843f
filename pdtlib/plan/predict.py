"""From a job to everything that the plan knows of it, as plain data: what ``pdt predict`` prints."""

from collections.abc import Mapping
from typing import Any

from pdtlib.plan import flats, flops, memory, params
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job, JobError


def predict(job: Job | Mapping[str, object]) -> dict[str, Any]:
    """Parameters, layout, memory, FLOPs and communication of a job; its problems if it cannot work.

    Bytes are per rank, FLOPs are of the whole job, ``comm`` is a rank of the first stage. A dict is read as a
    job file is. A job with problems gives ``{"problems": [...]}`` alone.

    >>> result = predict({"model": {"preset": "llama3-8b"}, "parallel": {"tp": 3}})
    >>> result["problems"][0]["field"]
    'parallel.tp'
    """
    try:
        checked = from_dict(job) if isinstance(job, Mapping) else job
    except JobError as error:
        return {"problems": problem_rows(error)}
    return {"problems": [], **_predict(checked)}


def problem_rows(error: JobError) -> list[dict[str, Any]]:
    """The problems of a job as plain data."""
    return [
        {"field": problem.field, "message": problem.message, "valid": list(problem.valid)}
        for problem in error.problems
    ]


def _predict(job: Job) -> dict[str, Any]:
    count = params.count(job.model)
    forward = flops.forward_per_token(job.model)
    per_stage = memory.stages_memory(job)
    return {
        "params": {"total": count.total, "active": count.active, "by_part": count.by_part},
        "layout": {
            "world_size": job.parallel.world_size,
            "gradient_accumulation": job.gradient_accumulation,
            "stages": [
                {
                    "layers": len(stage.layers),
                    "layer_ids": list(stage.layers),
                    "params": stage.params,
                    "tied_copy": stage.tied_copy,
                }
                for stage in params.stages(job)
            ],
        },
        "memory": {
            "stages": [
                {
                    "params": stage.params,
                    "grads": stage.grads,
                    "optimizer": stage.optimizer,
                    "activations": stage.activations,
                    "logits": stage.logits,
                    "buffers": stage.buffers,
                    "total": stage.total,
                }
                for stage in per_stage
            ],
            "max_total": max(stage.total for stage in per_stage),
        },
        "flops": {
            "model_per_step": flops.model_flops_per_step(job),
            "hardware_per_step": flops.hardware_flops_per_step(job),
            "forward_per_token": forward.total,
        },
        "comm": [message.row() for message in flats.data_parallel_messages(job)],
    }
