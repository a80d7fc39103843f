"""A job as DeepSpeed's JSON (0.19): https://www.deepspeed.ai/docs/config-json/

The file holds the batch, precision, ZeRO, clipping and optimizer. The model is the reader's own code, and
with it its size, activation checkpointing, attention kernel and, for pipelines, ``PipelineModule(layers,
num_stages)``.
"""

import json
from typing import Any

from pdtlib.plan.export.common import Export, Rules, recomputes_a_part
from pdtlib.plan.spec import Job


def to_deepspeed(job: Job) -> Export:
    """``deepspeed.json`` and what the training script must do.

    ``train_batch_size`` is left to DeepSpeed, which multiplies micro-batch, accumulation and the
    data-parallel degree that it finds at run time.
    """
    _check(job)
    train, parallel = job.train, job.parallel
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": job.gradient_accumulation,
        "gradient_clipping": train.clip_grad_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": train.learning_rate, "weight_decay": train.weight_decay},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {
                "warmup_min_lr": 0.0,
                "warmup_max_lr": train.learning_rate,
                "warmup_num_steps": max(1, train.warmup_steps),
            },
        },
        "zero_optimization": _zero(job),
    }
    if train.precision in ("bf16", "fp16"):
        config[train.precision] = {"enabled": True}
    if train.grad_precision == "fp32" and train.precision != "fp32":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if parallel.tp > 1 and parallel.pp == 1:
        config["tensor_parallel"] = {"autotp_size": parallel.tp}
    if parallel.pp > 1:
        config["pipeline"] = {"stages": parallel.pp, "partition": "uniform"}
    if parallel.cp > 1:
        config["sequence_parallel_size"] = parallel.cp
    return Export({"deepspeed.json": json.dumps(config, indent=2) + "\n"}, tuple(_notes(job)))


def _zero(job: Job) -> dict[str, Any]:
    stage = job.train.zero_stage
    table: dict[str, Any] = {"stage": stage}
    if stage:
        table |= {"overlap_comm": True, "contiguous_gradients": True}
    if stage == 3 and not job.train.reshard_after_forward:
        # Parameters that are used again soon, as all are between forward and backward pass, stay gathered.
        table |= {"stage3_max_live_parameters": 10**15, "stage3_max_reuse_distance": 10**15}
    return table


def _notes(job: Job) -> list[str]:
    parallel, batch = job.parallel, job.train.global_batch
    found = [f"launch {parallel.world_size} processes; the batch is {batch} sequences a step"]
    if parallel.pp > 1:
        found.append(f"build the model as PipelineModule(layers, num_stages={parallel.pp}), which runs 1F1B")
    if parallel.tp > 1 and parallel.pp > 1:
        found.append(f"tensor parallelism over {parallel.tp} ranks is the model's own, through its mpu")
    if job.train.recompute != "none":
        part = (
            f", of the first {job.train.recompute_layers} layers of each stage"
            if recomputes_a_part(job)
            else ""
        )
        found.append(f"{job.train.recompute} recomputation is turned on in the model's code{part}")
    return found


def _check(job: Job) -> None:
    rules, train, parallel = Rules("DeepSpeed"), job.train, job.parallel
    rules.refuse(
        parallel.pp > 1 and train.zero_stage > 1,
        "train.zero_stage",
        "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
        0,
        1,
    )
    rules.refuse(
        parallel.pp > 1 and parallel.schedule != "1f1b",
        "parallel.schedule",
        f"its only schedule is 1F1B, not {parallel.schedule}",
        "1f1b",
    )
    rules.refuse(
        parallel.cp > 1 and parallel.context == "ring",
        "parallel.context",
        "it splits sequences by Ulysses, not by a ring",
        "ulysses",
    )
    rules.refuse(
        parallel.cp > 1 and parallel.pp > 1,
        "parallel.cp",
        "its sequence parallelism does not go with pipelines",
        1,
    )
    rules.refuse(
        train.precision == "fp8",
        "train.precision",
        "it has no fp8 training",
        "bf16",
        "fp16",
        "fp32",
    )
    rules.refuse(
        train.zero_stage == 0 and train.grad_precision == "fp32" and train.precision in ("bf16", "fp16"),
        "train.grad_precision",
        f"without ZeRO its gradients are kept in {train.precision} as the parameters are",
        "same",
    )
    rules.refuse(
        job.model.moe is not None,
        "model.moe",
        "experts are set up in the model's code, not in this file",
    )
    rules.refuse(
        train.sequence_parallel and parallel.tp > 1 and parallel.pp == 1,
        "train.sequence_parallel",
        "its automatic tensor parallelism keeps whole sequences",
        False,
    )
    rules.check()
