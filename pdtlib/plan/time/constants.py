"""The fitted constants, all in one place: chips, fabrics, software stacks, and where each value is from.

``benchmarks/calibrate.py`` fits the values of a stack to part of the published runs, named there, and
prints the errors on the rest. A reader's own machine is measured instead.
"""

from dataclasses import replace

from pdtlib.plan.presets import GPUS, LINKS
from pdtlib.plan.spec import Job
from pdtlib.plan.time.machine import USUAL_PROTOCOLS, Chip, Fabric, Habits, Software, System
from pdtlib.plan.time.measured import measured_system

MULTIPROCESSORS = {
    # The vendors' white papers.
    "V100": 80,
    "A100": 108,
    "A800": 108,
    "H100": 132,
    "H800": 132,
    "H20": 78,
    "H200": 132,
    "B200": 148,
    "GB200": 148,
    "GB300": 148,
    "MI300X": 304,
}
MATMUL_SHARE = {
    # Share of the printed peak that the best measured product reaches, where nobody measured this very GPU:
    # its generation's (presets.GPUS).
    "V100": 0.88,  # fitted to the 2020 README's 1.2B on one V100
    "A100": 0.87,
    "A800": 0.87,
    "H100": 0.80,
    "H100-96GB-HBM2e(Meta)": 0.62,  # 500 W instead of 700; fitted to torchtitan's runs
    "H800": 0.80,
    "H20": 0.90,
    "GB300": 0.73,
}
FP8_SHARE = {"H100": 0.71, "H200": 0.73, "B200": 0.76, "GB200": 0.72, "GB300": 0.72, "MI300X": 0.5}

SUSTAINED = {
    # Share of the best measured product's rate that clocks under a training job's load leave.
    "A100": 0.93,
    "A800": 0.93,
    "H100": 0.85,
    "H100-96GB-HBM2e(Meta)": 0.93,  # most of its lower power limit is in its share above
    "H800": 0.85,
    "H200": 0.85,
    "B200": 0.85,
    "GB200": 0.85,
    "GB300": 0.85,
}

# Fitted to the single-node runs of small models: elements of k that filling a tile's pipeline costs, and the
# share of the printed memory rate that element-wise kernels reach.
RAMP = 180.0
MEMORY_SHARE = 0.85

# Fitted to nccl-tests: the share of NVLink's printed rate that large messages reach, and the latencies.
NVLINK_SHARE = {"V100": 0.9, "MI300X": 0.7}  # others: USUAL_NVLINK_SHARE
USUAL_NVLINK_SHARE = 0.80
INTRA_START_S, INTRA_STEP_S = 21.5e-6, 1.15e-6
# How often every copy of a token that goes to an expert is read or written, forwards, besides the products:
# permuted, sorted by expert, quantised, padded, weighted, put back in order. Some ten follow from the
# kernels' names, the rest is what those small kernels leave unused. Fitted to Qwen3 30B-A3B on two nodes of
# H100 (Megatron-Bridge 26.04) together with the stack's overlap_ep.
EXPERT_PASSES = 22
# Stacks that recompute by torch's own checkpoints.
TORCH_CHECKPOINTS = ("foundry", "foundry-h100", "fsdp", "fsdp-compile")
# How the rate of fused attention falls below heads of 128: 64 reach some 0.84 of it (FlashAttention-2,
# arXiv:2307.08691, figure 4).
HEAD_SIZE_POWER = 0.25
# NVLink switches that reduce (Hopper on): gain of an all-reduce over more than four GPUs.
SWITCH_GAIN = {"H100": 1.3, "H200": 1.3, "H800": 1.0, "B200": 1.3, "GB200": 1.3, "GB300": 1.3}
# Hopper's and later protocols, as nccl-tests on 8 H200s show: the middle one costs no more latency than the
# first. USUAL_PROTOCOLS are fitted to 8 A100s.
LATER_PROTOCOLS = ((1.0, 0.55), (2.5, 1.0))
# What two GPUs have between them. Without a switch it is one of their links, 1 of 7 of an MI300X; two A100s
# do not fill all of theirs (nccl-tests).
PAIR_SHARE = {"MI300X": 1 / 7, "A100": 0.83, "A800": 0.83}
INTER_SHARE, INTER_START_S, INTER_STEP_S = 0.9, 120e-6, 17e-6


