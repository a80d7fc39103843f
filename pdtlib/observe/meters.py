"""The peak rate that this machine could reach, which MFU is a share of."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pdtlib.plan.presets import GPUS

DEVICE_NAMES = (
    # A part of the name that the driver reports -> the name in plan.presets.GPUS; the first match counts.
    ("V100-SXM2-32GB", "V100-SXM2-32"),
    ("A100-SXM4-40GB", "A100-SXM4-40"),
    ("A100-SXM4-80GB", "A100-SXM4-80"),
    ("A800-SXM4-80GB", "A800-SXM"),
    ("H100 80GB HBM3", "H100-SXM5"),
    ("H800", "H800-SXM"),
    ("H200", "H200"),
    ("H20", "H20"),
    ("GB200", "GB200"),
    ("GB300", "GB300"),
    ("B200", "B200"),
    ("MI300X", "MI300X"),
)


@dataclass(frozen=True)
class Peak:
    """FLOP/s that one rank could reach at best, and where that number comes from."""

    flops_per_s: float
    source: str


def peak(device: torch.device, *, dtype: torch.dtype) -> Peak:
    """The peak of one rank's device: from the data sheet where there is one for it, else measured here.

    Data sheets are used for 16-bit products on a GPU that :data:`pdtlib.plan.presets.GPUS` lists. Anything
    else, a CPU above all, has no useful printed peak: the best rate of a large matrix product is measured,
    by every rank at the same time, so that ranks that share cores share the peak too.
    """
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for part, preset in DEVICE_NAMES:
            if part in name:
                return Peak(GPUS[preset].peak_flops, f"{preset}: {GPUS[preset].source}")
    size = 4096 if device.type == "cuda" else 512
    rate = matmul_flops_per_s(device, dtype=dtype, size=size)
    kind = str(dtype).removeprefix("torch.")
    return Peak(
        rate, f"measured at start: best of several {size} x {size} {kind} matrix products on every rank"
    )


def matmul_flops_per_s(
    device: torch.device, *, dtype: torch.dtype, size: int, seconds: float = 0.15
) -> float:
    """The best rate of a square matrix product (2 n^3 FLOPs) within ``seconds`` of trying."""
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    best_s = float("inf")
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or best_s == float("inf"):
        start = time.perf_counter()
        left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - start)
    return 2.0 * size**3 / best_s
