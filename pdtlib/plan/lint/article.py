"""The article's DeepSpeed file (its section 7.2), as keys and values, and as the YAML that it prints."""

from collections.abc import Iterator, Mapping
from typing import Any

KEYS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8,
        "cpu_offload": False,
    },
    "tensor_parallel": {"size": 8},
    "pipeline_parallel": {"size": 4, "num_stages": 4},
    "pipeline_type": "1f1b_interleaved",
    "num_chunks": 2,
}

REPAIRED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    "zero_optimization": {
        "stage": 1,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
    },
    "pipeline": {"stages": 4, "partition": "uniform"},
}
"""What the file seems to mean, as far as DeepSpeed has it: a pipeline takes ZeRO-1 at most, there is no
interleaving, and tensor parallelism beside a pipeline is the model's own."""


def as_yaml(keys: Mapping[str, Any] = KEYS) -> str:
    """The keys as YAML under ``deepspeed:``, large numbers as the article writes them."""
    return "\n".join(["deepspeed:", *_lines(keys, "  ")]) + "\n"


def _lines(keys: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0e}".replace("e+0", "e")
    return f'"{value}"' if isinstance(value, str) else str(value)
