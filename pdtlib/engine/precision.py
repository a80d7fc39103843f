"""Precisions by name, and the dynamic loss scale of fp16."""

import torch

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def param_dtype_of(precision: str | None) -> torch.dtype | None:
    """The dtype in which parameters are held; None keeps the module's. Raises ValueError for other names."""
    if precision is None:
        return None
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: valid are {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]


def grad_dtype_of(grad_precision: str) -> torch.dtype | None:
    """The dtype in which gradients are accumulated and sent; None is that of the parameters."""
    if grad_precision not in ("same", "fp32"):
        raise ValueError(f"grad_precision={grad_precision!r}: valid are same, fp32")
    return torch.float32 if grad_precision == "fp32" else None


class LossScale:
    """Dynamic loss scale for fp16 (Micikevicius et al. 2018): halve on overflow, double after a quiet time.

    The gradients of a loss that is multiplied by ``value`` are less often lost below fp16's smallest number.
    """

    def __init__(self, *, value: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.value = value
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, *, overflow: bool) -> None:
        """Adapt to the step that was just tried."""
        if overflow:
            self.value = max(self.value / 2, 1.0)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps % self.growth_interval == 0:
            self.value *= 2
