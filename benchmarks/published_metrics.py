"""What plan predicts for a published run: one number for every metric that the schema names."""

import dataclasses
from typing import Any

from published_jobs import (
    Case,
    budget_of,
    completed,
    half_recomputed,
    job_of,
    light_ends,
    stack_of,
    system_for,
)
from published_schedules import bubbles, gain_of_measure, speedups
from published_tables import gpu_of

from pdtlib.plan import flops, presets, states
from pdtlib.plan.activations import Setting, layer_bytes
from pdtlib.plan.job import Job, replace
from pdtlib.plan.memory import chunks_in_flight
from pdtlib.plan.time.collectives import collective_s
from pdtlib.plan.time.constants import fabric, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.layer import layer_time
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.pipeline import MOST_ACTIONS
from pdtlib.plan.time.step import step_time
from pdtlib.plan.units import GB, GIB


def predictions(case: Case) -> dict[str, float]:
    """Every metric of the case that plan can give, by its name; empty where it can give none."""
    case = completed(case)
    for kind in (_zero, bubbles, speedups, _collective, _failures):
        found = kind(case)
        if found:
            return found
    job = job_of(case)
    if job is None:
        return {}
    if case.get("kind") == "layer_time":
        return _layer(case, job)
    if case.get("kind") in ("memory_formula", "memory_ratio"):
        return _korthikanti(job)
    if "iteration_time_s" in (case.get("input") or {}):
        return _utilisation(job, float(case["input"]["iteration_time_s"]))
    return _run(case, job)


def seconds_of(case: Case, job: Job, system: System, *, most_actions: int = MOST_ACTIONS) -> float:
    """Seconds of a step; where about half of the work is recomputed, the mean of none and all of it."""
    ends = light_ends(case)
    seconds = step_time(job, system=system, fewer_at_ends=ends, most_actions=most_actions).step_s
    if "schedule=ZB-2p" in (case.get("assume") or []):
        seconds -= gain_of_measure(job, system, fewer_at_ends=ends)
    if half_recomputed(case):
        again = step_time(replace(job, {"train.recompute": "full"}), system=system).step_s
        seconds = (seconds + again) / 2
    return seconds


def _run(case: Case, job: Job) -> dict[str, float]:
    seconds = seconds_of(case, job, system_for(case, job))
    found = rates(case, job, seconds)
    held = footprint(job, software=stack_of(case), half=half_recomputed(case), fewer_at_ends=light_ends(case))
    found["memory_GB"], found["memory_GiB"] = held / GB, held / GIB
    if "config" in (case.get("input") or {}):
        found["gain_scatter_gather"] = _whole_sends_s(case, job) / seconds
    tokens, share = budget_of(case)
    if tokens:
        steps = tokens / (job.train.global_batch * job.model.seq)
        found["gpu_hours"] = steps * seconds * job.parallel.world_size / 3600 / share
    return found


def _whole_sends_s(case: Case, job: Job) -> float:
    """Seconds of a step whose tensor-parallel ranks each send the whole of what a stage passes on, not their
    part of it alone (Narayanan 2021, section 4.1): to its one replica, a network that is so much slower."""
    share = system_for(case, job).software.inter_share / job.parallel.tp
    return seconds_of(case, job, system_of(job, software=stack_of(case), inter_share=share))


def rates(case: Case, job: Job, seconds: float) -> dict[str, float]:
    """What a step of ``seconds`` amounts to, in the units that publications use.

    TFLOP/s of a fully recomputing run are hardware FLOPs, as Megatron's papers print them; torchtitan's and
    all others are model FLOPs. Megatron-Bridge's count the masked half of attention only once.
    """
    if any(light_ends(case)):
        job = replace_layers(job, case["model"]["layers"])
    tokens, gpus = job.train.global_batch * job.model.seq, job.parallel.world_size
    peak = presets.GPUS[job.hardware.gpu].peak_flops
    model = tokens * flops.model_flops_per_token(job.model)
    executed = model
    if job.train.recompute == "full" and "torchtitan" not in (
        (case.get("train") or {}).get("framework") or ""
    ):
        executed = tokens * flops.hardware_flops_per_token(job.model, recompute="full")
    causal = flops.Conventions(attention="causal")
    masked = tokens * flops.model_flops_per_token(job.model, conventions=causal)
    hardware = tokens * flops.korthikanti_hardware_flops_per_token(job.model)
    if job.train.recompute != "selective":
        hardware = tokens * flops.hardware_flops_per_token(job.model, recompute=job.train.recompute)
    rate = seconds * gpus
    return {
        "iteration_time_s": seconds,
        "tokens_per_s_per_gpu": tokens / rate,
        "samples_per_gpu_per_s": job.train.global_batch / rate,
        "tflops_per_gpu": executed / rate / 1e12,
        "tflops_per_gpu_with_cp": executed / rate / 1e12,
        "model_tflops_per_gpu": masked / rate / 1e12,
        "mfu": model / rate / peak,
        "hfu": hardware / rate / peak,
    }


