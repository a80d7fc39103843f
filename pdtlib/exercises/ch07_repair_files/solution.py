import copy


def repair(config, dp):
    """A file that DeepSpeed starts with, and that means what its author wanted."""
    config = copy.deepcopy(config)
    config = config.get("deepspeed", config)
    zero = config.get("zero_optimization", {})
    for key, value in zero.items():
        if isinstance(value, str):
            zero[key] = int(float(value))
    if "train_batch_size" in config:
        micro = config["train_micro_batch_size_per_gpu"]
        config["train_batch_size"] = micro * config["gradient_accumulation_steps"] * dp
    if config.get("pipeline", {}).get("stages", 1) > 1 and zero.get("stage", 0) > 1:
        zero["stage"] = 1
        zero.pop("sub_group_size", None)
    if config.get("bf16", {}).get("enabled") and config.get("fp16", {}).get("enabled"):
        del config["fp16"]
    tensor = config.get("tensor_parallel", {})
    if "size" in tensor:
        tensor["autotp_size"] = tensor.pop("size")
    if "cpu_offload" in zero:
        wanted = zero.pop("cpu_offload")
        if wanted:
            zero["offload_optimizer"] = {"device": "cpu"}
    return config
