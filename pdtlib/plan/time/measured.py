"""A machine as ``pdt calibrate`` measured it, in place of the fitted constants of one that others published.

Its software is our own engine, eager and without overlap: on a CPU the messages' threads take the cores that
compute.
"""

from pdtlib.plan.presets import LINKS
from pdtlib.plan.spec import ComputeRate, Job, Measured
from pdtlib.plan.time.machine import Chip, Fabric, Software, System

PRECISIONS = {"fp8": "bf16"}  # what is measured in its place
INTER_SHARE, INTER_START_S, INTER_STEP_S = 0.9, 120e-6, 17e-6
"""Between nodes, which one machine cannot measure: share of the link's printed rate, and latencies."""


def compute_rate(measured: Measured, *, precision: str, ranks: int) -> ComputeRate:
    """The rates of that precision with as many ranks at work, or the nearest number above, or below."""
    wanted = PRECISIONS.get(precision, precision)
    found = [rate for rate in measured.compute if rate.precision == wanted] or list(measured.compute)
    return min(found, key=lambda rate: (rate.ranks < ranks, abs(rate.ranks - ranks)))


def measured_system(job: Job, measured: Measured) -> System:
    """The machine at work on the job: all of its ranks that one node holds compute at once."""
    hardware = job.hardware
    ranks = min(job.parallel.world_size, hardware.gpus_per_node)
    rate = compute_rate(measured, precision=job.train.precision, ranks=ranks)
    best = max(flops for _, flops in rate.matmul)
    chip = Chip(
        name=measured.host,
        matmul_flops=best,
        fp8_flops=best,
        multiprocessors=1,
        ramp=0.0,
        memory_bytes_per_s=rate.memory_bytes_per_s,
        fp32_share=1.0,
        rates=rate.matmul,
        optimizer_bytes_per_s=rate.optimizer_bytes_per_s,
    )
    inside = max((link.bytes_per_s for link in measured.collectives), default=rate.memory_bytes_per_s)
    start = max((link.start_s for link in measured.collectives), default=0.0)
    fabric = Fabric(
        name=measured.host,
        intra_bytes_per_s=inside,
        intra_start_s=start,
        intra_step_s=0.0,
        switch_gain=1.0,
        pair_bytes_per_s=inside,
        inter_bytes_per_s=INTER_SHARE * LINKS[hardware.inter] if hardware.inter else inside,
        inter_start_s=INTER_START_S,
        inter_step_s=INTER_STEP_S,
        measured=measured.collectives,
    )
    software = Software(
        name="measured",
        passes=rate.passes,
        kernel_s=rate.kernel_s,
        overlap_tp=0.0,
        overlap_tp_back=0.0,
        overlap_dp=0.0,
        overlap_pp=0.0,
        overlap_ep=0.0,
        step_s=0.0,
        matmul_share=1.0,
        attention_share=rate.attention_flops_per_s / best,
        inter_share=1.0,
        fp8_share=1.0,
        skips_masked_half=True,
        stops_early=True,
    )
    return System(chip=chip, fabric=fabric, software=software, gpus_per_node=hardware.gpus_per_node)
