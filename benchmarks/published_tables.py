"""What published runs call things, and the runs whose description is a table row of its own."""

import re
from collections.abc import Mapping
from typing import Any

from pdtlib.plan.job import Job, from_dict

Case = Mapping[str, Any]

# A part of what a GPU is called -> plan's name; first match wins, so the longer names stand first.
GPUS = (
    ("A100-SXM4-40", "A100-SXM4-40"),
    ("H100-96GB", "H100-96GB-HBM2e(Meta)"),
    ("GB300", "GB300"),
    ("B300", "GB300"),
    ("GB200", "GB200"),
    ("B200", "B200"),
    ("H200", "H200"),
    ("H800", "H800-SXM"),
    ("H20", "H20"),
    ("H100", "H100-SXM5"),
    ("A800", "A800-SXM"),
    ("A100", "A100-SXM4-80"),
    ("V100", "V100-SXM2-32"),
    ("MI300", "MI300X"),
)
RACK = 72
"""GPUs of one NVLink domain of a GB200 or GB300 rack, whatever its trays hold."""

# First match wins; the stacks are those of pdtlib.plan.time.constants.
STACKS = (
    ("DeepSpeed ZeRO-3", "deepspeed-2021"),
    ("Megatron-LM 2025", "megatron-core"),
    ("Megatron-Core r0.8", "megatron-core-2024"),
    ("Megatron-DeepSpeed 1F1B", "megatron-deepspeed-2021"),
    ("Megatron-DeepSpeed", "megatron-deepspeed"),
    ("Megatron-LM + ZB", "megatron-zb"),
    ("Megatron-LM", "megatron-2021"),
    ("MegaScale", "megascale"),
    ("torchtitan FSDP2 +compile", "fsdp-compile"),
    ("torchtitan", "fsdp"),
    ("PyTorch FSDP1", "fsdp"),
    ("nanotron", "nanotron"),
    ("NeMo 24", "nemo-2024"),
    ("NeMo", "megatron-core"),
    ("Meta internal", "meta"),
)

LINKS = (
    # A part of the description of the network -> the rate of one rank's share of it.
    ("8x HDR-200", "ib-hdr-200"),
    ("Selene", "ib-hdr-200"),
    ("4x Omni-Path", "omnipath-50"),
    ("4xHDR", "ib-hdr-100"),
    ("8x200 Gb/s RoCE", "roce-200"),
    ("NDR", "ib-ndr-400"),
    ("RoCE 400", "roce-400"),
    ("RDMA 400", "roce-400"),
    ("EFA 3.2", "efa-400"),
    ("3.2 Tb/s RoCE", "roce-400"),
    ("2 Tb/s RoCE", "roce-200"),
    ("AWS EFA", "ib-hdr-100"),
)


# A part of the model's name, in small letters without punctuation -> tokens seen in training, as the papers
# state them, and the share of the GPU-hours that trained. Llama 1's hours are its tokens over its printed
# rate (380 tokens per second and GPU for 65B, arXiv:2302.13971, section 2.4), so all of them train; so are
# DeepSeek-V3's (arXiv:2412.19437, Table 1). Others' hours include restarts and evaluation: of Llama 3's "over
# 90 %" were effective (arXiv:2407.21783, section 3.3.4), the one published figure.
BUDGETS = (
    ("llama17b", 1.0e12, 1.0),
    ("llama113b", 1.0e12, 1.0),
    ("llama1", 1.4e12, 1.0),
    ("llama2", 2.0e12, 0.9),
    ("llama31405b", 15.6e12, 0.9),
    ("llama3", 15.0e12, 0.9),
    ("deepseekv3", 14.8e12, 1.0),
)


def gpu_of(text: str) -> str:
    """Plan's name of a GPU; ``ValueError`` for one that nobody printed rates of."""
    for part, name in GPUS:
        if part in text:
            return name
    raise ValueError(f"gpu={text!r}; valid: {', '.join(part for part, _ in GPUS)}")


def gpus_per_node_of(gpu: str, stated: int | None) -> int:
    """GPUs that NVLink joins."""
    return RACK if gpu in ("GB200", "GB300") else stated or 8


def link_of(text: str | None, gpu: str) -> str:
    description = text or ""
    if "1600 Gb/s RoCE" in description and gpu.startswith("A100"):
        return "roce-200"
    usual = "ib-hdr-200" if gpu_of(gpu).startswith(("A", "V")) else "ib-ndr-400"
    return next((link for part, link in LINKS if part in description), usual)


