"""From a job to everything that the plan knows of it, as plain data: what ``pdt predict`` prints."""

from collections.abc import Mapping
from typing import Any

from pdtlib.plan import flops, ledger, memory, params
from pdtlib.plan.hardware_file import memory_bytes, peak_flops
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job, JobError
from pdtlib.plan.time.constants import HABITS, USUAL_SOFTWARE, system_of
from pdtlib.plan.time.step import bubble_fraction, step_time
from pdtlib.plan.units import TFLOP, gb_text


def predict(job: Job | Mapping[str, object], *, software: str = USUAL_SOFTWARE) -> dict[str, Any]:
    """All that the plan knows of a job; its problems if it cannot work.

    Bytes are per rank, FLOPs are of the whole job, ``comm`` is a rank of the first stage. Times need a GPU
    with published rates, and are those of a ``software`` stack of :mod:`pdtlib.plan.time.constants`, or a
    machine that ``pdt calibrate`` measured. Utilisation is of the GPU's dense 16-bit peak, or of the best
    product measured, attention counted in full. A dict is read as a job file
    is. A job with problems gives ``{"problems": [...]}`` alone.

    >>> result = predict({"model": {"preset": "llama3-8b"}, "parallel": {"tp": 3}})
    >>> result["problems"][0]["field"]
    'parallel.tp'
    """
    try:
        checked = from_dict(job) if isinstance(job, Mapping) else job
    except JobError as error:
        return {"problems": problem_rows(error)}
    return {"problems": [], **_predict(checked, software)}


def problem_rows(error: JobError) -> list[dict[str, Any]]:
    """The problems of a job as plain data."""
    return [
        {"field": problem.field, "message": problem.message, "valid": list(problem.valid)}
        for problem in error.problems
    ]


def _predict(job: Job, software: str) -> dict[str, Any]:
    count = params.count(job.model)
    forward = flops.forward_per_token(job.model)
    per_stage, timed = memory.stages_memory(job), _time(job, software)
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
            "framework_overhead": framework_overhead(job, software),
        },
        "flops": {
            "model_per_step": flops.model_flops_per_step(job),
            "hardware_per_step": flops.hardware_flops_per_step(job),
            "forward_per_token": forward.total,
        },
        "comm": [message.row() for message in ledger.messages(job)],
        **timed,
        "warnings": _warnings(job, software, max(stage.total for stage in per_stage), timed),
    }


def framework_overhead(job: Job, software: str) -> float:
    """What a stack takes of a GPU besides the model: the CUDA context, NCCL's buffers, the allocator's gaps.

    It is in no term of a stage, since no tensor holds it; a CPU has nothing of the kind.
    """
    return 0.0 if job.hardware.gpu == "cpu" else HABITS[software].overhead_bytes


def _warnings(job: Job, software: str, fullest: float, timed: Mapping[str, Any]) -> list[str]:
    """What a reader should not overlook: memory that is not there, utilisation that cannot be."""
    rates = timed.get("throughput")
    found = [] if rates is None else flops.utilisation_warnings(rates["mfu"], rates["hfu"])
    room, overhead = memory_bytes(job), framework_overhead(job, software)
    if room is not None and fullest <= room < fullest + overhead:
        found.append(f"the framework's {gb_text(overhead)} do not fit beside {gb_text(fullest)} on a rank")
    if room is not None and fullest > room:
        found.append(
            f"{gb_text(fullest)} on a rank do not fit into the {gb_text(room)} of {job.hardware.gpu}"
        )
    return found


def _time(job: Job, software: str) -> dict[str, Any]:
    """Time and throughput, on hardware with published or measured rates; else the bubble of equal stages."""
    peak = peak_flops(job)
    if peak is None:
        return {"bubble_fraction": bubble_fraction(job)}
    time = step_time(job, system=system_of(job, software=software))
    tokens = job.train.global_batch * job.model.seq
    gpus = job.parallel.world_size
    model, executed = flops.model_flops_per_step(job), flops.hardware_flops_per_step(job)
    return {
        "bubble_fraction": time.bubble_fraction,
        "time": {
            "step_s": time.step_s,
            "compute_s": time.compute_s,
            "exposed_comm_s": time.exposed_s,
            "bubble_s": time.bubble_s,
        },
        "throughput": {
            "tokens_per_s": tokens / time.step_s,
            "tokens_per_s_per_gpu": tokens / time.step_s / gpus,
            "tflops_per_gpu": model / time.step_s / gpus / TFLOP,
            "mfu": flops.mfu(model, seconds=time.step_s, num_gpus=gpus, peak_flops=peak),
            "hfu": flops.mfu(executed, seconds=time.step_s, num_gpus=gpus, peak_flops=peak),
        },
    }