def replace_layers(job: Job, layers: int) -> Job:
    """The job's model with another number of layers, for counting its FLOPs."""
    return Job(
        model=dataclasses.replace(job.model, layers=layers),
        train=job.train,
        parallel=job.parallel,
        hardware=job.hardware,
    )


def _utilisation(job: Job, seconds: float) -> dict[str, float]:
    """MFU and HFU that follow from a printed time, with Korthikanti's equations 7 and 8."""
    tokens = job.train.global_batch * job.model.seq
    gpus, peak = job.parallel.world_size, presets.GPUS[job.hardware.gpu].peak_flops
    model = tokens * flops.model_flops_per_token(job.model)
    executed = tokens * flops.korthikanti_hardware_flops_per_token(job.model)
    return {
        "mfu": flops.mfu(model, seconds=seconds, num_gpus=gpus, peak_flops=peak),
        "hfu": flops.mfu(executed, seconds=seconds, num_gpus=gpus, peak_flops=peak),
    }


def _layer(case: Case, job: Job) -> dict[str, float]:
    """One layer of Korthikanti 2022, Table 4; recomputation belongs to the backward pass there."""
    time = layer_time(job, system=system_of(job, software=stack_of(case)))
    backward = time.backward.total + time.again.total
    return {
        "forward_ms": time.forward.total * 1e3,
        "backward_ms": backward * 1e3,
        "combined_ms": (time.forward.total + backward) * 1e3,
    }


def _korthikanti(job: Job) -> dict[str, float]:
    """Figures 1 and 7 of Korthikanti 2022: GiB of the first stage, shares of the tensor-parallel layer."""
    model, tp, pp = job.model, job.parallel.tp, job.parallel.pp
    base: dict[str, Any] = {"seq": model.seq, "micro_batch": job.train.micro_batch, "tp": tp}
    in_flight = chunks_in_flight(job, 0) * model.layers / (pp * job.parallel.vpp)

    def layer(**setting: Any) -> float:
        return layer_bytes(model, setting=Setting(**base, **setting))

    plain = layer()
    sharded = layer(sequence_parallel=True, recompute="selective")
    return {
        "param_optimizer_GiB": 18 * 12 * model.layers * model.hidden**2 / (tp * pp) / GIB,
        "activation_GiB_tp_only": in_flight * plain / GIB,
        "activation_GiB_sel_sp": in_flight * sharded / GIB,
        "pct_seq_parallel": 100 * layer(sequence_parallel=True) / plain,
        "pct_selective": 100 * layer(recompute="selective") / plain,
        "pct_sel_sp": 100 * sharded / plain,
        "pct_full": 100 * layer(recompute="full") / plain,
    }


def _zero(case: Case) -> dict[str, float]:
    """ZeRO's Table 1, for any optimizer of K bytes a parameter."""
    data = case.get("input") or {}
    if "params_b" not in data:
        return {}
    accounting = states.Accounting("table", 2, 2, int(data["K"]), "", "")
    names = ("baseline_GB", "os_GB", "os_g_GB", "os_g_p_GB")
    return {
        name: states.zero_state_bytes(
            data["params_b"] * 1e9, dp=data["dp"], stage=stage, accounting=accounting
        ).total
        / GB
        for stage, name in enumerate(names)
    }


def _collective(case: Case) -> dict[str, float]:
    """Bus bandwidth as nccl-tests define it: bytes that a ring sends, over the time."""
    data = case.get("input") or {}
    if "collective" not in data:
        return {}
    gpu = gpu_of(str(data["gpu"]))
    n, size = data["n_ranks"], data["bytes"]
    links = fabric(gpu, "ib-ndr-400")
    if "NVLS off" in str(data.get("algo")) or str(data.get("algo")) == "RING":
        links = dataclasses.replace(links, switch_gain=1.0)
    if "cube mesh" in str(data["gpu"]):  # two V100s of a DGX-1 share one of their six links
        links = dataclasses.replace(links, pair_bytes_per_s=links.intra_bytes_per_s / 6)
    seconds = collective_s(
        data["collective"], size, n, fabric=links, ranks_per_node=data.get("gpus_per_node") or n
    )
    passes = 2 if data["collective"] == "all_reduce" else 1
    return {"busbw_GBs": passes * (n - 1) / n * size / seconds / GB}


def _failures(case: Case) -> dict[str, float]:
    """MTBF of a cluster from the rate of its kind: Llama 3's 419 failures in 54 days on 16,384 H100s
    (arXiv:2407.21783), or 7.9 h on 1,024 A100s (Kokolis 2024, arXiv:2410.21680)."""
    data = case.get("input") or {}
    if "n_gpus" not in data or (case.get("group") not in ("failures", None) and case.get("kind") != "mttf"):
        return {}
    # GPU-hours between failures of the clusters that published them.
    between = 7.9 * 1024 if data.get("gpu") == "A100" else 54 * 24 / 419 * 16384
    hours = between / data["n_gpus"]
    return {"mtbf_unexpected_h": hours, "mttf_h": hours}
