"""What pdt exports, read by DeepSpeed 0.19, torchtitan 0.3 and megatron-core themselves."""

import itertools
import math

import pytest
import reading
import torch

from pdtlib.plan.export import export
from pdtlib.plan.job import JobError, from_dict

PARALLEL = [
    {"dp": 4},
    {"dp": 2, "tp": 2},
    {"dp": 2, "pp": 2},
    {"dp": 2, "pp": 2, "vpp": 2},
    {"dp": 2, "tp": 2, "pp": 2},
    {"dp": 2, "cp": 2},
    {"dp": 1, "cp": 2, "context": "ulysses"},
    {"dp": 1, "pp": 4, "schedule": "gpipe"},
    {"dp": 1, "tp": 8},
]
TRAIN = [
    {"zero_stage": stage, "precision": precision, "grad_precision": grads}
    for stage, precision, grads in itertools.product(range(4), ("bf16", "fp16", "fp32"), ("same", "fp32"))
]
CLIPPING, RECOMPUTE = (1.0, 0.0), ("none", "selective", "full")


def all_jobs():
    """Every layout with every stage and precision; clipping, recomputation and the rest take turns."""
    for number, (parallel, train) in enumerate(itertools.product(PARALLEL, TRAIN)):
        accumulation = (4, 8, 1)[number % 3]
        yield from_dict(
            {
                "model": {"preset": "llama3-8b"},
                "train": {
                    **train,
                    "micro_batch": 2,
                    "global_batch": 2 * parallel["dp"] * accumulation,
                    "clip_grad_norm": CLIPPING[number % 2],
                    "recompute": RECOMPUTE[number % 3],
                    "sequence_parallel": number % 4 == 0,
                    "reshard_after_forward": number % 5 > 0,
                    "flash_attention": train["precision"] != "fp32",
                    "steps": 50,
                    "warmup_steps": 5,
                },
                "parallel": parallel,
            }
        )


def exported(to):
    for job in all_jobs():
        try:
            yield job, export(job, to=to).files
        except JobError:
            continue


def enough(jobs):
    """The jobs as a list that has every stage and more than one layout left."""
    jobs = list(jobs)
    assert len(jobs) > 20
    return jobs


def test_deepspeed_reads_the_same_batch_stage_and_precision():
    for job, files in enough(exported("deepspeed")):
        config, train = reading.deepspeed(files, job), job.train
        assert config.train_batch_size == train.global_batch
        assert config.train_micro_batch_size_per_gpu == train.micro_batch
        assert config.gradient_accumulation_steps == job.gradient_accumulation
        assert config.zero_optimization_stage == train.zero_stage
        assert config.bfloat16_config.enabled == (train.precision == "bf16")
        assert config.float16_config.enabled == (train.precision == "fp16")
        assert config.gradient_clipping == train.clip_grad_norm
        assert config.optimizer_name == "adamw"
        assert config.optimizer_params["lr"] == train.learning_rate
        assert config.optimizer_params["weight_decay"] == train.weight_decay
        assert config.scheduler_name == "WarmupLR"
        assert config.scheduler_params["warmup_num_steps"] == train.warmup_steps
        pipeline = job.parallel.pp > 1
        assert config.pipeline["stages"] == (job.parallel.pp if pipeline else "auto")
        split = config.tensor_parallel_config.autotp_size
        assert split == (job.parallel.tp if job.parallel.tp > 1 and not pipeline else 0)
        forever = config.zero_config.max_live_parameters > 10**12
        assert forever == (train.zero_stage == 3 and not train.reshard_after_forward)


def test_deepspeeds_engine_has_the_gradients_precision():
    """The engine refuses some mixes that the configuration takes; no export may be one of them."""
    from deepspeed.runtime.config import DtypeEnum

    for job, files in enough(exported("deepspeed")):
        config = reading.deepspeed(files, job)
        reading.deepspeed_optimizer(config, pipeline=job.parallel.pp > 1)
        kept = config.grad_accum_dtype
        if kept is None:
            kept = job.train.precision
        fp32 = job.train.grad_precision == "fp32" or job.train.precision == "fp32"
        assert DtypeEnum(kept).value == (torch.float32 if fp32 else DtypeEnum(job.train.precision).value)


