"""The keys that DeepSpeed 0.19 reads, as its configuration classes declare and its functions read them.

A strict section is a class that forbids other keys and checks every value; a loose one passes over what it
does not know in silence, as the top level does, and checks few values. tests/targets compares all of this
with the DeepSpeed that is installed there.
"""

from pdtlib.plan.lint.kinds import (
    ANY,
    BATCH_SIZE,
    BOOL,
    BOOL_OR_NULL,
    FRACTION,
    INT,
    LIST,
    LIST_OR_NULL,
    NOTHING,
    POSITIVE,
    SECTION,
    SECTION_OR_NULL,
    SIZE,
    TABLE,
    TABLE_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TEXTS,
    Kind,
    choice,
)

Keys = dict[str, Kind]


def _keys(kind: Kind, names: str) -> Keys:
    return dict.fromkeys(names.split(), kind)


DTYPE = choice("fp16", "bf16", "fp32", optional=True, auto=False)

TOP: Keys = {
    **_keys(BATCH_SIZE, "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps"),
    **_keys(SECTION, "optimizer scheduler fp16 torch_autocast zero_optimization activation_checkpointing"),
    **_keys(SECTION, "pipeline tensor_parallel data_types checkpoint comms_logger"),
    **_keys(SECTION, "flops_profiler autotuning data_efficiency hybrid_engine compile weight_quantization"),
    **_keys(SECTION_OR_NULL, "bf16 aio"),
    "expert_parallel": Kind(name="table or nothing", auto=False),
    "timers": Kind(name="table or text", auto=False),
    **_keys(TABLE, "tensorboard wandb comet csv_monitor"),
    **_keys(DTYPE, "communication_data_type seq_parallel_communication_data_type"),
    "gradient_allreduce_op": choice("mean", "sum", auto=False),
    "wall_clock_breakdown": Kind(name="whole number", auto=False),
    "vocabulary_size": Kind(name="number or nothing", auto=False),
    **_keys(ANY, "managed_gradient_accumulation prescale_gradients gradient_predivide_factor"),
    **_keys(ANY, "gradient_clipping zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"),
    **_keys(ANY, "steps_per_print memory_breakdown dump_state disable_allgather disable_python_gc"),
    **_keys(ANY, "dataloader_drop_last log_level use_data_before_expert_parallelism"),
    **_keys(ANY, "sequence_parallel_size datastates_ckpt"),
}

RENAMED = {"bfloat16": "bf16"}

REMOVED = (
    "amp",
    "compression_training",
    "quantize_training",
    "sparse_gradients",
    "eigenvalue",
    "sparse_attention",
    "elasticity",
    "graph_harvesting",
    "curriculum_learning",
    "progressive_layer_drop",
    "nebula",
    "zero_optimization.mics_shard_size",
    "zero_optimization.mics_hierarchical_params_gather",
    "zero_optimization.zeropp_loco_param",
)

# Keys of stage 3, which may be written with or without "stage3_" in front.
STAGE_3: Keys = {
    **_keys(SIZE, "prefetch_bucket_size param_persistence_threshold model_persistence_threshold"),
    **_keys(SIZE, "max_live_parameters max_reuse_distance"),
    **_keys(BOOL, "gather_16bit_weights_on_model_save use_all_reduce_for_fetch_params allgather_sequential"),
    "module_granularity_threshold": INT,
}

ZERO: Keys = {
    "stage": INT,
    "reduce_bucket_size": POSITIVE,
    **_keys(SIZE, "allgather_bucket_size sub_group_size zero_hpz_partition_size"),
    **_keys(BOOL, "contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce"),
    **_keys(BOOL, "allgather_partitions compute_grad_norm load_from_fp32_weights elastic_checkpoint"),
    **_keys(BOOL, "ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment"),
    **_keys(BOOL, "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients"),
    **_keys(BOOL, "memory_efficient_linear pipeline_loading_checkpoint override_module_apply"),
    **_keys(BOOL, "log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory"),
    "overlap_comm": BOOL_OR_NULL,
    **_keys(TABLE_OR_NULL, "offload_param offload_optimizer zenflow"),
    "leaf_module": TABLE_OR_NULL,
    **STAGE_3,
    **{f"stage3_{name}": kind for name, kind in STAGE_3.items()},
}

