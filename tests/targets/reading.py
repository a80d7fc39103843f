"""What the targets' own code reads back from an export, as one plain form to compare with the job."""

import contextlib
import dataclasses
import json
import logging
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

ROUNDS = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def deepspeed(files, job):
    """DeepSpeed's configuration of ``deepspeed.json``, on the data-parallel ranks that the job has."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    path = Path(tempfile.mkdtemp()) / "deepspeed.json"
    path.write_text(files["deepspeed.json"])
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: job.parallel.dp)
    with rank_zero():
        return DeepSpeedConfig(str(path), mpu=mpu)


@contextlib.contextmanager
def rank_zero():
    """DeepSpeed believes that it is rank 0, without a process group."""
    import deepspeed.comm as dist

    kept, dist.get_rank = dist.get_rank, lambda group=None: 0
    try:
        yield
    finally:
        dist.get_rank = kept


def deepspeed_optimizer(config, *, pipeline):
    """Which wrapper DeepSpeed's engine chooses; it raises for a mix of dtypes that it does not have."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    stage = config.zero_optimization_stage
    engine = SimpleNamespace(
        _config=config,
        global_rank=0,
        pipeline_parallelism=pipeline,
        zero_optimization=lambda: stage > 0,
        zero_optimization_stage=lambda: stage,
        zero_cpu_offload=lambda: False,
        zero_compute_grad_norm=lambda: config.zero_config.compute_grad_norm,
        zero_allow_untested_optimizer=lambda: False,
        fp16_enabled=lambda: config.float16_config.enabled,
        bfloat16_enabled=lambda: config.bfloat16_config.enabled,
    )
    engine.get_data_types = lambda: DeepSpeedEngine.get_data_types(engine)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with rank_zero():
        return DeepSpeedEngine._do_optimizer_sanity_check(engine, optimizer)


def torchtitan(files):
    """The sections of torchtitan's configuration, read by its manager from ``torchtitan.args``."""
    from torchtitan.config.manager import ConfigManager

    words = files["torchtitan.args"].split()
    return ConfigManager().parse_args(["--module", "titan_registry", "--config", "sections", *words])


def megatron_flags(files):
    """``megatron.args`` as argparse would have it: names with underscores, True for a flag alone."""
    flags = {}
    for line in files["megatron.args"].splitlines():
        name, _, value = line.removeprefix("--").partition(" ")
        flags[name.replace("-", "_")] = _number(value) if value else True
    return flags


def _number(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


# Flags of Megatron-LM's training script, which is not in the package: no class of megatron.core has them.
SCRIPT_ONLY = {
    "global_batch_size",
    "micro_batch_size",
    "train_iters",
    "lr_warmup_iters",
    "seq_length",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_base",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "seed",
    "ckpt_format",
    "untie_embeddings_and_output_weights",
    "group_query_attention",
    "attention_backend",
}
RENAMED = {
    "num_experts": "num_moe_experts",
    "norm_epsilon": "layernorm_epsilon",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "fp8_format": "fp8",
}


def megatron(files):
    """The configuration objects of megatron.core, and the flags that no field of theirs takes."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnBackend

    flags = megatron_flags(files)
    left = set(flags) - SCRIPT_ONLY
    dtype = torch.bfloat16 if flags.get("bf16") else torch.float16 if flags.get("fp16") else torch.float32
    values = {RENAMED.get(name, name): value for name, value in flags.items()}
    values |= {"params_dtype": dtype, "pipeline_dtype": dtype}
    values["attention_backend"] = AttnBackend[flags["attention_backend"]]
    left -= {"swiglu"}
    if flags.get("swiglu"):
        values |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    if flags.get("disable_bias_linear"):
        values["add_bias_linear"] = False
    left -= {"disable_bias_linear"}
    values["grad_reduce_in_fp32"] = flags.get("accumulate_allreduce_grads_in_fp32", False)
    left -= {"accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16"}
    built = {}
    for cls in (TransformerConfig, DistributedDataParallelConfig, OptimizerConfig):
        names = {field.name for field in dataclasses.fields(cls) if field.init}
        built[cls.__name__] = cls(**{name: value for name, value in values.items() if name in names})
        left -= {name for name in left if RENAMED.get(name, name) in names}
    return SimpleNamespace(
        model=built["TransformerConfig"],
        data_parallel=built["DistributedDataParallelConfig"],
        optimizer=built["OptimizerConfig"],
        flags=flags,
        not_taken=left,
    )