def test_deepspeeds_engine_refuses_what_the_exporter_does():
    from types import SimpleNamespace

    off, on = SimpleNamespace(enabled=False), SimpleNamespace(enabled=True)
    config = SimpleNamespace(
        zero_optimization_stage=0, grad_accum_dtype="fp32", bfloat16_config=on, float16_config=off
    )
    with pytest.raises(NotImplementedError):
        reading.deepspeed_optimizer(config, pipeline=False)


def test_torchtitan_reads_the_same_batch_degrees_and_precision():
    from torchtitan.distributed.parallel_dims import ParallelDims

    for job, files in enough(exported("torchtitan")):
        config, train, parallel = reading.torchtitan(files), job.train, job.parallel
        dims = ParallelDims.from_config(config.parallelism, parallel.world_size)
        assert (dims.tp, dims.pp, dims.cp, dims.ep) == (parallel.tp, parallel.pp, parallel.cp, parallel.ep)
        assert dims.dp_replicate * dims.dp_shard == parallel.dp
        assert (dims.dp_shard > 1) == (train.zero_stage in (2, 3) and parallel.dp > 1)
        training = config.training
        steps, rest = divmod(training.global_batch_size, training.local_batch_size * parallel.dp)
        assert rest == 0
        micro = (
            config.parallelism.pipeline_parallel_microbatch_size
            if parallel.pp > 1
            else (training.local_batch_size)
        )
        assert micro == train.micro_batch
        assert steps * training.local_batch_size // micro == job.gradient_accumulation
        assert training.global_batch_size == train.global_batch
        assert training.seq_len == job.model.seq
        assert training.steps == train.steps
        assert training.mixed_precision_param == ("float32" if train.precision == "fp32" else "bfloat16")
        assert training.max_norm == (train.clip_grad_norm or math.inf)
        assert config.parallelism.enable_sequence_parallel == train.sequence_parallel
        always = train.zero_stage == 3 and train.reshard_after_forward
        assert config.parallelism.fsdp_reshard_after_forward == ("always" if always else "never")


def test_torchtitans_schedules_are_torchs_and_cut_the_layers_as_planned():
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    seen = set()
    for job, files in exported("torchtitan"):
        if job.parallel.pp == 1:
            continue
        parallelism = reading.torchtitan(files).parallelism
        schedule = get_schedule_class(parallelism.pipeline_parallel_schedule)
        assert issubclass(schedule, PipelineScheduleSingle) == (job.parallel.vpp == 1)
        chunks = math.ceil(job.model.layers / parallelism.pipeline_parallel_layers_per_stage)
        assert chunks == job.parallel.pp * job.parallel.vpp
        seen.add(schedule.__name__)
    assert seen == {"ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"}