ZERO_DEPRECATED = {
    "cpu_offload": "offload_optimizer: {device: cpu}",
    "cpu_offload_param": "offload_param: {device: cpu}",
    "cpu_offload_use_pin_memory": "pin_memory in offload_param or offload_optimizer",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}

# Read by these stages alone; elsewhere they change nothing.
ZERO_STAGES: dict[str, tuple[int, ...]] = {
    "allgather_bucket_size": (1, 2),
    "allgather_partitions": (1, 2),
    "round_robin_gradients": (1, 2),
    "offload_param": (3,),
    "offload_optimizer": (1, 2, 3),
    **dict.fromkeys(STAGE_3, (3,)),
    **{f"stage3_{name}": (3,) for name in STAGE_3},
}

DEVICE = choice("none", "cpu", "nvme")

TP = {**_keys(INT, "tp_size tp_grain_size"), **_keys(ANY, "mpu tp_group")}

STRICT: dict[str, Keys] = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_param": {
        "device": DEVICE,
        "nvme_path": TEXT_OR_NULL,
        **_keys(SIZE, "buffer_count buffer_size max_in_cpu"),
        "pin_memory": BOOL,
    },
    "zero_optimization.offload_optimizer": {
        "device": DEVICE,
        "nvme_path": TEXT_OR_NULL,
        "buffer_count": SIZE,
        **_keys(BOOL, "pin_memory pipeline_read pipeline_write fast_init super_offload"),
        **_keys(FRACTION, "ratio cpuadam_cores_perc"),
    },
    "zero_optimization.leaf_module": _keys(TEXTS, "classes names name_suffixes"),
    "zero_optimization.zenflow": {
        "topk_ratio": Kind(name="float", above=0, below=1),
        **_keys(FRACTION, "auto_ratio pt_reserved_cores_perc"),
        "select_strategy": choice("auto", "step", "epoch"),
        "select_interval": Kind(name="int", lax=False),
        "update_interval": Kind(name="int", low=1, lax=False),
        **_keys(BOOL, "overlap_step offload"),
        "full_warm_up_rounds": INT,
        "steps_per_epoch": Kind(name="int", optional=True),
    },
    "fp16": {
        **_keys(BOOL, "enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads"),
        "loss_scale": Kind(name="float", low=0, flags=False),
        **_keys(INT, "initial_scale_power hysteresis"),
        **_keys(Kind(name="int", flags=False), "loss_scale_window min_loss_scale"),
    },
    "bf16": _keys(
        BOOL,
        "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
        "bf16_optimizer_states",
    ),
    "tensor_parallel": {
        "dtype": NOTHING,
        "autotp_size": INT,
        **_keys(BOOL, "tp_overlap_comm keep_module_on_host replace_with_kernel_inject kernel_inject"),
        "vocab_parallel_lm_head": BOOL_OR_NULL,
        "vocab_parallel_ce_backend": choice("torch", "liger"),
        **_keys(TABLE, "tensor_parallel tp"),
        "injection_policy_tuple": LIST_OR_NULL,
        "partition_config": TABLE_OR_NULL,
        "preset_model": TEXT_OR_NULL,
    },
    "tensor_parallel.tensor_parallel": TP,
    "tensor_parallel.tp": TP,
    "hybrid_engine": {
        "max_out_tokens": POSITIVE,
        **_keys(INT, "inference_tp_size tp_gather_partition_size"),
        **_keys(BOOL, "enabled release_inference_cache pin_parameters enable_cuda_graph"),
    },
    "compile": {
        **_keys(BOOL, "deepcompile autoep_non_moe free_activation offload_activation"),
        **_keys(BOOL, "offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory"),
        **_keys(BOOL, "debug_log offload_parameters sync_before_reduce sync_after_reduce"),
        **_keys(BOOL, "sync_before_allgather sync_after_allgather keep_int_input_tensors"),
        "keep_all_input_tensors": BOOL,
        "free_activation_threshold": INT,
        "passes": LIST_OR_NULL,
    },
    "comms_logger": {**_keys(BOOL, "enabled prof_all verbose debug"), "prof_ops": LIST},
    "tensorboard": {"enabled": BOOL, **_keys(TEXT, "output_path job_name")},
    "csv_monitor": {"enabled": BOOL, **_keys(TEXT, "output_path job_name")},
    "wandb": {"enabled": BOOL, **_keys(TEXT_OR_NULL, "group team"), "project": TEXT},
    "comet": {
        "enabled": BOOL,
        "samples_log_interval": INT,
        **_keys(TEXT_OR_NULL, "project workspace api_key experiment_name experiment_key mode"),
        "online": BOOL_OR_NULL,
    },
    "timers.throughput": _keys(BOOL, "enabled synchronized"),
    "weight_quantization": {
        **_keys(BOOL, "enabled"),
        **_keys(INT, "num_bits q_groups"),
        "q_type": choice("asymmetric", "symmetric"),
        **_keys(TABLE, "quantized_initialization post_init_quant"),
    },
}

