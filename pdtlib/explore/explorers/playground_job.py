"""The job that the playground's controls describe, and the controls' state nearest to a job."""

from __future__ import annotations

from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.explorer import Values
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict

MODELS = ("gpt2", "gpt2-xl", *(name for name in sizes.NAMED if name != "gpt2-xl"))
DEGREES = {
    "tp": (1, 2, 4, 8, 16),
    "pp": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 32, 35),
    "cp": (1, 2, 4, 8, 16, 32),
    "ep": (1, 2, 4, 8, 16, 32),
}
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
TRAIN = ("global_batch", "micro_batch", "precision", "grad_precision", "zero_stage", "recompute")
SWITCHES = ("sequence_parallel", "flash_attention")
PARALLEL = ("dp", "tp", "pp", "cp", "ep")


def job_of(values: Values) -> Job:
    """The job of the controls; raises JobError if it cannot work.

    Context parallelism has no dropout, so a preset that has some loses it there.
    """
    if values["model"] == sizes.OWN:
        model = sizes.shape_of(values)
        if values["experts"]:
            moe = {"experts": values["experts"], "top_k": values["top_k"], "ffn": values["ffn"]}
            model = {**model, "moe": moe}
    else:
        model = {"preset": values["model"]}
    parallel = {name: values[name] for name in PARALLEL}
    if values["pp"] > 1:
        parallel |= {"schedule": values["schedule"]}
        if values["schedule"] == "interleaved":
            parallel |= {"vpp": values["vpp"]}
    if values["cp"] > 1:
        parallel |= {"context": values["context"]}
        model = {**model, "dropout": 0.0}
    return from_dict(
        {
            "model": {**model, "seq": values["seq"]},
            "train": {name: values[name] for name in (*TRAIN, *SWITCHES)},
            "parallel": parallel,
            "hardware": {"cluster": values["cluster"]},
        }
    )


def adopt(job: Job) -> dict[str, Any]:
    """The state nearest to a job; the fields that the playground has no control for keep their defaults."""
    model, parallel = job.model, job.parallel
    state: dict[str, Any] = {name: getattr(job.train, name) for name in (*TRAIN, *SWITCHES)}
    state["micro_batch"] = sizes.nearest(MICRO_BATCHES, job.train.micro_batch)
    state |= {name: sizes.nearest(options, getattr(parallel, name)) for name, options in DEGREES.items()}
    state |= {"dp": parallel.dp, "seq": model.seq, "context": parallel.context}
    state |= {"schedule": parallel.schedule, "vpp": sizes.nearest(CHUNKS, parallel.vpp)}
    for name, cluster in presets.CLUSTERS.items():
        if cluster["gpu"] == job.hardware.gpu:
            state["cluster"] = name
    if model.name in MODELS:
        return {**state, "model": model.name}
    state |= sizes.adopted_shape(job)
    if model.moe is not None:
        state |= {"experts": model.moe.experts, "top_k": model.moe.top_k, "ffn": model.moe.ffn}
    return state