def test_no_clipping_keeps_torchtitans_gradients():
    """torchtitan clips always; a limit of infinity leaves gradients as they are, and 0 would erase them."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.nn.utils.clip_grad_norm_([parameter], math.inf)
    assert parameter.grad.tolist() == [1, 1, 1]
    torch.nn.utils.clip_grad_norm_([parameter], 0.0)
    assert parameter.grad.tolist() == [0, 0, 0]


def test_megatron_core_reads_the_same_model_degrees_and_precision():
    for job, files in enough(exported("megatron")):
        read, train, parallel = reading.megatron(files), job.train, job.parallel
        assert read.not_taken == set()
        model = read.model
        assert model.tensor_model_parallel_size == parallel.tp
        assert model.pipeline_model_parallel_size == parallel.pp
        assert (model.virtual_pipeline_model_parallel_size or 1) == parallel.vpp
        assert model.context_parallel_size == parallel.cp
        assert model.expert_model_parallel_size == parallel.ep
        assert model.sequence_parallel == (train.sequence_parallel and parallel.tp > 1)
        assert (model.num_layers, model.hidden_size) == (job.model.layers, job.model.hidden)
        assert (model.num_attention_heads, model.num_query_groups) == (job.model.heads, job.model.kv_heads)
        assert (model.ffn_hidden_size, model.kv_channels) == (job.model.ffn, job.model.head_dim)
        assert model.gated_linear_unit == (job.model.activation == "swiglu")
        assert model.normalization == "RMSNorm"
        assert model.recompute_granularity == (None if train.recompute == "none" else train.recompute)
        assert (model.bf16, model.fp16) == (train.precision == "bf16", train.precision == "fp16")
        assert model.attention_backend.name == ("flash" if train.flash_attention else "unfused")


def test_megatron_core_shards_and_clips_the_same():
    for job, files in enough(exported("megatron")):
        read, train = reading.megatron(files), job.train
        copies = read.data_parallel
        assert copies.use_distributed_optimizer == (train.zero_stage > 0)
        assert copies.use_megatron_fsdp == (train.zero_stage > 1)
        if train.zero_stage > 1:
            assert reading.ROUNDS[copies.data_parallel_sharding_strategy] == train.zero_stage
            assert read.flags["ckpt_format"] == "fsdp_dtensor"
        if train.precision != "fp32":
            assert copies.grad_reduce_in_fp32 == (train.grad_precision == "fp32")
        if train.precision == "bf16":  # its script turns fp32 on for bf16 unless told otherwise
            assert ("grad_reduce_in_bf16" in read.flags) == (train.grad_precision == "same")
        assert read.optimizer.clip_grad == train.clip_grad_norm
        assert read.optimizer.lr == train.learning_rate
        assert read.optimizer.weight_decay == train.weight_decay


def test_megatron_core_counts_the_same_micro_batches():
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    for job, files in enough(exported("megatron")):
        flags = reading.megatron_flags(files)
        count = ConstantNumMicroBatchesCalculator(
            flags["global_batch_size"], flags["micro_batch_size"], job.parallel.dp, False, 0
        )
        assert count.get() == job.gradient_accumulation
        if job.parallel.vpp > 1:
            assert count.get() % job.parallel.pp == 0


def test_megatron_core_takes_other_models():
    for preset, parallel in (("gpt2", {"dp": 2}), ("mixtral-8x7b", {"dp": 8, "ep": 8})):
        job = from_dict({"model": {"preset": preset}, "parallel": parallel})
        read = reading.megatron(export(job, to="megatron").files)
        assert read.not_taken == set()
        assert (read.model.num_moe_experts or 0) == (job.model.moe.experts if job.model.moe else 0)
        assert read.model.add_bias_linear == (job.model.biases == "all")
        assert read.model.add_qkv_bias == (job.model.biases == "qkv")
        assert read.model.hidden_dropout == job.model.dropout


def test_megatron_core_takes_blocks_epsilon_and_balancing():
    """Fields that random jobs leave at their usual values."""
    moe = {"experts": 4, "top_k": 2, "ffn": 64, "aux_loss": 0.01, "capacity_factor": 1.5}
    job = from_dict(
        {
            "model": {"preset": "mixtral-8x7b", "moe": moe, "norm_eps": 1e-6},
            "train": {"recompute": "full", "recompute_layers": 3},
        }
    )
    read = reading.megatron(export(job, to="megatron").files)
    assert read.not_taken == set()
    assert (read.model.recompute_method, read.model.recompute_num_layers) == ("block", 3)
    assert read.model.layernorm_epsilon == 1e-6
    assert (read.model.moe_aux_loss_coeff, read.model.moe_expert_capacity_factor) == (0.01, 1.5)
    assert read.model.moe_router_load_balancing_type == "aux_loss"
    assert read.flags["rotary_base"] == 1_000_000