LOOSE: dict[str, Keys] = {
    "pipeline": _keys(
        ANY,
        "stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned",
    ),
    "activation_checkpointing": _keys(
        ANY,
        "partition_activations contiguous_memory_optimization cpu_checkpointing number_checkpoints "
        "synchronize_checkpoint_boundary profile",
    ),
    "optimizer": {"type": TEXT_OR_NULL, "params": ANY, "legacy_fusion": ANY},
    "scheduler": {"type": ANY, "params": ANY},
    "data_types": {
        **_keys(ANY, "grad_accum_dtype param_dtype buffer_dtype"),
        "keep_in_fp32_modules": Kind(name="list of texts"),
    },
    "torch_autocast": {
        "enabled": ANY,
        "dtype": choice(
            *("fp16", "float16", "torch.float16", "half", "bf16", "bfloat16", "torch.bfloat16"),
            *("fp32", "float32", "torch.float32", "float", "int8", "torch.int8"),
            auto=False,
        ),
        "lower_precision_safe_modules": Kind(name="texts", auto=False),
    },
    "checkpoint": {
        **_keys(ANY, "checkpoint_serialization load_universal use_node_local_storage"),
        "tag_validation": choice("warn", "ignore", "fail", "WARN", "IGNORE", "FAIL", auto=False),
        **_keys(SECTION, "parallel_write"),
        "writer": SECTION_OR_NULL,
    },
    "flops_profiler": {
        "enabled": Kind(name="whole number", auto=False),
        **_keys(ANY, "recompute_fwd_factor profile_step module_depth top_modules detailed output_file"),
    },
    "autotuning": {
        **_keys(Kind(name="not empty"), "exps_dir results_dir"),
        "model_info": SECTION_OR_NULL,
        **_keys(
            ANY,
            "arg_mappings enabled end_profile_step fast max_train_batch_size "
            "max_train_micro_batch_size_per_gpu metric metric_path min_train_batch_size "
            "min_train_micro_batch_size_per_gpu model_info_path mp_size "
            "num_tuning_micro_batch_sizes overwrite start_profile_step tuner_early_stopping "
            "tuner_num_trials tuner_type",
        ),
    },
    "data_efficiency": {**_keys(ANY, "enabled seed"), **_keys(SECTION, "data_sampling data_routing")},
    "aio": _keys(ANY, "block_size intra_op_parallelism overlap_events queue_depth single_submit use_gds"),
    "timers": {"throughput": SECTION},
    "expert_parallel": {
        **_keys(ANY, "enabled autoep_size expert_tensor_parallel_size validate_folding_routing top_k"),
        **_keys(ANY, "async_split_plan preset_model moe_layer_pattern expert_pattern router_pattern"),
        **_keys(ANY, "use_grouped_mm disable_triton_grouped_mm route_norm route_scale score_apply"),
        **_keys(ANY, "combine_impl row_weighting_impl gate_up_impl comm_backend comm_num_sm comm_qp_margin"),
        **_keys(ANY, "comm_max_tokens_per_rank num_expert_groups num_limited_groups score_func"),
        **_keys(ANY, "routed_scaling_factor expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr"),
        **_keys(ANY, "has_shared_experts shared_experts_pattern shared_experts_gate_pattern"),
        "expert_activation": ANY,
        "load_balance_coeff": Kind(name="no JSON value", optional=True, auto=False),
    },
}