def chip(gpu: str) -> Chip:
    """Achieved rates of a GPU of :data:`pdtlib.plan.presets.GPUS`."""
    spec, family = GPUS[gpu], gpu.partition("-")[0]
    matmul = spec.matmul_flops or spec.peak_flops * MATMUL_SHARE.get(gpu, MATMUL_SHARE[family])
    sustained = SUSTAINED.get(gpu, SUSTAINED.get(family, 1.0))
    return Chip(
        name=gpu,
        matmul_flops=matmul * sustained,
        fp8_flops=(spec.peak_fp8_flops or 0.0) * FP8_SHARE.get(family, 0.71) * sustained,
        multiprocessors=MULTIPROCESSORS[family],
        ramp=RAMP,
        memory_bytes_per_s=MEMORY_SHARE * spec.hbm_bytes_per_s,
    )


def fabric(gpu: str, inter: str) -> Fabric:
    """Links of a node of that GPU, and between nodes."""
    family = gpu.partition("-")[0]
    inside = NVLINK_SHARE.get(family, USUAL_NVLINK_SHARE) * GPUS[gpu].nvlink_bytes_per_s
    return Fabric(
        name=f"{gpu}, {inter}",
        intra_bytes_per_s=inside,
        intra_start_s=INTRA_START_S,
        intra_step_s=INTRA_STEP_S,
        switch_gain=SWITCH_GAIN.get(family, 1.0),
        pair_bytes_per_s=PAIR_SHARE.get(family, 1.0) * inside,
        protocols=LATER_PROTOCOLS if family[0] in "HBG" else USUAL_PROTOCOLS,
        inter_bytes_per_s=INTER_SHARE * LINKS[inter],
        inter_start_s=INTER_START_S,
        inter_step_s=INTER_STEP_S,
    )


def _stack(name: str, **values: float) -> Software:
    usual: dict[str, float] = {
        "passes": 1.1,
        "kernel_s": 20e-6,
        "overlap_tp": 0.0,
        "overlap_tp_back": 0.0,
        "overlap_dp": 0.0,
        "overlap_pp": 0.0,
        "overlap_ep": 0.0,
        "step_s": 0.02,
        "matmul_share": 1.0,
        "attention_share": 0.7,
        "inter_share": 1.0,
        "fp8_share": 1.0,
    }
    return Software(
        name=name, **{**usual, **values}, skips_masked_half=True, stops_early=name in TORCH_CHECKPOINTS
    )


