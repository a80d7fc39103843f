"""A job for torchtitan: command-line options (0.3), and the same as TOML for versions up to 0.2."""

import math

from pdtlib.plan.export.common import Export, Rules, recomputes_a_part
from pdtlib.plan.schedule.rules import schedule_problems
from pdtlib.plan.spec import Job

SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
Options = dict[str, dict[str, object]]


def to_torchtitan(job: Job) -> Export:
    """``torchtitan.args`` and ``torchtitan.toml``. The model comes from torchtitan's own registry."""
    _check(job)
    options = _options(job)
    lines = [
        _option(section, name, value) for section, table in options.items() for name, value in table.items()
    ]
    notes = [
        f"launch {job.parallel.world_size} processes with --module llama3 --config of the model's size",
        "gradients are reduced in fp32, whatever their precision here",
    ]
    model = job.model
    notes.append(
        f"the model's size stands in its configuration, and so do RoPE's theta, here {model.rope_theta:g}, "
        f"and its norms' eps, here {model.norm_eps:g}"
    )
    if model.rope_scaling is not None:
        notes.append("and so does the scaling of its rotary positions, which must be that of the job")
    if job.train.recompute != "none":
        kind = "FullAC" if job.train.recompute == "full" else "SelectiveAC"
        notes.append(f"0.3 takes activation checkpointing from the model's configuration: {kind}")
    toml = dict(options)
    toml["activation_checkpoint"] = {"mode": job.train.recompute}
    text = "\n".join(
        "\n".join([f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in table.items()), ""])
        for section, table in toml.items()
    )
    return Export({"torchtitan.args": "\n".join(lines) + "\n", "torchtitan.toml": text}, tuple(notes))


def _options(job: Job) -> Options:
    train, parallel = job.train, job.parallel
    pipelined = parallel.pp > 1
    training: dict[str, object] = {
        "local_batch_size": train.micro_batch * (job.gradient_accumulation if pipelined else 1),
        "global_batch_size": train.global_batch,
        "seq_len": job.model.seq,
        "steps": train.steps,
        # Without clipping every norm is small enough; 0 would scale all gradients to nothing.
        "max_norm": train.clip_grad_norm or math.inf,
        "dtype": "float32",
        "mixed_precision_param": "float32" if train.precision == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
    }
    sharded = train.zero_stage in (2, 3)
    degrees: dict[str, object] = {
        "data_parallel_replicate_degree": 1 if sharded else parallel.dp,
        "data_parallel_shard_degree": parallel.dp if sharded else 1,
        "fsdp_reshard_after_forward": (
            "always" if train.zero_stage == 3 and train.reshard_after_forward else "never"
        ),
        "tensor_parallel_degree": parallel.tp,
        "enable_sequence_parallel": train.sequence_parallel,
        "pipeline_parallel_degree": parallel.pp,
        "context_parallel_degree": parallel.cp,
        "expert_parallel_degree": parallel.ep,
    }
    if pipelined:
        degrees |= {
            "pipeline_parallel_schedule": SCHEDULES[parallel.schedule],
            "pipeline_parallel_microbatch_size": train.micro_batch,
            "pipeline_parallel_layers_per_stage": -(-job.model.layers // (parallel.pp * parallel.vpp)),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return {"training": training, "parallelism": degrees}


def _option(section: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{section}.{'' if value else 'no_'}{name}"
    return f"--{section}.{name} {value}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _check(job: Job) -> None:
    rules, train, parallel, model = Rules("torchtitan"), job.train, job.parallel, job.model
    llama = model.activation == "swiglu" and model.norm == "rmsnorm" and model.positions == "rotary"
    rules.refuse(not llama, "model", "its models are of the Llama kind: swiglu, rmsnorm, rotary positions")
    rules.refuse(model.dropout > 0, "model.dropout", "its models have no dropout", 0.0)
    moe = model.moe
    rules.refuse(
        moe is not None and (moe.capacity_factor > 0 or moe.aux_loss > 0),
        "model.moe",
        "it drops no tokens, and balances experts by a bias, without a loss",
    )
    rules.refuse(
        recomputes_a_part(job),
        "train.recompute_layers",
        "its activation checkpointing covers every layer",
    )
    rules.refuse(
        train.precision not in ("bf16", "fp32"),
        "train.precision",
        f"{train.precision} is not among its precisions",
        "bf16",
        "fp32",
    )
    rules.refuse(
        train.zero_stage == 1,
        "train.zero_stage",
        "it shards parameters too, or replicates everything",
        0,
        2,
        3,
    )
    rules.refuse(
        parallel.pp > 1 and parallel.schedule not in SCHEDULES,
        "parallel.schedule",
        f"torch.distributed.pipelining has no {parallel.schedule}",
        *SCHEDULES,
    )
    chunks = parallel.pp * (2 if parallel.schedule == "zb-v" else parallel.vpp)
    if parallel.pp > 1 and parallel.schedule in SCHEDULES:
        for problem in schedule_problems(
            parallel.schedule,
            stages=parallel.pp,
            microbatches=job.gradient_accumulation,
            chunks=parallel.vpp,
            target="torch",
        ):
            batches = (int(str(n)) * train.micro_batch * parallel.dp for n in problem.valid)
            rules.refuse(True, "train.global_batch", problem.message, *batches)
    rules.refuse(
        parallel.pp > 1 and model.layers < chunks,
        "parallel.pp",
        f"{model.layers} layers cannot fill {chunks} chunks",
    )
    rules.refuse(
        parallel.pp > 1 and parallel.vpp > 1 and -(-model.layers // -(-model.layers // chunks)) != chunks,
        "parallel.vpp",
        f"{model.layers} layers do not make {chunks} chunks of one size or one less",
    )
    rules.refuse(
        parallel.cp > 1 and parallel.context != "ring",
        "parallel.context",
        "its context parallelism passes keys and values round",
        "ring",
    )
    rules.check()