def mixture_of(model: Case) -> dict[str, int] | None:
    """The job's ``moe`` of a model's description. An expert that every token passes counts as one more chosen
    one, so that the FLOPs are right; its parameters, one expert's of many, are left out."""
    moe = model.get("moe")
    if not isinstance(moe, Mapping):
        return None

    def number(*names: str) -> int:
        return next((int(moe[name]) for name in names if moe.get(name)), 0)

    experts = number("experts", "num_experts", "n_experts", "n_routed")
    top_k = number("top_k", "topk", "k", "active") + number("shared", "shared_experts", "n_shared")
    ffn = number("ffn", "moe_ffn", "expert_ffn", "ffn_per_expert") or int(model["ffn"])
    return {"experts": experts, "top_k": min(experts, top_k), "ffn": ffn}


def expert_ranks(stated: int, moe: Case, ranks: int) -> int:
    """The largest degree up to the stated one that divides the experts and the ranks they are taken from."""
    fits = (n for n in range(stated, 0, -1) if moe["experts"] % n == 0 and ranks % n == 0)
    return next(fits)


def bridge_job(table: Case) -> Job | None:
    """A row of Megatron-Bridge's table of results."""
    dims = dict(re.findall(r"(L|h|a|kv|ffn|V|head_dim|moe_ffn)(\d+)", table["dims"]))
    found = re.search(r"(\d+) experts top(\d+)", table["dims"])
    if not {"L", "h", "a", "V"} <= set(dims):
        return None

    def degree(name: str) -> int:
        value = str(table.get(name) or "1")
        return int(value) if value.isdigit() and int(value) else 1

    gpus, tp, pp, cp = degree("#-GPUs"), degree("TP"), degree("PP"), degree("CP")
    dp = max(1, gpus // (tp * pp * cp))
    vpp = degree("VP")
    model: dict[str, Any] = {
        "layers": int(dims["L"]),
        "hidden": int(dims["h"]),
        "heads": int(dims["a"]),
        "kv_heads": int(dims.get("kv", dims["a"])),
        "vocab": -(-int(dims["V"]) // (128 * tp)) * 128 * tp,
        "seq": int(table["Sequence Length"]),
        "activation": "swiglu",
    }
    if "head_dim" in dims:
        model["head_dim"] = int(dims["head_dim"])
    moe = None
    if found:
        moe = mixture_of(
            {"moe": {"experts": found[1], "top_k": found[2], "ffn": dims.get("moe_ffn") or dims["ffn"]}}
        )
        model["moe"] = moe
    else:
        model["ffn"] = int(dims["ffn"])
    micro_batch = degree("MBS")
    unit = micro_batch * dp
    if vpp * pp > model["layers"]:
        vpp = 1
    gpu = gpu_of(table["System"])
    return from_dict(
        {
            "model": model,
            "train": {
                "global_batch": max(1, degree("GBS") // unit) * unit,
                "micro_batch": micro_batch,
                "precision": "bf16" if bridge_precision(table) == "bf16" else "fp8",
                "zero_stage": 3 if degree("FSDP") > 1 else 1,
                "sequence_parallel": tp > 1,
            },
            "parallel": {
                "dp": dp,
                "tp": tp,
                "pp": pp,
                "cp": cp,
                "ep": expert_ranks(degree("EP"), moe, dp * cp) if moe else 1,
                "vpp": vpp,
            },
            "hardware": {"gpu": gpu, "gpus_per_node": gpus_per_node_of(gpu, 8), "inter": "ib-ndr-400"},
        }
    )


def bridge_precision(table: Case) -> str:
    """bf16, fp8 or fp4; a table without the column reports fp8."""
    text = str(table.get("Precision") or "FP8").upper()
    return "bf16" if "BF16" in text else "fp4" if "FP4" in text else "fp8"


def figure_job(table: Case) -> Job:
    """Narayanan 2021, figures 12 and 18: GPT-3 on 96 A100s."""
    interleaved = table.get("schedule", "interleaved") == "interleaved"
    return from_dict(
        {
            "model": {
                "layers": 96,
                "hidden": 12288,
                "heads": 96,
                "vocab": 51200,
                "seq": 2048,
                "dropout": 0.1,
                "tied_embeddings": True,
            },
            "train": {
                "global_batch": table["batch"],
                "precision": "fp16",
                "recompute": "full",
                "flash_attention": False,
            },
            "parallel": {"tp": 8, "pp": 12, "vpp": 4 if interleaved else 1},
            "hardware": {"cluster": "dgx-a100"},
        }
    )