SOFTWARE = {
    item.name: item
    for item in (
        # Megatron-LM on Selene (A100), 2020 to 2022: nothing overlaps but part of tensor parallelism's
        # messages in the backward pass. Fitted on Korthikanti's 22B and 530B, on Narayanan's 1.7B, 39B and
        # 530B and on the 2020 README's single replicas.
        _stack("megatron-2021", matmul_share=0.941, passes=1.18, step_s=0.021, overlap_tp_back=0.6),
        # Megatron-DeepSpeed on another A100 cluster (the vTrain paper's): a slower host.
        _stack(
            "megatron-deepspeed-2021",
            matmul_share=0.989,
            passes=1.31,
            kernel_s=51e-6,
            step_s=0.004,
            overlap_tp=0.25,
        ),
        # BLOOM's cluster: A100, four Omni-Path cards a node. Fitted on every other run of its prequel.
        _stack(
            "megatron-deepspeed",
            matmul_share=0.978,
            passes=2.65,
            step_s=2.0,
            overlap_pp=0.63,
            inter_share=0.24,
        ),
        # MT-NLG on Selene. Fitted on 2,240 GPUs.
        _stack("mt-nlg", matmul_share=0.727),
        # The zero-bubble paper's Megatron. Fitted on its shortest pipelines' runs.
        _stack("megatron-zb", matmul_share=0.912, passes=1.54, step_s=0.019, overlap_pp=0.14),
        # ZeRO-3 of 2021: small gathers that use a tenth of the network. Fitted on 384 and 1,536 GPUs.
        _stack("deepspeed-2021", matmul_share=0.828, overlap_dp=0.68, inter_share=0.095),
        # Fitted on MegaScale's 256 GPUs.
        _stack("megascale", matmul_share=1.08, overlap_tp=0.46, overlap_dp=0.9, overlap_pp=0.8),
        # Llama 3's own stack. Fitted on 8,192 GPUs.
        _stack("meta", matmul_share=0.811, overlap_tp=0.3, overlap_dp=0.9, overlap_pp=0.8),
        _stack("nanotron", matmul_share=0.845, passes=1.4, step_s=0.061, overlap_tp=0.37, overlap_dp=0.4),
        # llm-foundry, A100 and (newer) H100. Fitted on every other run.
        _stack(
            "foundry",
            matmul_share=0.914,
            passes=1.05,
            step_s=0.004,
            overlap_dp=0.37,
            attention_share=0.507,
        ),
        _stack(
            "foundry-h100",
            matmul_share=0.98,
            passes=1.84,
            step_s=0.005,
            overlap_dp=0.046,
            attention_share=0.305,
        ),
        # torchtitan without and with torch.compile. Fitted on about half of its runs.
        _stack("fsdp", matmul_share=0.853, passes=2.96, overlap_dp=1.0),
        _stack("fsdp-compile", matmul_share=0.861, passes=1.72, overlap_dp=0.8, fp8_share=0.736),
        # NeMo 24 on H100, and Megatron-Core 0.8 of the same year. Fitted on half of their runs.
        _stack(
            "nemo-2024",
            matmul_share=0.812,
            passes=0.7,
            step_s=0.1,
            overlap_tp=0.11,
            overlap_dp=0.9,
            overlap_pp=0.8,
        ),
        _stack(
            "megatron-core-2024",
            matmul_share=0.906,
            passes=1.89,
            step_s=0.041,
            overlap_tp=0.5,
            overlap_dp=0.9,
            overlap_pp=0.8,
        ),
        # NeMo 25 and Megatron-Bridge on H100. Fitted on the smallest run of each kind, checked on the larger.
        _stack(
            "megatron-core",
            matmul_share=0.918,
            passes=0.99,
            overlap_tp=0.9,
            overlap_dp=0.9,
            overlap_pp=0.95,
            overlap_ep=0.25,
            attention_share=0.9,
            fp8_share=0.98,
        ),
    )
}

USUAL_SOFTWARE = "megatron-core"

HABITS = {
    "megatron-2021": Habits(accounting="megatron-18"),
    "megatron-deepspeed-2021": Habits(accounting="megatron-fp16-20"),
    # nvidia-smi's total. The overhead is fitted to every other run of BLOOM's prequel.
    "megatron-deepspeed": Habits(accounting="megatron-fp16-20", kept=1.1, overhead_bytes=7.2e9),
    "mt-nlg": Habits(accounting="megatron-18"),
    # What torch counts, without the CUDA context; gradients stay in fp16.
    "megatron-zb": Habits(accounting="zero-16", overhead_bytes=0.0),
    "deepspeed-2021": Habits(accounting="megatron-fp16-20"),
    "megascale": Habits(accounting="megatron-18"),
    "meta": Habits(accounting="megatron-18"),
    "nanotron": Habits(accounting="megatron-18", kept=1.35),
    "foundry": Habits(accounting="fp32-16"),
    "foundry-h100": Habits(accounting="fp32-16"),
    "fsdp": Habits(accounting="fp32-16"),
    "fsdp-compile": Habits(accounting="fp32-16"),
    "nemo-2024": Habits(accounting="megatron-18"),
    "megatron-core-2024": Habits(accounting="megatron-18"),
    "megatron-core": Habits(accounting="megatron-18"),
}


def system_of(job: Job, *, software: str = USUAL_SOFTWARE, **changes: float) -> System:
    """The job's hardware with the constants of its parts, or as it was measured.

    Raises ``ValueError`` for a job on CPUs that nobody has measured.
    """
    gpu = job.hardware.gpu
    if job.hardware.measured is not None:
        return measured_system(job, job.hardware.measured)
    if gpu not in GPUS:
        raise ValueError(f"hardware.gpu={gpu!r}: no published rates; valid: {', '.join(GPUS)}")
    if software not in SOFTWARE:
        raise ValueError(f"software={software!r}; valid: {', '.join(SOFTWARE)}")
    inter = job.hardware.inter or "ib-ndr-400"
    return System(
        chip=chip(gpu),
        fabric=fabric(gpu, inter),
        software=replace(SOFTWARE[software], **changes),  # type: ignore[arg-type]
        gpus_per_node=job.hardware.gpus_per_node,
    )
